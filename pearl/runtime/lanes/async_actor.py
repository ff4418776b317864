"""Asynchronous actor: one copy of the acting tasks, in a thread or a process of its own.

The lane that learns (`async_learner`) alone writes two words for each copy: the steps granted so
far, and the version of the parameters for the last of them. The copy alone writes the counts of its
inference and its env_step. A copy has one place for its next transitions: no step is granted before
the transitions of the step before are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

import numpy as np

from pearl.runtime.environments import external_envs
from pearl.runtime.environments.external_envs import Environments
from pearl.runtime.lanes.lane_runner import SLEEP_S, SPINS
from pearl.runtime.protocol import channels, progress_counters, recovery
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import Job, record_time
from pearl_devices import Buffers, Call
from pearl_devices.base import finish

STEPS, ALL = 1, 2
"""Values of the learning lane's sleep cell: it sleeps until a copy has stepped, or until a copy has
done anything."""

SAMPLED = 64
"""Steps of a copy of which one is timed."""

ONE = np.ones(1, np.int64)


def words(protocol: ExecutionSchedule) -> tuple[str, ...]:
    """The counts that the lanes of an any-order plan share: of the tasks, and the words above."""
    copies = range(len(protocol.split.shares))
    return (
        *(t.name for t in protocol.graph.tasks),
        *(w for i in copies for w in (granted(i), version(i))),
    )


def granted(copy: int) -> str:
    return f"granted#{copy}"


def version(copy: int) -> str:
    return f"version#{copy}"


def copy_of(protocol: ExecutionSchedule, number: int) -> int | None:
    """The copy whose tasks a lane has; None for the lane that learns."""
    parts = [protocol.graph.task(t).part for t in protocol.lanes[number].tasks]
    return parts[0].replica if parts[0] else None


def called(protocol: ExecutionSchedule, number: int) -> str:
    """A lane by name."""
    copy, name = copy_of(protocol, number), protocol.lanes[number].name
    return name if copy is None else f"{name} (actor {copy})"


class AsyncActor:
    """A copy with its calls bound, in the place of a `LaneRunner`.

    look: called after every sleep; may raise Stopped.
    settled, environments, anew: as in `LaneRunner`.
    """

    def __init__(
        self,
        protocol: ExecutionSchedule,
        number: int,
        jobs: Mapping[str, Job],
        arrays: Buffers,
        board: ControlBlock,
        bells: Sequence[WakeEvent],
        residency: Residency,
        look: Callable[[], None],
        *,
        spins: int = SPINS,
        anew: bool = False,
    ) -> None:
        copy = copy_of(protocol, number)
        assert copy is not None
        self.number, self.board, self.bells, self.look = number, board, bells, look
        self.name, self.spins, self._home = called(protocol, number), spins, protocol.home
        self.times_ns: dict[str, list[int]] = {}
        self.lags: dict[str, dict[int, int]] = {}
        self.settled: Callable[[int], None] | None = None
        self._tasks = f"inference#{copy}", f"env_step#{copy}"
        self._counts = tuple(board.count(t) for t in self._tasks)
        self._granted = np.array([board.count(granted(copy))], np.int64)
        self._version = board.count(version(copy))
        self._acting = [
            call(protocol, jobs, arrays, residency, self._tasks[0], slot)
            for slot in range(protocol.slots["param_sync"])
        ]
        self._stepping = call(protocol, jobs, arrays, residency, self._tasks[1])
        job, part = jobs[self._tasks[1]], protocol.graph.task(self._tasks[1]).part
        found = external_envs.external_envs_of(job, self._stepping)
        self.environments: Environments = {}
        if found is not None and part:
            found.first = sum(part.shares[:copy])
            self.environments = {job.name: found}
        if anew:
            firing = next(f for f in protocol.lanes[number].firings if f.tasks == self._tasks[1:])
            (self._stepping,) = recovery.marked(protocol, firing, jobs, arrays, [self._stepping])

    def follow(self) -> None:
        """Do the steps that are granted, until told to stop. Between segments all are done."""
        board, mine = self.board, self.board.sleeps(self.number)
        number, flushed = board.read(self._counts[1]), board.read(board.flushed(self.number))
        while not board.read(board.stop):
            flush = board.read(board.flush)  # before what is granted: no grant follows it
            if progress_counters.spin(board.address, self._granted, ONE, ONE, number, self.spins):
                self._step(number)
                number += 1
            elif flush > flushed:
                if self.settled is not None:
                    self.settled(flush)
                self._publish(board.flushed(self.number), flush)
                flushed = flush
            else:
                board.write(mine, 1)
                granted = progress_counters.reached(board.address, self._granted, ONE, ONE, number)
                if not granted and board.read(board.flush) == flush:
                    self.bells[self.number].sleep(SLEEP_S)
                board.write(mine, 0)
                self.look()

    def _step(self, number: int) -> None:
        """Do step `number`. Its actions may be there, from a process that has died since."""
        timed, begin = number % SAMPLED == 0, perf_counter_ns()
        if self.board.read(self._counts[0]) <= number:
            acting = self._acting[slot_of(self.board.read(self._version), len(self._acting))]
            acting()
            if timed:
                finish(acting)
                record_time(self.times_ns, self._tasks[0], perf_counter_ns() - begin)
            self._publish(self._counts[0], number + 1, ALL)
            begin = perf_counter_ns()
        self._stepping()
        if timed:
            finish(self._stepping)
            record_time(self.times_ns, self._tasks[1], perf_counter_ns() - begin)
        self._publish(self._counts[1], number + 1)

    def _publish(self, cell: int, value: int, until: int = STEPS) -> None:
        """Set a count, and wake the learning lane if it sleeps until `until` or less."""
        board, home = self.board, self._home
        board.write(cell, value)
        if board.read(board.sleeps(home)) >= until:
            self.bells[home].ring()


def slot_of(version: int, slots: int) -> int:
    """The slot of a version of the parameters, that of param_sync number `version` − 1 (from 0)."""
    return (version - 1) % slots


def call(
    protocol: ExecutionSchedule,
    jobs: Mapping[str, Job],
    arrays: Buffers,
    residency: Residency,
    task: str,
    slot: int = 0,
) -> Call:
    """A task's call on the parameters in `slot`."""
    job = jobs[task]
    seen = channels.view(protocol, arrays, job.kernel, task, {"param_sync": slot})
    return residency.bound(job, seen, lane=protocol.lane_of[task])
