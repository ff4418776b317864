"""Asynchronous learner: the learning lane stores the transitions of whichever actor is ready.

Every copy of the acting tasks has a thread or a process of its own (`async_actor`) and one place
for its next transitions. It acts with the parameters that were the newest when its last transitions
were stored, steps, and waits. An iteration stores as many rows and takes as many gradient steps as
in a fixed order, so the replay ratio is exact. Whose rows are stored depends on timing, so a run is
not reproducible.

No row is stored whose parameters are more than `policy_lag` param_syncs old. Each row has a
deadline: the last store before the param_sync that would make the row too old. Where as many rows
have their deadline within the next k stores, those rows are stored next. A copy begins no step for
which no store would be left.
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
    AsyncActor,
    call,
    called,
    granted,
    slot_of,
    version,
    words,
)
from pearl.runtime.lanes.engine import Engine, Hosting
from pearl.runtime.lanes.lane_runner import SLEEP_S
from pearl.runtime.lanes.run_context import RunContext
from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.binding import Lags
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.single_lane import LaneError, record_time
from pearl_devices import Buffers, Call
from pearl_devices.base import finish

ACTED = "any_order.acted"
"""Array of shape (copies,): 0 where no transitions of the copy wait to be stored, else 1 + the
version of the parameters that they were acted with. Part of a checkpoint."""


class AsyncEngine(Engine):
    """The lanes of an any-order plan. graph: the algorithm's, nothing split."""

    pauses = False

    def __init__(self, work: RunContext, hosting: Hosting, graph: TaskGraph) -> None:
        self._whole, self._warm = graph, work.span.warm
        work.span = replace(work.span, total=sys.maxsize)  # a fast copy does more than its share
        super().__init__(work, hosting)

    @staticmethod
    def words(protocol: ExecutionSchedule) -> tuple[str, ...]:
        return words(protocol)

    def lane_name(self, number: int) -> str:
        return called(self.work.protocol, number)

    def bind(self, number: int, look: Callable[[], None]) -> Any:
        w = self.work
        if number == w.protocol.home:
            return AsyncLearner(w, self._whole, self._warm, self.board, w.bells, look, self.spins)
        given = (w.protocol, number, w.jobs, w.arrays, self.board, w.bells, w.residency, look)
        return AsyncActor(*given, spins=self.spins)

    def waits_in_env_step(self, number: int) -> bool:
        acted, stepped = self.counts_of(number)
        return acted > stepped

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Iterations up to `end`; at `stop` no copy is amid a step."""
        self.lookout.reset_stall_detector()
        self.lookout.poll()
        learner: AsyncLearner = self.own
        if any(w.full for w in self.lookout.workers.values()):
            self.halt()
        while learner.iteration < end:
            learner.iterate(timed=timed and learner.iteration == end - 1)
        return self.halt() if end == stop else end

    def halt(self) -> int:
        """Let every copy end its present step and begin no other."""
        learner: AsyncLearner = self.own
        learner.halt()
        board, at = self.board, learner.iteration
        board.write(board.flushed(self.work.protocol.home), at)
        board.write(board.flush, at)
        self._ring()
        learner.until(lambda: all(board.read(board.flushed(n)) >= at for n in range(board.lanes)))
        for worker in self.lookout.workers.values():
            worker.settled()
        self.work.residency.settle()
        return at


class AsyncLearner:
    """The lane that learns, in the place of a `LaneRunner`.

    cut: no call of it is ever cut short.
    iteration: iterations done.
    lags: age, in param_syncs, of the parameters behind the rows that were stored.
    """

    def __init__(
        self,
        work: RunContext,
        graph: TaskGraph,
        warm: int,
        board: ControlBlock,
        bells: Sequence[WakeEvent],
        look: Callable[[], None],
        spins: int,
    ) -> None:
        p = self.protocol = work.protocol
        self.arrays, self.board, self.bells, self.look = work.arrays, board, bells, look
        self.name, self.iteration, self.cut = called(p, p.home), 0, False
        self.times_ns: dict[str, list[int]] = {}
        self.lags: Lags = {"policy_lag": {}}
        self.environments: Environments = {}
        self._warm, self._learning, self._spins = warm, set(work.learning), spins
        self._copies = range(len(p.split.shares))
        self._order = tuple(t for t in program_order(graph) if t not in ("inference", "env_step"))
        self._bound = max(
            c.slack for c in p.plan.edges if (c.src, c.dst) == ("param_sync", "inference#0")
        )
        self._rooms = rooms(self._order, len(self._copies), self._bound)
        self._granted, self._stored, self._version = ([0 for _ in self._copies] for _ in range(3))
        self._newest, self._looked = 0, time.monotonic()
        self._acted = [board.count(f"inference#{i}") for i in self._copies]
        self._stepped = [board.count(f"env_step#{i}") for i in self._copies]
        flushed = [board.flushed(n) for n in range(board.lanes)]
        self._watched = np.array([*self._acted, *self._stepped, *flushed], np.int64)
        self._lane_of = {
            i: n for n, k in enumerate(p.lanes) for i in self._copies if f"env_step#{i}" in k.tasks
        }
        self._storing = [_store(work, graph, i) for i in self._copies]
        slots = range(p.slots["param_sync"])
        given = p, work.jobs, work.arrays, work.residency
        self._copying = [call(*given, "param_sync", slot) for slot in slots]
        self._others = {
            t: call(*given, t) for t in self._order if t not in ("replay_insert", "param_sync")
        }

    def segment(self, at: int) -> None:
        """Go on from iteration `at` with the transitions that wait by the arrays."""
        q = self.protocol.graph.repetition
        self.iteration, self._newest = at, max(at, self._warm) * q["param_sync"]
        for i in self._copies:
            acted, done = int(self.arrays[ACTED][i]), at * q[f"env_step#{i}"]
            if acted and not 0 <= self._newest - (acted - 1) <= self._bound:
                raise LaneError(
                    f"{ACTED} of copy {i} is {acted}: its transitions were acted with version "
                    f"{acted - 1} of the parameters, where the newest is {self._newest} and "
                    f"{self._bound} older at most may be"
                )
            self._granted[i], self._stored[i] = done, done - (acted > 0)
            self._version[i] = acted - 1
            self.board.write(self.board.count(granted(i)), done)

    def waits_for(self) -> list[str]:
        board, copies = self.board, self._copies
        return [f"env_step#{i}" for i in copies if board.read(self._stepped[i]) < self._granted[i]]

    def iterate(self, *, timed: bool) -> None:
        """One iteration; timed: with a clock around its calls."""
        takes = 0
        for task in self._order:
            begin = time.perf_counter_ns()
            if task == "replay_insert":
                for _ in self._copies:
                    self._take(self._rooms[takes])
                    takes += 1
            elif self.iteration < self._warm and task in self._learning:
                continue
            elif task == "param_sync":
                self._copy()
            else:
                self._others[task]()
                if timed:
                    finish(self._others[task])
            if timed:
                record_time(self.times_ns, task, time.perf_counter_ns() - begin)
        self.iteration += 1
        now = time.monotonic()
        if now - self._looked > SLEEP_S:
            self._looked = now
            self.look()

    def halt(self) -> None:
        board, copies = self.board, self._copies
        self.until(lambda: all(board.read(self._stepped[i]) == self._granted[i] for i in copies))
        for i in copies:
            self.arrays[ACTED][i] = self._version[i] + 1 if self._under_way(i) else 0

    def _take(self, room: Sequence[int]) -> None:
        """Store the rows of one copy.

        room: at index k − 1 the stores before the k-th param_sync from now on, this one included.
        """
        self._grant(room[self._bound])
        self.until(lambda: self._choice(room) is not None)
        copy = self._choice(room)
        assert copy is not None
        self._storing[copy]()
        age, seen = self._newest - self._version[copy], self.lags["policy_lag"]
        seen[age] = seen.get(age, 0) + 1
        self._stored[copy] += 1
        self._grant(room[self._bound] - 1)

    def _under_way(self, copy: int) -> bool:
        return self._granted[copy] > self._stored[copy]

    def _grant(self, room: int) -> None:
        """Let copies begin a step with the newest parameters, as long as `room` stores suffice for
        all steps under way."""
        board, busy = self.board, sum(map(self._under_way, self._copies))
        for i in self._copies:
            if busy < room and not self._under_way(i):
                busy += 1
                self._version[i], self._granted[i] = self._newest, self._granted[i] + 1
                board.write(board.count(version(i)), self._newest)
                lane, cell = self._lane_of[i], board.count(granted(i))
                sleeping = board.address + progress_counters.CELL * board.sleeps(0)
                value = self._granted[i]
                if progress_counters.publish(board.address, cell, value, sleeping, lane, lane + 1):
                    self.bells[lane].ring()

    def _choice(self, room: Sequence[int]) -> int | None:
        """Actor whose transitions to store next: first come, first served, unless the staleness
        deadline of another would be missed (earliest deadline first)."""
        due = sorted(
            (room[self._version[i] + self._bound - self._newest], i)
            for i in self._copies
            if self._under_way(i)
        )
        tight = next((end for place, (end, _) in enumerate(due, 1) if place >= end), sys.maxsize)
        ready = [
            (self._version[i], i)
            for end, i in due
            if end <= tight and self.board.read(self._stepped[i]) > self._stored[i]
        ]
        return min(ready)[1] if ready else None

    def _copy(self) -> None:
        """Copy the new parameters into a slot that no actor reads."""
        slots = len(self._copying)
        slot = slot_of(self._newest + 1, slots)

        def read(copy: int) -> bool:
            reading = self.board.read(self._acted[copy]) < self._granted[copy]
            return reading and slot_of(self._version[copy], slots) == slot

        self.until(lambda: not any(map(read, self._copies)), ALL)
        self._copying[slot]()
        self._newest += 1

    def until(self, true: Callable[[], bool], what: int = STEPS) -> None:
        """Wait until `true()`: spin, then sleep until `what` (STEPS or ALL).

        After every sleep look whether an actor has failed.
        """
        board, watched, mine = self.board, self._watched, self.board.sleeps(self.protocol.home)
        while not true():
            seen = board.cells[
                watched * (progress_counters.CELL // 8)
            ]  # one that is old is one changed
            if true():
                return
            if progress_counters.changed(board.address, watched, seen, self._spins):
                continue
            board.write(mine, what)
            if not progress_counters.changed(board.address, watched, seen, 0):
                self.bells[self.protocol.home].sleep(SLEEP_S)
            board.write(mine, 0)
            self.look()


def rooms(order: Sequence[str], copies: int, bound: int) -> list[list[int]]:
    """For every store of an iteration: the stores before each of the next `bound` + 1 param_syncs,
    that store included."""
    events = [t for t in order for _ in range(copies if t == "replay_insert" else 1)]
    events = [t for t in events if t in ("replay_insert", "param_sync")]
    found = []
    for first in (n for n, t in enumerate(events) if t == "replay_insert"):
        room, stores, at = list[int](), 0, first
        while len(room) <= bound:
            if events[at % len(events)] == "param_sync":
                room.append(stores)
            else:
                stores += 1
            at += 1
        found.append(room)
    return found


def _store(work: RunContext, graph: TaskGraph, copy: int) -> Call:
    """The call of replay_insert on the rows of one copy."""
    shares, job = work.protocol.split.shares, work.jobs["replay_insert"]
    kernel = resize_kernel(graph.task("replay_insert").kernel, shares[copy], sum(shares))
    first = sum(shares[:copy])
    rows: Buffers = {
        n: a[first : first + shares[copy]] if n.startswith("step.") else a
        for n, a in work.arrays.items()
    }
    lane = work.protocol.lane_of["replay_insert"]
    return work.residency.bound(job, rows, kernel=kernel, lane=lane)
