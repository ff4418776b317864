"""Execution of one lane: calls in order, waits before them, counts after them."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

from pearl.runtime.lanes.call_timer import CallTimer
from pearl.runtime.protocol import progress_counters as counters
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.binding import Binder, BoundFiring
from pearl.runtime.protocol.control_block import PARKED, ControlBlock
from pearl.runtime.protocol.lane_recorder import LaneRecorder, Place
from pearl.runtime.protocol.run_context import RunContext
from pearl.runtime.protocol.single_lane import StopWord
from pearl_devices import Call
from pearl_devices.base import Pending

SPINS = 500
"""Calls of sched_yield before a lane sleeps: about 50 us on an idle core (EPYC, 2026)."""

SPINS_OVERSUBSCRIBED = 5
"""Calls of sched_yield before a lane sleeps, if lanes outnumber cores."""

SLEEP_S = 0.05
"""Longest sleep of a lane before it checks again whether to stop."""

MAX_ITERATIONS_AHEAD = 64
"""Iterations that a worker's lane may be ahead of the main thread's, if tokens allow more."""

POLL_S = 5e-5
"""Sleep of a lane that waits for asynchronous firings: they set no wake event (assumed)."""


class StopRequested(Exception):
    """The run ends, so a lane that waits must end."""


class ParkRequested(Exception):
    """The run ends in the middle of an iteration, so a lane that waits stays where it is."""


class LaneRunner:
    """A lane with its calls bound.

    A segment is a stretch of iterations; at both of its ends all lanes are at the same iteration.
    Calls that run ahead fire in rounds before the segment. No call fires beyond its end.

    begin: first iteration of the segment.
    round: the next round.
    entry: the next call in that round.
    ahead: iterations by which the furthest call of a round runs ahead.
    poll: called while the lane waits; may raise StopRequested.
    environments: the external environments, by the name of their call.
    on_segment_end: called at the end of a segment with its iteration.
    stop_word: see `StopWord`.
    interrupted: whether the stop word has interrupted a call since this was last set to False.
    times_ns: name of a call → its times.
    recorder: where the time of the lane goes.
    """

    def __init__(
        self,
        context: RunContext,
        number: int,
        control: ControlBlock,
        poll: Callable[[], None],
        *,
        spins: int = SPINS,
        restarted_envs: bool = False,
    ) -> None:
        """restarted_envs: native environments were restarted in the middle of episodes."""
        protocol = context.protocol
        self.number, self.control, self.poll, self.spins = number, control, poll, spins
        self.name, self.wake_events = protocol.lanes[number].name, context.wake_events
        self.times_ns: dict[str, list[int]] = {}
        binder = Binder(context, control, self.name)
        self.lags, self.environments = binder.lags, dict[str, Any]()
        self.on_segment_end: Callable[[int], None] | None = None
        firings = protocol.lanes[number].firings
        self.steps = tuple(
            replace(binder.bind_firing(f), place=place) for place, f in enumerate(firings)
        )
        places = [
            Place(s.name, f.offset, f.index, f.per_round)
            for s, f in zip(self.steps, firings, strict=True)
        ]
        self.recorder = LaneRecorder(self.name, places, context.sampling)
        self.environments.update(binder.environments())
        self._under_way: dict[str, deque[tuple[Pending | None, BoundFiring, int]]] = {
            s.name: deque() for s in self.steps if s.asynchronous
        }
        self.ahead = max(s.offset for s in self.steps)
        self.begin = self.round = self.entry = self.resumed = 0
        self.stop_word, self.interrupted = StopWord(context.arrays), False
        self.timer = CallTimer(self.stop_word, self.times_ns)
        if restarted_envs:
            for step, f in zip(self.steps, firings, strict=True):
                step.calls = recovery.with_episode_restart(context, f, step.calls)
        if jitter_s := context.jitter_s:
            for step in self.steps:
                calls = step.calls
                step.calls = [
                    partial(_sleep_and_call, c, jitter_s, random.Random(number)) for c in calls
                ]

    def begin_segment(self, begin: int) -> None:
        """Begin a segment at iteration `begin`."""
        self.begin, self.round, self.entry = begin, begin - self.ahead, 0

    def resume_segment(self, begin: int) -> None:
        """Continue a segment from the lane's first incomplete firing by the counts.

        Calls that run ahead are complete in later rounds than others, up to round `resumed`: until
        then the lane skips complete firings.
        """
        self.begin_segment(begin)
        published = [p for s in self.steps for p in s.published]
        ready = [(self.control.read(c) - base) // growth + 1 for c, base, growth in published]
        self.round, self.resumed = min(ready), max(*ready, min(ready) + 1)

    def serve(self) -> None:
        """Run as a worker: iterations up to the limit in the control block, until the run stops."""
        self.resume_segment(self.control.read(self.control.flushed_cell(self.number)))
        with self.recorder.running():
            self._serve()

    def _serve(self) -> None:
        try:
            self._serve_limit()
        except ParkRequested:
            while not self._publish_completed():
                self.poll()
                time.sleep(POLL_S)
            self._report_flushed(PARKED)
            while True:
                self.wake_events[self.number].wait(SLEEP_S)
                self.poll()

    def _serve_limit(self) -> None:
        control, mine = self.control, self.control.sleep_cell(self.number)
        while not control.read(control.stop_cell):
            self._raise_if_parked()
            limit, flush = control.read(control.limit_cell), control.read(control.flush_cell)
            if self.round + self.ahead < limit:
                self.run(min(limit, self.round + self.ahead + MAX_ITERATIONS_AHEAD), timed=True)
            elif flush > self.begin:
                self.finish_segment(flush)
            else:
                begin = perf_counter_ns()
                control.write(mine, 1)  # before the last check, so that no change is missed
                limits = control.read(control.limit_cell), control.read(control.flush_cell)
                if limits == (limit, flush):
                    self.wake_events[self.number].wait(SLEEP_S)
                self.recorder.held_ns += perf_counter_ns() - begin
                control.write(mine, 0)
                self.poll()

    def run(self, limit: int, *, timed: bool = False) -> None:
        """Run all rounds that have no entry of iteration `limit` or later.

        timed: time the calls of the last round.
        """
        end = limit - self.ahead
        if timed and (self.stop_word.completed_steps or self.entry):
            with self._timing_round(self.round):
                self._run_partial_round(self.round, self.begin, limit)
        while self.round < min(max(self.begin, self.resumed), end) and not self.interrupted:
            self._run_partial_round(self.round, self.begin, limit)
        if self.round < end - timed and not self.interrupted:
            self._run_full_rounds(end - timed)
        if timed and self.begin <= self.round < end and not self.interrupted:
            with self._timing_round(end - 1):
                self._run_full_rounds(end)

    @contextmanager
    def _timing_round(self, number: int) -> Iterator[None]:
        """Within this context, time every call. The calls are those of round `number`."""
        steps = self.steps
        try:
            self.steps = tuple(replace(s, calls=self.timer.timers(s, number)) for s in steps)
            yield
        finally:
            self.steps = steps

    def finish_segment(self, end: int) -> None:
        """Run the rest of the segment, which ends before iteration `end`, and begin the next."""
        while self.round < end:
            self._run_partial_round(self.round, self.begin, end)
            if self.interrupted:
                return
        while not self._publish_completed():
            self.poll()
            time.sleep(POLL_S)
        self.begin_segment(end)
        self._report_flushed(end)

    def _report_flushed(self, iteration: int) -> None:
        """Publish the iteration that the lane has reached.

        The snapshots of its environments go first, because readers of the cell then need them.
        """
        if self.on_segment_end is not None:
            self.on_segment_end(iteration)
        self.control.write(self.control.flushed_cell(self.number), iteration)

    def _raise_if_parked(self) -> None:
        if self.control.read(self.control.park_cell):
            raise ParkRequested

    def _run_full_rounds(self, end: int) -> None:
        """Run rounds up to `end`, of which every call fires. This is the hot loop, so `_fire` and
        `_publish` are written out: a Python call takes as long as a small kernel."""
        address, spins, steps = self.control.address, self.spins, self.steps
        sleeping = address + counters.CELL * self.control.sleep_cell(0)
        sleepers = self.control.sleepers
        spin, publish = counters.spin_until_reached, counters.publish
        number, words, recorder = self.round, self.stop_word.words, self.recorder
        clock, time_call = perf_counter_ns, recorder.time_call
        due, kept = recorder.next_timed(number), False
        while number < end:
            stamped = number == due
            if stamped:
                due, kept = recorder.next_timed(number + 1), recorder.keeps(number)
                recorder.timed_rounds += 1
            recorder.rounds += 1
            for place, s in enumerate(steps):
                which = s.which
                if which is not None and not spin(address, which, s.base, s.step, number, 0):
                    begin = clock()
                    if not spin(address, which, s.base, s.step, number, spins):
                        self._sleep(s, number)
                    recorder.waiting_ns[place] += clock() - begin
                if s.asynchronous:
                    self._fire(s, number)
                    if s.interruptible and words[0]:
                        self._on_stop_word(number, place)
                        return
                    continue
                if s.first <= number < s.last:
                    if stamped:
                        time_call(place, s.calls[number % len(s.calls)], number, kept, s.lag)
                    else:
                        s.calls[number % len(s.calls)]()
                    if s.interruptible and words[0]:
                        if words[1] == 0:
                            self._publish(s, number)
                        self._on_stop_word(number, place)
                        return
                for cell, base, growth in s.published:
                    if publish(address, cell, base + number * growth, sleeping, 0, sleepers):
                        self._wake()
                if self._under_way:
                    self._publish_completed()
            number += 1
            self.round = number

    def _run_partial_round(self, number: int, low: int, high: int) -> None:
        """Run one round, of which only incomplete entries of iterations low … high − 1 fire."""
        self.recorder.begin_timed()
        for s in self.steps[self.entry :]:
            if low <= number + s.offset < high and not self._complete(s, number):
                if s.which is not None:
                    begin = perf_counter_ns()
                    self._sleep(s, number)
                    self.recorder.waiting_ns[s.place] += perf_counter_ns() - begin
                self._fire(s, number)
                if s.interruptible and self.stop_word.words[0]:
                    self._on_stop_word(number, self.entry)
                    return
            self.entry += 1
        self.round, self.entry = number + 1, 0

    def _on_stop_word(self, number: int, entry: int) -> None:
        """The stop word was set during call `entry` of round `number`: record where to continue."""
        self.interrupted, self.resumed = True, number + 1
        entry += self.stop_word.completed_steps == 0  # else the call continues its firing
        self.round, self.entry = (number, entry) if entry < len(self.steps) else (number + 1, 0)

    def _complete(self, s: BoundFiring, number: int) -> bool:
        read = self.control.read
        return all(read(c) >= base + number * growth for c, base, growth in s.published)

    def _fire(self, s: BoundFiring, number: int) -> None:
        pending = None
        if s.first <= number < s.last:
            begin = perf_counter_ns()
            pending = s.calls[number % len(s.calls)]()
            end, lag = perf_counter_ns(), s.lag if self.recorder.keeps(number) else None
            self.recorder.add(s.place, number, begin, end, lag(number) if lag else -1)
        if s.interruptible and self.stop_word.completed_steps:  # the next call continues it
            return
        if s.asynchronous:
            self._under_way[s.name].append((pending, s, number))
            self._publish_completed()
        else:
            self._publish(s, number)

    def _publish(self, s: BoundFiring, number: int) -> None:
        for cell, base, growth in s.published:
            self.control.write(cell, base + number * growth)
        self._wake()

    def _publish_completed(self) -> bool:
        """Publish complete asynchronous firings, each task's in order. Return whether all are."""
        for waiting in self._under_way.values():
            while waiting:
                pending, s, number = waiting[0]
                if pending is not None and not pending.done():
                    break
                waiting.popleft()
                self._publish(s, number)
        return not any(self._under_way.values())

    def try_advance(self, limit: int, target: int, timed: int, *, flush: bool) -> bool:
        """Run up to round `target`, until a call must wait or is of iteration `limit`.

        timed: time calls from the iteration before this one on; 0: time none.
        flush: skip entries of iteration `limit` and later instead of stopping there.

        Returns: whether anything fired.
        """
        control, fired = self.control, False
        if self._under_way and not self._publish_completed():
            fired = True  # not yet stuck
            time.sleep(POLL_S)
        while self.round < target:
            s = self.steps[self.entry]
            if self.round < self.resumed and self._complete(s, self.round):
                pass
            elif self.begin <= self.round + s.offset < limit:
                if s.which is not None and not counters.counts_reached(
                    control.address, s.which, s.base, s.step, self.round
                ):
                    return fired
                if timed and self.round + self.ahead >= timed - 1:
                    s = replace(s, calls=self.timer.timers(s, self.round))
                self._fire(s, self.round)
                if s.interruptible and self.stop_word.words[0]:
                    self._on_stop_word(self.round, self.entry)
                    return False
                fired = True
            elif not flush and self.round + s.offset >= limit:
                return fired
            self.entry += 1
            if self.entry == len(self.steps):
                self.entry, self.round = 0, self.round + 1
        return fired

    def record(self) -> dict[str, Any]:
        """Return what the recorder has noted."""
        return self.recorder.to_json([(s.name, c) for s in self.steps for c in s.calls])

    def waits_for(self) -> list[str]:
        """Return the tasks that the next call waits for."""
        s, control = self.steps[self.entry], self.control
        if s.which is None:
            return []
        return [
            control.tasks[w]
            for w, base, step in zip(s.which, s.base, s.step, strict=True)
            if control.read(int(w)) < base + self.round * step
        ]

    def _sleep(self, s: BoundFiring, number: int) -> None:
        """Wait until the counts that a firing needs are reached. The sleep cell is set before the
        counts are read, so lanes that publish counts later see it and set the wake event."""
        control, mine = self.control, self.control.sleep_cell(self.number)
        assert s.which is not None
        while True:
            control.write(mine, 1)
            ready = counters.counts_reached(control.address, s.which, s.base, s.step, number)
            if not ready and self._under_way and not self._publish_completed():
                time.sleep(POLL_S)
            elif not ready:
                self.wake_events[self.number].wait(SLEEP_S)
            control.write(mine, 0)
            if ready or counters.spin_until_reached(
                control.address, s.which, s.base, s.step, number, self.spins
            ):
                return
            self.poll()
            self._raise_if_parked()

    def _wake(self) -> None:
        self.control.wake_sleepers(self.wake_events, but=self.number)


def _sleep_and_call(call: Call, jitter_s: float, r: random.Random) -> Pending | None:
    time.sleep(r.uniform(0, jitter_s))
    return call()
