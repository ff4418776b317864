"""What the loop of a run works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.runtime import cpu_wait
from pearl.runtime.clock import Clock
from pearl.runtime.protocol import single_lane
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.evaluations.evaluator import Evaluator
from pearl.training.interruption import Interruption
from pearl.training.milestones import Milestones
from pearl.training.replanning import DriftMonitor
from pearl.training.steering import CallbackList, Which
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.training.policy import Policy


class Lanes(Protocol):
    """Interface between the loop and the lanes of a plan.

    is_single_lane: there is one lane, so nothing happens between two calls of `run`.
    interruptible: the stop word (`loop.stop`) may be set, by which `run` returns amid an iteration.
    """

    @property
    def is_single_lane(self) -> bool: ...

    @property
    def interruptible(self) -> bool: ...

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Run iterations up to `end` or beyond, `stop` at the latest; returns the iteration
        reached.

        At `stop` all lanes are at the same iteration.

        timed: with a clock around the calls of one iteration.
        """

    def halt(self) -> int:
        """Bring all lanes to the same iteration soon; returns that iteration. Where `run` has
        returned amid one, they stay there, and none runs on.
        """

    def under_way(self) -> dict[str, int]:
        """How far the lanes are in the iteration amid which they stay; empty: amid none."""

    def fetch(self, *beginnings: str) -> None:
        """Bring arrays from devices with memory of their own, by the beginnings of their names."""

    def cpu_s(self) -> float:
        """User and system seconds spent so far, those of other processes included."""

    def threads(self) -> Mapping[str, list[cpu_wait.Thread]]:
        """Lane → the threads that run it."""


@dataclass
class LoopContext:
    """The parts that the loop of a run works with.

    graph, plan: as planned, the replicas of a task as one.
    arrays: all arrays of the run, by name.
    lanes: runs iterations.
    jobs: every call of an iteration, each once.
    milestones: the iterations at which something happens besides training.
    clock: of the host, or the virtual one of an emulated run.
    judge: evaluates policies.
    settled: is told the iteration that has been reached.
    save: writes a checkpoint; None without a run folder. The last one is not the loop's.
    due: whether to write one where the milestones name one.
    metrics: the file of the metrics; None without a run folder.
    steering: the callbacks of the user.
    interruption: the signals heard.
    latest: the latest evaluation of this process, and the iteration of its policy.
    watch: says at checkpoints whether to look for another plan; None: never.
    policies: copies of the policies, for callbacks.
    """

    graph: TaskGraph
    plan: Plan
    arrays: Buffers
    lanes: Lanes
    jobs: Sequence[single_lane.Job]
    milestones: Milestones
    clock: Clock
    evaluator: Evaluator
    settled: Callable[[int], None]
    save: Callable[[RunState], None] | None
    due: Callable[[], bool]
    metrics: Path | None
    steering: CallbackList
    policies: Callable[[Which], Policy]
    interruption: Interruption
    drift_monitor: DriftMonitor | None = None
    latest: tuple[Evaluation, int] | None = None

    def ending(self, state: RunState) -> bool:
        """Whether the run is to end before its last iteration."""
        state.log.failure = state.log.failure or self.steering.failure
        asked = self.interruption.asked or self.steering.stopped is not None
        return asked or state.log.failure is not None
