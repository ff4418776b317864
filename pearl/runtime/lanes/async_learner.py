"""Asynchronous learner: the learning lane stores the transitions of whichever actor is ready.

Every actor, a replica of the acting tasks, has its thread or process (`async_actor`) and holds the
transitions of one step. It acts with the parameters that were the newest when the learner granted
the step, steps, and waits. An iteration stores as many rows and takes as many gradient steps as in
a fixed order, so the replay ratio is exact. Which actor's rows come first depends on timing, so a
run is not reproducible.

No stored row has parameters that are more than `policy_lag` syncs old. Each row has a
deadline: the last store before the sync that would make the row too old. If the deadlines of
k rows lie within the next k stores, the learner stores these rows first. It grants a step only if a
store is left for its rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pearl.graph.sequential import program_order
from pearl.graph.task_graph import TaskGraph
from pearl.planning.replicas import resize_kernel
from pearl.runtime.environments.external_envs import Environments
from pearl.runtime.lanes.async_actor import (
    ALL,
    STEPS,
    bind_to_slot,
    granted_counter,
    lane_name,
    slot_of,
    version_counter,
)
from pearl.runtime.lanes.engine import Engine, Hosting
from pearl.runtime.lanes.lane_runner import SLEEP_S
from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.binding import Lags
from pearl.runtime.protocol.control_block import ControlBlock, wake_all
from pearl.runtime.protocol.lane_recorder import LaneRecorder, Place, record_time
from pearl.runtime.protocol.run_context import RunContext
from pearl.runtime.protocol.single_lane import LaneError
from pearl_devices import Buffers, Call
from pearl_devices.base import finish

ACTED = "any_order.acted"
"""Name of an int64 array of shape (actors,) in a checkpoint: 0 if the actor holds no transitions,
else 1 + the version of the parameters with which it chose the actions."""


class AsyncEngine(Engine):
    """The lanes of an any-order plan. graph: of the algorithm, before tasks were split."""

    interruptible = False

    def __init__(self, context: RunContext, hosting: Hosting, graph: TaskGraph) -> None:
        self._whole = graph
        # A fast actor does more steps than its share: none of them may be empty.
        context.span = replace(context.span, end=sys.maxsize)
        super().__init__(context, hosting)

    def lane_name(self, number: int) -> str:
        return lane_name(self.context.protocol, number)

    def bind(self, number: int, poll: Callable[[], None]) -> Any:
        if number == self.context.protocol.home:
            return AsyncLearner(self.context, self._whole, self.control, poll, self.spins)
        return super().bind(number, poll)

    def env_step_under_way(self, number: int) -> str | None:
        acted, stepped = self.counts_of(number)
        task = self.context.protocol.lanes[number].tasks[1]
        return self._describe_env_step(task) if acted > stepped else None

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Run iterations up to `end`; at `stop` no actor is in the middle of a step."""
        self.monitor.reset_stall_detector()
        self.monitor.poll()
        learner: AsyncLearner = self.own
        if any(worker.needs_pause for worker in self.monitor.workers.values()):
            self.halt()
        while learner.iteration < end:
            learner.iterate(timed=timed and learner.iteration == end - 1)
        return self.halt() if end == stop else end

    def halt(self) -> int:
        """Let every actor end its present step, and grant no other. Returns the iteration."""
        learner: AsyncLearner = self.own
        learner.halt()
        control, at = self.control, learner.iteration
        control.write(control.flushed_cell(self.context.protocol.home), at)
        control.write(control.flush_cell, at)
        wake_all(self.context.wake_events)
        flushed = [control.flushed_cell(n) for n in range(control.lanes)]
        learner.wait_until(lambda: all(control.read(cell) >= at for cell in flushed))
        for worker in self.monitor.workers.values():
            worker.on_pause()
        self.context.residency.download_all()
        return at


