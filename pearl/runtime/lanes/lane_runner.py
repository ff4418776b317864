"""Execution of one lane: calls in order, waits before them, counts after them."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

from pearl.runtime.protocol import progress_counters, recovery
from pearl.runtime.protocol.binding import Binder, BoundFiring
from pearl.runtime.protocol.control_block import PARKED, ControlBlock, WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import Job, StopWord
from pearl.runtime.protocol.single_lane import record_time as keep
from pearl_devices import Buffers, Call
from pearl_devices.base import Pending, finish

SPINS = 500
"""Calls of sched_yield before a lane sleeps: some 50 us on an idle core (EPYC, 2026)."""

CROWDED = 5
"""The same where lanes outnumber cores."""

SLEEP_S = 0.05
"""Longest sleep of a lane before it looks again whether to stop."""

AHEAD = 64
"""Iterations that a worker's lane may be ahead of the main thread's, where tokens allow more."""

POLL_S = 5e-5
"""The same while firings of its own are under way that nobody will ring for (assumed)."""


class StopRequested(Exception):
    """The run ends, so a lane that waits must stop waiting."""


class ParkRequested(Exception):
    """The run ends amid an iteration, so a lane that waits stays where it is."""


class LaneRunner:
    """A lane with its calls bound.

    A segment is a stretch of iterations at whose two ends all lanes are at the same iteration:
    entries that run ahead fire in rounds before the segment, and none beyond its end.

    begin: first iteration of the segment.
    round: the next round.
    entry: the next call in that round.
    look: called while the lane waits; may raise Stopped.
    jitter_s: longest random sleep before a call, to show that nothing depends on timing.
    anew: native environments of the lane have been started anew amid their episodes.
    settled: called at the end of a segment, with its iteration.
    environments: those outside the arrays, by the name of their call.
    word: the stop word.
    cut: it has cut a call short, since this was last set to False.
    """

    def __init__(
        self,
        protocol: ExecutionSchedule,
        number: int,
        jobs: Mapping[str, Job],
        arrays: Buffers,
        board: ControlBlock,
        bells: Sequence[WakeEvent],
        learning: Sequence[str],
        span: WorkRange,
        residency: Residency,
        poll: Callable[[], None],
        *,
        spins: int = SPINS,
        jitter_s: float = 0.0,
        anew: bool = False,
    ) -> None:
        self.number, self.board, self.bells, self.look = number, board, bells, poll
        self.name, self.spins = protocol.lanes[number].name, spins
        self.times_ns: dict[str, list[int]] = {}
        binder = Binder(protocol, jobs, arrays, board, learning, span, residency, self.name)
        self.lags, self.environments = binder.lags, dict[str, Any]()
        self.settled: Callable[[int], None] | None = None
        self.steps = tuple(binder.step(f) for f in protocol.lanes[number].firings)
        self.environments.update(binder.environments())
        self._under_way: dict[str, deque[tuple[Pending | None, BoundFiring, int]]] = {
            s.name: deque() for s in self.steps if s.late
        }
        self.ahead = max(s.offset for s in self.steps)
        self.begin = self.round = self.entry = self.resumed = 0
        self.stop_word, self.cut, self._spent_ns = StopWord(arrays), False, 0
        if anew:
            for step, f in zip(self.steps, protocol.lanes[number].firings, strict=True):
                step.calls = recovery.marked(protocol, f, jobs, arrays, step.calls)
        if jitter_s:
            for step in self.steps:
                step.calls = [_sleepy(c, jitter_s, random.Random(number)) for c in step.calls]

    def segment(self, begin: int) -> None:
        """A new segment from iteration `begin` on."""
        self.begin, self.round, self.entry = begin, begin - self.ahead, 0

    def resume(self, begin: int) -> None:
        """Go on in a segment from the lane's first incomplete firing by the counts.

        At the end of a segment later ones may be complete: those that belong to it.
        """
        self.segment(begin)
        published = [p for s in self.steps for p in s.published]
        ready = [(self.board.read(c) - base) // growth + 1 for c, base, growth in published]
        self.round, self.resumed = min(ready), max(*ready, min(ready) + 1)

    def follow(self) -> None:
        """Run as a worker: iterations up to the limit on the board, until told to stop."""
        self.resume(self.board.read(self.board.flushed(self.number)))
        try:
            self._follow()
        except ParkRequested:
            while not self._completed():
                self.look()
                time.sleep(POLL_S)
            self._tell(PARKED)
            while True:
                self.bells[self.number].sleep(SLEEP_S)
                self.look()

    def _follow(self) -> None:
        board, mine = self.board, self.board.sleeps(self.number)
        while not board.read(board.stop):
            self._park()
            limit, flush = board.read(board.limit), board.read(board.flush)
            if self.round + self.ahead < limit:
                self.run(min(limit, self.round + self.ahead + AHEAD), timed=True)
            elif flush > self.begin:
                self.flush(flush)
            else:
                board.write(mine, 1)
                if board.read(board.limit) == limit and board.read(board.flush) == flush:
                    self.bells[self.number].sleep(SLEEP_S)
                board.write(mine, 0)
                self.look()

    def run(self, limit: int, *, timed: bool = False) -> None:
        """Run all rounds that have no entry of iteration `limit` or later.

        timed: with a clock around the calls of the last round.
        """
        end = limit - self.ahead
        if timed and (self.stop_word.done or self.entry):
            with self._clocked(self.round):
                self._partly(self.round, self.begin, limit)
        while self.round < min(max(self.begin, self.resumed), end) and not self.cut:
            self._partly(self.round, self.begin, limit)
        if self.round < end - timed and not self.cut:
            self._wholly(end - timed)
        if timed and self.begin <= self.round < end and not self.cut:
            with self._clocked(end - 1):
                self._wholly(end)

    @contextmanager
    def _clocked(self, number: int) -> Iterator[None]:
        """Meanwhile there is a clock around every call, which are those of round `number`."""
        steps = self.steps
        try:
            self.steps = tuple(replace(s, calls=self._timers(s, number)) for s in steps)
            yield
        finally:
            self.steps = steps

    def flush(self, end: int) -> None:
        """Run the rest of the segment, which ends before iteration `end`, where the next begins."""
        while self.round < end:
            self._partly(self.round, self.begin, end)
            if self.cut:
                return
        while not self._completed():
            self.look()
            time.sleep(POLL_S)
        self.segment(end)
        self._tell(end)

    def _tell(self, settled: int) -> None:
        """Say how far the lane has come, its environments first."""
        if self.settled is not None:
            self.settled(settled)
        self.board.write(self.board.flushed(self.number), settled)

    def _park(self) -> None:
        if self.board.read(self.board.park):
            raise ParkRequested

    def _wholly(self, end: int) -> None:
        address, spins, steps = self.board.address, self.spins, self.steps
        sleeping = address + progress_counters.CELL * self.board.sleeps(0)
        sleepers = self.board.sleepers
        spin, publish = progress_counters.spin, progress_counters.publish
        number, words = self.round, self.stop_word.words
        while number < end:
            for place, s in enumerate(steps):
                if s.which is not None and not spin(
                    address, s.which, s.base, s.step, number, spins
                ):
                    self._sleep(s, number)
                if s.late:
                    self._fire(s, number)
                    if s.pauses and words[0]:
                        self._cut_short(number, place + (words[1] == 0))
                        return
                    continue
                if s.first <= number < s.last:
                    s.calls[number % len(s.calls)]()
                    if s.pauses and words[0]:
                        if words[1] == 0:
                            self._publish(s, number)
                        self._cut_short(number, place + (words[1] == 0))
                        return
                for cell, base, growth in s.published:
                    if publish(address, cell, base + number * growth, sleeping, 0, sleepers):
                        self._wake()
                if self._under_way:
                    self._completed()
            number += 1
            self.round = number

    def _partly(self, number: int, low: int, high: int) -> None:
        """Run one round; only incomplete entries of iterations low … high − 1 fire."""
        for s in self.steps[self.entry :]:
            if low <= number + s.offset < high and not self._complete(s, number):
                if s.which is not None:
                    self._sleep(s, number)
                self._fire(s, number)
                if s.pauses and self.stop_word.words[0]:
                    self._cut_short(number, self.entry + (self.stop_word.done == 0))
                    return
            self.entry += 1
        self.round, self.entry = number + 1, 0

    def _cut_short(self, number: int, entry: int) -> None:
        """The stop word was set: the lane goes on with call `entry` of round `number`."""
        self.cut, self.resumed = True, number + 1
        ended = entry == len(self.steps)
        self.round, self.entry = (number + 1, 0) if ended else (number, entry)

    def _complete(self, s: BoundFiring, number: int) -> bool:
        return all(self.board.read(c) >= base + number * growth for c, base, growth in s.published)

    def _fire(self, s: BoundFiring, number: int) -> None:
        working = s.first <= number < s.last
        pending = s.calls[number % len(s.calls)]() if working else None
        if s.pauses and self.stop_word.done:  # cut short: the next call goes on with it
            return
        if s.late:
            self._under_way[s.name].append((pending, s, number))
            self._completed()
        else:
            self._publish(s, number)

    def _publish(self, s: BoundFiring, number: int) -> None:
        for cell, base, growth in s.published:
            self.board.write(cell, base + number * growth)
        self._wake()

    def _completed(self) -> bool:
        """Counts the firings that have become complete, each task's in order; whether all are."""
        for waiting in self._under_way.values():
            while waiting:
                pending, s, number = waiting[0]
                if pending is not None and not pending.done():
                    break
                waiting.popleft()
                self._publish(s, number)
        return not any(self._under_way.values())

    def try_advance(self, limit: int, target: int, timed: int, *, flush: bool) -> bool:
        """Goes on to round `target` until it must wait or reaches an entry of iteration `limit`,
        which it passes over with `flush`; whether anything fired. timed: from the iteration before
        this one on with a clock around calls, 0: without."""
        board, fired = self.board, False
        if self._under_way and not self._completed():
            fired = True  # not yet stuck
            time.sleep(POLL_S)
        while self.round < target:
            s = self.steps[self.entry]
            if self.round < self.resumed and self._complete(s, self.round):
                pass
            elif self.begin <= self.round + s.offset < limit:
                if s.which is not None and not progress_counters.reached(
                    board.address, s.which, s.base, s.step, self.round
                ):
                    return fired
                if timed and self.round + self.ahead >= timed - 1:
                    s = replace(s, calls=self._timers(s, self.round))
                self._fire(s, self.round)
                if s.pauses and self.stop_word.words[0]:
                    self._cut_short(self.round, self.entry + (self.stop_word.done == 0))
                    return False
                fired = True
            elif not flush and self.round + s.offset >= limit:
                return fired
            self.entry += 1
            if self.entry == len(self.steps):
                self.entry, self.round = 0, self.round + 1
        return fired

    def _timers(self, s: BoundFiring, number: int) -> list[Call]:
        """The calls with a clock around them, in round `number`."""

        def note(begin: int) -> None:
            keep(self.times_ns, s.name, perf_counter_ns() - begin)

        def timer(call: Call) -> Call:
            def timed() -> Pending | None:
                begin, begun = perf_counter_ns(), s.pauses and self.stop_word.done > 0
                before_ns = self._spent_ns if begun else 0
                self._spent_ns = 0
                pending = call()
                if pending is None:
                    finish(call)
                    known = not begun or before_ns > 0
                    if s.pauses and self.stop_word.done:
                        spent_ns = before_ns + perf_counter_ns() - begin
                        self._spent_ns = spent_ns if known else 0
                        return None
                    if known:
                        note(begin - before_ns)
                if s.lag is not None:
                    s.lag(number)
                return pending and _TimedPending(pending, lambda: note(begin))

            return timed

        return [timer(call) for call in s.calls]

    def waits_for(self) -> list[str]:
        """The tasks that the next call waits for."""
        s, board = self.steps[self.entry], self.board
        if s.which is None:
            return []
        return [
            board.tasks[w]
            for w, base, step in zip(s.which, s.base, s.step, strict=True)
            if board.read(int(w)) < base + self.round * step
        ]

    def _sleep(self, s: BoundFiring, number: int) -> None:
        board, mine = self.board, self.board.sleeps(self.number)
        assert s.which is not None
        while True:
            board.write(mine, 1)
            ready = progress_counters.reached(board.address, s.which, s.base, s.step, number)
            if not ready and self._under_way and not self._completed():
                time.sleep(POLL_S)
            elif not ready:
                self.bells[self.number].sleep(SLEEP_S)
            board.write(mine, 0)
            if ready or progress_counters.spin(
                board.address, s.which, s.base, s.step, number, self.spins
            ):
                return
            self.look()
            self._park()

    def _wake(self) -> None:
        self.board.wake_sleepers(self.bells, but=self.number)


@dataclass(slots=True)
class _TimedPending:
    """A pending firing whose time is noted once a look finds it done."""

    pending: Pending
    note: Callable[[], None]

    def done(self) -> bool:
        done = self.pending.done()
        if done:
            self.note()
        return done


def _sleepy(call: Call, jitter_s: float, r: random.Random) -> Call:
    def sleepy() -> Pending | None:
        time.sleep(r.uniform(0, jitter_s))
        return call()

    return sleepy
