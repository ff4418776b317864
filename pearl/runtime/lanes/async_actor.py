"""Asynchronous actor: one replica of the acting tasks, in a thread or a process.

Only the learner (`async_learner`) writes two counters of each actor: the steps granted so far, and
the version of the parameters for the last granted step. Only the actor writes the counts of its
act and step. An actor holds the transitions of one step: the learner grants the next
step after it has stored them.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from pearl.runtime.environments import external_envs
from pearl.runtime.environments.external_envs import Environments
from pearl.runtime.lanes.lane_runner import SLEEP_S, SPINS
from pearl.runtime.protocol import channels, progress_counters, recovery
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.lane_recorder import LaneRecorder, Place, Sampling, record_time
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.run_context import RunContext
from pearl_devices import Call
from pearl_devices.base import finish

STEPS, ALL = 1, 2
"""Values of the learner's sleep cell: the learner sleeps until an actor has stepped, or until an
actor has done anything."""

TIMING_INTERVAL = 64
"""An actor times one step of this many."""

ONE = np.ones(1, np.int64)


def grant_counters(protocol: ExecutionSchedule) -> tuple[str, ...]:
    """Names of the counters that only the learner of an any-order plan writes."""
    replicas = range(len(protocol.split.shares))
    return tuple(name for i in replicas for name in (granted_counter(i), version_counter(i)))


def granted_counter(copy: int) -> str:
    """Return the counter of the steps granted to an actor."""
    return f"granted#{copy}"


def version_counter(copy: int) -> str:
    """Return the counter of the parameter version of an actor's last granted step."""
    return f"version#{copy}"


def copy_of(protocol: ExecutionSchedule, number: int) -> int | None:
    """Return the actor whose tasks a lane has; None for the learner."""
    parts = [protocol.graph.task(t).part for t in protocol.lanes[number].tasks]
    return parts[0].replica if parts[0] else None


def lane_name(protocol: ExecutionSchedule, number: int) -> str:
    """Return the name of a lane."""
    copy, name = copy_of(protocol, number), protocol.lanes[number].name
    return name if copy is None else f"{name} (actor {copy})"


class AsyncActor:
    """An actor with its calls bound. It has the interface of `LaneRunner` that workers use.

    poll: called after every sleep; may raise StopRequested.
    on_segment_end, environments, restarted_envs: as in `LaneRunner`.
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
        protocol, jobs = context.protocol, context.jobs
        copy = copy_of(protocol, number)
        assert copy is not None
        self.number, self.control, self.poll = number, control, poll
        self.wake_events, self.spins, self._home = context.wake_events, spins, protocol.home
        self.name = lane_name(protocol, number)
        self.times_ns: dict[str, list[int]] = {}
        self.lags: dict[str, dict[int, int]] = {}
        self.on_segment_end: Callable[[int], None] | None = None
        self._tasks = f"act#{copy}", f"step#{copy}"
        self._counts = tuple(control.count_cell(t) for t in self._tasks)
        self.recorder = LaneRecorder(
            self.name, [Place(t) for t in self._tasks], _steps_kept(context, self._tasks[1])
        )
        self._granted = np.array([control.count_cell(granted_counter(copy))], np.int64)
        self._version = control.count_cell(version_counter(copy))
        self._acting = [
            bind_to_slot(context, self._tasks[0], slot) for slot in range(protocol.slots["sync"])
        ]
        self._stepping = bind_to_slot(context, self._tasks[1])
        job, part = jobs[self._tasks[1]], protocol.graph.task(self._tasks[1]).part
        env = external_envs.external_envs_of(job, self._stepping)
        self.environments: Environments = {}
        if env is not None and part:
            env.first = sum(part.shares[:copy])
            self.environments = {job.name: env}
        if restarted_envs:
            firing = next(f for f in protocol.lanes[number].firings if f.tasks == self._tasks[1:])
            (self._stepping,) = recovery.with_episode_restart(context, firing, [self._stepping])

    def record(self) -> dict[str, Any]:
        """Return what the recorder has noted."""
        return self.recorder.to_json()

    def serve(self) -> None:
        """Do the granted steps until the run stops. At the end of a segment all are done."""
        with self.recorder.running():
            self._serve()

    def _serve(self) -> None:
        control, mine = self.control, self.control.sleep_cell(self.number)
        number = control.read(self._counts[1])
        flushed = control.read(control.flushed_cell(self.number))
        while not control.read(control.stop_cell):
            flush = control.read(control.flush_cell)  # read before the grants: none follows
            begin = perf_counter_ns()
            granted = progress_counters.spin_until_reached(
                control.address, self._granted, ONE, ONE, number, self.spins
            )
            self.recorder.waiting_ns[0] += perf_counter_ns() - begin
            if granted:
                self.recorder.begin_timed()
                self._step(number)
                number += 1
            elif flush > flushed:
                if self.on_segment_end is not None:
                    self.on_segment_end(flush)
                self._publish(control.flushed_cell(self.number), flush)
                flushed = flush
            else:
                begin = perf_counter_ns()
                control.write(mine, 1)
                granted = progress_counters.counts_reached(
                    control.address, self._granted, ONE, ONE, number
                )
                if not granted and control.read(control.flush_cell) == flush:
                    self.wake_events[self.number].wait(SLEEP_S)
                control.write(mine, 0)
                self.recorder.waiting_ns[0] += perf_counter_ns() - begin
                self.poll()

    def _step(self, number: int) -> None:
        """Do step `number`. A process that has died may have chosen its actions."""
        timed, begin = number % TIMING_INTERVAL == 0, perf_counter_ns()
        if self.control.read(self._counts[0]) <= number:
            acting = self._acting[slot_of(self.control.read(self._version), len(self._acting))]
            acting()
            self.recorder.add(0, number, begin, perf_counter_ns())
            if timed:
                finish(acting)
                record_time(self.times_ns, self._tasks[0], perf_counter_ns() - begin)
            self._publish(self._counts[0], number + 1, ALL)
            begin = perf_counter_ns()
        self._stepping()
        self.recorder.add(1, number, begin, perf_counter_ns())
        if timed:
            finish(self._stepping)
            record_time(self.times_ns, self._tasks[1], perf_counter_ns() - begin)
        self._publish(self._counts[1], number + 1)

    def _publish(self, cell: int, value: int, until: int = STEPS) -> None:
        """Set a count, and wake the learner if its sleep cell is at least `until`."""
        control, home = self.control, self._home
        control.write(cell, value)
        if control.read(control.sleep_cell(home)) >= until:
            self.wake_events[home].set()


def _steps_kept(context: RunContext, task: str) -> Sampling:
    """Return the sampling of an actor: every step is timed; those of the window are kept."""
    s, steps = context.sampling, context.protocol.graph.repetition[task]
    return Sampling(1, s.first * steps, s.last * steps)


def slot_of(version: int, slots: int) -> int:
    """Return the slot that holds a version of the parameters (versions count from 1)."""
    return (version - 1) % slots


def bind_to_slot(context: RunContext, task: str, slot: int = 0) -> Call:
    """Bind the call of a task to the parameters in `slot`."""
    protocol, job = context.protocol, context.jobs[task]
    views = channels.task_view(protocol, context.arrays, job.kernel, task, {"sync": slot})
    return context.residency.bind_call(job, views, lane=protocol.lane_of[task])
