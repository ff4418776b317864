"""`RunContext`: everything that the lanes of a run share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Protocol as Interface

from pearl.runtime.environments.external_envs import FailureLog
from pearl.runtime.protocol import channels
from pearl.runtime.protocol.control_block import ControlBlock, WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import Job
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.runtime.lanes.workers import Worker


class RemoteLanes(Interface):
    """Lanes of another host.

    lanes: their numbers.
    iterations: that a message between the hosts brings.
    """

    @property
    def lanes(self) -> tuple[int, ...]: ...

    @property
    def iterations(self) -> int: ...

    def worker(self, work: RunContext, board: ControlBlock) -> Worker:
        """The worker that stands for the lanes here."""


@dataclass
class RunContext:
    """The plan, the arrays and the options that the lanes of a run share.

    jobs: task → the call that runs it.
    residency: of the arrays on devices with memory of their own.
    learning: tasks that pass their tokens without work before learning begins.
    span: the iterations in which tasks do real work.
    about: spec, plan and options as JSON, from which a worker process builds the same.
    jitter_s: longest random sleep before a call, for tests.
    pace_s: least seconds between iterations of the lane that updates; tokens hold the others to it.
    restored: brings environments outside the arrays back: name of a task → their snapshots.
    env_time_limit_s: seconds that a step of such an environment may take.
    restart_envs: the run goes on after an environment has failed.
    log: failures of lanes and environments.
    memory: the shared memory of the arrays, where lanes run in processes.
    bells: one for every lane and island, rung when a count that it waits for has changed.
    islands: the lanes of other hosts.
    """

    protocol: ExecutionSchedule
    jobs: Mapping[str, Job]
    arrays: Buffers
    residency: Residency
    learning: Sequence[str]
    span: WorkRange
    about: Mapping[str, Any]
    jitter_s: float = 0.0
    pace_s: float | None = None
    restored: Mapping[str, Any] = field(default_factory=dict)
    env_time_limit_s: float = 60.0
    restart_envs: bool = False
    log: FailureLog = field(default_factory=FailureLog)
    memory: channels.SharedArrays | None = None
    bells: list[WakeEvent] = field(default_factory=list)
    islands: Sequence[RemoteLanes] = ()
