"""`RunContext`: everything that the lanes of a run share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

from pearl.planning.plan_validation import unfold_replicas
from pearl.planning.plans import load_plan
from pearl.runtime.environments.external_envs import FailureLog
from pearl.runtime.protocol import channels
from pearl.runtime.protocol.control_block import ControlBlock, WorkRange
from pearl.runtime.protocol.lane_recorder import UNTIMED, Sampling
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import Job, jobs_of_plan
from pearl.spec.reading import load_on
from pearl.spec.user_code import build_graph
from pearl_devices import Buffers, platform_json
from pearl_devices.system import WakeEvent


class RemoteLanes(Protocol):
    """Lanes of another host.

    lanes: numbers of the lanes.
    iterations: most iterations that one message between the hosts covers.
    """

    @property
    def lanes(self) -> tuple[int, ...]: ...

    @property
    def iterations(self) -> int: ...

    def worker(self, context: RunContext, control: ControlBlock) -> Any:
        """Make the worker (`pearl.runtime.lanes.workers.Worker`) that drives these lanes."""


@dataclass
class RunContext:
    """The plan, the arrays and the options that the lanes of a run share.

    protocol: schedules of all lanes.
    jobs: task → the call that runs the task.
    arrays: name → array of the run, in the host's memory.
    residency: copies of arrays on devices with memory of their own.
    learning: tasks that pass their tokens without work before learning begins.
    span: iterations in which tasks do real work.
    worker_config: spec, platform, plan and options as JSON; a worker process rebuilds the run from
        them.
    env_time_limit_s: seconds that a step of an external environment may take.
    jitter_s: longest random sleep before a call, for tests.
    pace_s: least seconds between iterations of the lane that updates; tokens slow the other lanes.
    env_snapshots: name of a task → snapshots from which its external environments are restored.
    restart_envs: whether the run goes on after an environment has failed.
    log: failures of lanes and environments.
    memory: shared memory of the arrays; None unless lanes run in processes.
    wake_events: one for every lane and remote lane group, set when a counter has changed that the
        lane or group waits for.
    remote_groups: lanes of other hosts.
    sampling: the rounds whose calls are timed.
    """

    protocol: ExecutionSchedule
    jobs: Mapping[str, Job]
    arrays: Buffers
    residency: Residency
    learning: Sequence[str]
    span: WorkRange
    worker_config: Mapping[str, Any]
    env_time_limit_s: float
    jitter_s: float = 0.0
    pace_s: float | None = None
    env_snapshots: Mapping[str, Any] = field(default_factory=dict)
    restart_envs: bool = False
    log: FailureLog = field(default_factory=FailureLog)
    memory: channels.SharedArrays | None = None
    wake_events: list[WakeEvent] = field(default_factory=list)
    remote_groups: Sequence[RemoteLanes] = ()
    sampling: Sampling = UNTIMED

    @property
    def any_order(self) -> bool:
        """Whether the learner stores transitions of whichever actor is ready first."""
        return bool(self.worker_config["any_order"])

    def to_json(self) -> dict[str, Any]:
        """Describe the run to another process, which calls `from_json`."""
        return {
            **self.worker_config,
            "learning": list(self.learning),
            "span": astuple(self.span),
            "jitter_s": self.jitter_s,
            "env_snapshots": dict(self.env_snapshots),
            "env_time_limit_s": self.env_time_limit_s,
            "sampling": astuple(self.sampling),
        }

    @classmethod
    def from_json(cls, config: Mapping[str, Any], arrays: Buffers) -> RunContext:
        """Rebuild a run in a worker process or on another host, over that process's arrays."""
        system = load_on(platform_json.from_json(config["platform"]), config["spec"])
        whole = unfold_replicas(load_plan(config["plan"]), build_graph(system))
        protocol = ExecutionSchedule(*whole)
        jobs = jobs_of_plan(
            protocol.plan, protocol.graph, system.platform, emulate=config["emulate"]
        )
        return cls(
            protocol,
            jobs,
            arrays,
            Residency(jobs, arrays),
            config["learning"],
            WorkRange(*config["span"]),
            config,
            jitter_s=config["jitter_s"],
            env_snapshots=config["env_snapshots"],
            env_time_limit_s=config["env_time_limit_s"],
            restart_envs=system.train.on_env_failure == "restart",
            sampling=Sampling(*config["sampling"]),
        )