class AsyncLearner:
    """The learning lane. It has the interface of `LaneRunner` that the engine uses.

    interrupted: always False; the stop word interrupts no call.
    iteration: number of complete iterations.
    lags: histogram of the age, in syncs, of the parameters behind the stored rows.
    """

    def __init__(
        self,
        context: RunContext,
        graph: TaskGraph,
        control: ControlBlock,
        poll: Callable[[], None],
        spins: int,
    ) -> None:
        p = self.protocol = context.protocol
        self.arrays, self.wake_events = context.arrays, context.wake_events
        self.control, self.poll, self._spins = control, poll, spins
        self.name, self.iteration, self.interrupted = lane_name(p, p.home), 0, False
        self.times_ns: dict[str, list[int]] = {}
        self.lags: Lags = {"policy_lag": {}}
        self.environments: Environments = {}
        self._warm, self._learning = context.span.learning_starts, set(context.learning)
        self._copies = range(len(p.split.shares))
        self._order = tuple(t for t in program_order(graph) if t not in ("act", "step"))
        self._bound = max(c.slack for c in p.plan.edges if (c.src, c.dst) == ("sync", "act#0"))
        self._budgets = store_budgets(self._order, len(self._copies), self._bound)
        self._granted, self._stored, self._version = ([0 for _ in self._copies] for _ in range(3))
        self._newest, self._looked = 0, time.monotonic()
        self._acted = [control.count_cell(f"act#{i}") for i in self._copies]
        self._stepped = [control.count_cell(f"step#{i}") for i in self._copies]
        flushed = [control.flushed_cell(n) for n in range(control.lanes)]
        self._watched_cells = np.array([*self._acted, *self._stepped, *flushed], np.int64)
        self._lane_of = {
            i: n for n, k in enumerate(p.lanes) for i in self._copies if f"step#{i}" in k.tasks
        }
        self._storing = [_bind_store(context, graph, i) for i in self._copies]
        slots = range(p.slots["sync"])
        self._copying = [bind_to_slot(context, "sync", slot) for slot in slots]
        self.recorder = LaneRecorder(self.name, [Place(t) for t in self._order], context.sampling)
        self._place = 0
        others = [t for t in self._order if t not in ("store", "sync")]
        self._others = {task: bind_to_slot(context, task) for task in others}

    def begin_segment(self, at: int) -> None:
        """Continue from iteration `at` with the transitions that actors hold.

        Raises:
            LaneError: the checkpoint says that actors hold transitions of too old parameters.
        """
        q = self.protocol.graph.repetition
        self.iteration, self._newest = at, max(at, self._warm) * q["sync"]
        for i in self._copies:
            acted, done = int(self.arrays[ACTED][i]), at * q[f"step#{i}"]
            if acted and not 0 <= self._newest - (acted - 1) <= self._bound:
                raise LaneError(
                    f"{ACTED} of actor {i} is {acted}: it chose its actions with version "
                    f"{acted - 1} of the parameters; the newest version is {self._newest}, and "
                    f"actors may use one that is at most {self._bound} older"
                )
            self._granted[i], self._stored[i] = done, done - (acted > 0)
            self._version[i] = acted - 1
            self.control.write(self.control.count_cell(granted_counter(i)), done)

    def waits_for(self) -> list[str]:
        read, copies = self.control.read, self._copies
        return [f"step#{i}" for i in copies if read(self._stepped[i]) < self._granted[i]]

    def iterate(self, *, timed: bool) -> None:
        """Run one iteration. timed: time its calls."""
        stores = 0
        self.recorder.begin_timed()
        for place, task in enumerate(self._order):
            self._place = place
            waited_ns = self.recorder.waiting_ns[place]
            begin = time.perf_counter_ns()
            if task == "store":
                for _ in self._copies:
                    self._store_rows(self._budgets[stores])
                    stores += 1
            elif self.iteration < self._warm and task in self._learning:
                continue
            elif task == "sync":
                self._publish_parameters()
            else:
                self._others[task]()
                if timed:
                    finish(self._others[task])
            end = time.perf_counter_ns()
            waited_ns = self.recorder.waiting_ns[place] - waited_ns
            self.recorder.add(place, self.iteration, begin + waited_ns, end)
            if timed:
                record_time(self.times_ns, task, end - begin)
        self.iteration += 1
        now = time.monotonic()
        if now - self._looked > SLEEP_S:
            self._looked = now
            self.poll()

    def record(self) -> dict[str, Any]:
        """Return what the recorder has noted."""
        return self.recorder.to_json()

    def halt(self) -> None:
        """Wait until all granted steps are done, and note the transitions that actors hold."""
        read, copies = self.control.read, self._copies
        self.wait_until(lambda: all(read(self._stepped[i]) == self._granted[i] for i in copies))
        for i in copies:
            self.arrays[ACTED][i] = self._version[i] + 1 if self._under_way(i) else 0

    def _store_rows(self, budget: Sequence[int]) -> None:
        """Store the rows of one actor.

        budget: index k − 1 → number of stores before the k-th sync from now on, this store
            included.
        """
        self._grant(budget[self._bound])
        self.wait_until(lambda: self._choose_actor(budget) is not None)
        copy = self._choose_actor(budget)
        assert copy is not None
        self._storing[copy]()
        age, ages = self._newest - self._version[copy], self.lags["policy_lag"]
        ages[age] = ages.get(age, 0) + 1
        self._stored[copy] += 1
        self._grant(budget[self._bound] - 1)

    def _under_way(self, copy: int) -> bool:
        return self._granted[copy] > self._stored[copy]

    def _grant(self, budget: int) -> None:
        """Let actors begin a step with the newest parameters, while `budget` stores suffice for all
        steps under way.

        The version is written before the grant: an actor that sees the grant sees its version.
        """
        control, busy = self.control, sum(map(self._under_way, self._copies))
        for i in self._copies:
            if busy < budget and not self._under_way(i):
                busy += 1
                self._version[i], self._granted[i] = self._newest, self._granted[i] + 1
                control.write(control.count_cell(version_counter(i)), self._newest)
                lane, cell = self._lane_of[i], control.count_cell(granted_counter(i))
                sleeping = control.address + progress_counters.CELL * control.sleep_cell(0)
                value = self._granted[i]
                if progress_counters.publish(
                    control.address, cell, value, sleeping, lane, lane + 1
                ):
                    self.wake_events[lane].set()

    def _choose_actor(self, budget: Sequence[int]) -> int | None:
        """Choose the actor whose transitions to store next; None if the learner must wait.

        The oldest parameters go first, among actors that are ready. If `place` rows have their
        deadline within `place` stores, only these rows may be stored (earliest deadline first).
        """
        due = sorted(
            (budget[self._version[i] + self._bound - self._newest], i)
            for i in self._copies
            if self._under_way(i)
        )
        tight = next((end for place, (end, _) in enumerate(due, 1) if place >= end), sys.maxsize)
        ready = [
            (self._version[i], i)
            for end, i in due
            if end <= tight and self.control.read(self._stepped[i]) > self._stored[i]
        ]
        return min(ready)[1] if ready else None

    def _publish_parameters(self) -> None:
        """Copy the new parameters into a slot that no actor reads."""
        slots = len(self._copying)
        slot = slot_of(self._newest + 1, slots)

        def reads_slot(copy: int) -> bool:
            reading = self.control.read(self._acted[copy]) < self._granted[copy]
            return reading and slot_of(self._version[copy], slots) == slot

        self.wait_until(lambda: not any(map(reads_slot, self._copies)), ALL)
        self._copying[slot]()
        self._newest += 1

    def wait_until(self, true: Callable[[], bool], event: int = STEPS) -> None:
        """Wait until `true()`: spin, then sleep until `event` (STEPS or ALL). After every sleep,
        check whether an actor has failed."""
        control, home = self.control, self.protocol.home
        mine = control.sleep_cell(home)
        if true():
            return
        begin = time.perf_counter_ns()
        try:
            self._wait_until(true, event, home, mine)
        finally:
            self.recorder.waiting_ns[self._place] += time.perf_counter_ns() - begin

    def _wait_until(self, true: Callable[[], bool], event: int, home: int, mine: int) -> None:
        control, watched = self.control, self._watched_cells
        while not true():
            # A count that changes between this read and `true()` differs from `seen` below.
            seen = control.cells[watched * (progress_counters.CELL // 8)]
            if true():
                return
            if progress_counters.spin_until_changed(control.address, watched, seen, self._spins):
                continue
            control.write(mine, event)
            if not progress_counters.spin_until_changed(control.address, watched, seen, 0):
                self.wake_events[home].wait(SLEEP_S)
            control.write(mine, 0)
            self.poll()


def store_budgets(order: Sequence[str], copies: int, bound: int) -> list[list[int]]:
    """Return, for every store of an iteration, the number of stores before each of the next
    `bound` + 1 syncs, that store included."""
    events = [t for t in order for _ in range(copies if t == "store" else 1)]
    events = [t for t in events if t in ("store", "sync")]
    budgets = []
    for first in (n for n, t in enumerate(events) if t == "store"):
        budget, stores, at = list[int](), 0, first
        while len(budget) <= bound:
            if events[at % len(events)] == "sync":
                budget.append(stores)
            else:
                stores += 1
            at += 1
        budgets.append(budget)
    return budgets


def _bind_store(context: RunContext, graph: TaskGraph, copy: int) -> Call:
    """Bind store to the rows of one actor."""
    shares, job = context.protocol.split.shares, context.jobs["store"]
    kernel = resize_kernel(graph.task("store").kernel, shares[copy], sum(shares))
    first = sum(shares[:copy])
    rows: Buffers = {
        n: a[first : first + shares[copy]] if n.startswith("step.") else a
        for n, a in context.arrays.items()
    }
    lane = context.protocol.lane_of["store"]
    return context.residency.bind_call(job, rows, kernel=kernel, lane=lane)
