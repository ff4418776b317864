"""The loop of a training run: iterations of the lanes, evaluation, metrics and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.planning.runs import Progress, Status
from pearl.runtime import waiting
from pearl.runtime.clock import Clock
from pearl.runtime.protocol import single_lane
from pearl.training.evaluation import Evaluation
from pearl.training.interruption import Interruption
from pearl.training.metrics import Metrics, mean_return
from pearl.training.replanning import LOOKS, Watch, Window
from pearl.training.state import State
from pearl_devices import Buffers
from pearl_devices.base import EnvironmentFailed

STRETCH_S = 0.2
"""Seconds between two looks at clock, signals and losses, or one iteration where that is longer."""

ROUNDS = 64
"""Iterations between two looks at most, so that every call is timed often enough."""

PROGRESS_S = 0.25
"""Seconds between two calls of a progress listener."""


@dataclass(frozen=True)
class Milestones:
    """Iterations at which a run does more than train.

    total: the last iteration.
    warm: the iteration from which gradient steps are taken.
    steady: the iteration from which rates are counted.
    evaluate_every, checkpoint_every, metrics_every: iterations between two; 0 is never.
    """

    total: int
    warm: int
    steady: int
    evaluate_every: int
    checkpoint_every: int
    metrics_every: int

    def next_look(self, at: int) -> int:
        """The next iteration at which the loop looks at clock, signals and losses, however fast it
        is.
        """
        looks = [self.next_stop(at), *(s for s in (self.warm, self.steady) if s > at)]
        if self.metrics_every:
            looks.append((at // self.metrics_every + 1) * self.metrics_every)
        return min(looks)

    def next_stop(self, at: int) -> int:
        """The next iteration at which all lanes must be at the same one."""
        stops = [self.total]
        for every in (self.evaluate_every, self.checkpoint_every):
            if every:
                stops.append((at // every + 1) * every)
        return min(stops)


@dataclass
class TrainingLoop:
    """The parts that the loop of a run works with.

    graph, plan: as planned, the replicas of a task as one.
    arrays: all arrays of the run, by name.
    lanes: runs iterations.
    jobs: every call of an iteration, each once.
    milestones: the iterations at which something happens besides training.
    clock: of the host, or the virtual one of an emulated run.
    evaluate: judges the current policy.
    keep: makes the current policy the best one.
    settled: is told the iteration that has been reached.
    save: writes a checkpoint; None without a run folder. The last one is not the loop's.
    due: whether to write one where the milestones name one.
    metrics: the file of the metrics; None without a run folder.
    progress: the listener of the user.
    interruption: the signals heard.
    watch: says at checkpoints whether to look for another plan; None: never.
    raised: the exception of `progress`.
    """

    graph: TaskGraph
    plan: Plan
    arrays: Buffers
    lanes: Lanes
    jobs: Sequence[single_lane.Job]
    milestones: Milestones
    clock: Clock
    evaluate: Callable[[], Evaluation]
    keep: Callable[[], None]
    settled: Callable[[int], None]
    save: Callable[[State], None] | None
    due: Callable[[], bool]
    metrics: Path | None
    progress: Callable[[Progress], None] | None
    interruption: Interruption
    watch: Watch | None = None
    raised: BaseException | None = None


class Lanes(Protocol):
    """Interface between the loop and the lanes of a plan."""

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Run iterations up to `end` or beyond, `stop` at the latest; returns the iteration
        reached.

        At `stop` all lanes are at the same iteration.

        timed: with a clock around the calls of one iteration.
        """

    def halt(self) -> int:
        """Bring all lanes to the same iteration soon; returns that iteration."""

    def fetch(self, *beginnings: str) -> None:
        """Bring arrays from devices with memory of their own, by the beginnings of their names."""

    def cpu_s(self) -> float:
        """User and system seconds spent so far, those of other processes included."""

    def threads(self) -> Mapping[str, list[waiting.Thread]]:
        """Lane → the threads that run it."""


def iterate(loop: TrainingLoop, state: State) -> Status | Literal["off"]:
    """Run iterations from `state` to the last one.

    Returns the status of the run, or `off` right after a checkpoint where the period is off from
    the predicted one (`loop.watch`).
    """
    losses = {name: a for name, a in loop.arrays.items() if name.startswith("loss.")}
    marks, asked, shown, rounds = loop.milestones, loop.interruption, 0.0, 1
    window: Window | None = None
    loop.settled(state.iteration)
    with Metrics(loop, state) as metrics:
        _evaluate(loop, state)
        while state.iteration < marks.total:
            at, stop = state.iteration, asked.asked or state.log.failure is not None
            mark = marks.next_look(at)
            cpu, waits = loop.lanes.cpu_s(), waiting.waits(loop.lanes.threads())
            begin_s = time.perf_counter()
            loop.clock.start()
            if not stop:
                end = loop.lanes.run(
                    min(mark, at + rounds), marks.next_stop(at), timed=at >= marks.warm
                )
                stop = asked.asked or state.log.failure is not None
            if stop:
                end = loop.lanes.halt()
            wall_s, cpu_s = loop.clock.stop(end), loop.lanes.cpu_s() - cpu
            rounds = 1 if end == marks.warm else stretch(rounds, end - at, begin_s)
            later = waiting.waits(loop.lanes.threads())
            waited_s = waiting.between(waits, later, loop.plan.bottleneck.name)
            state.iteration = end
            loop.settled(end)
            loop.lanes.fetch("loss.", "episode.")
            _count(loop, state, end - at, wall_s, cpu_s, waited_s)
            if at >= marks.warm:  # the first stretch may still load and compile: it is not counted
                window = window.longer() if window else Window(end, state.wall_s)
            bad = [name for name, loss in losses.items() if not np.isfinite(loss[0])]
            if bad:
                loop.lanes.fetch("learner.")
            if bad and (end == mark or not finite(loop.arrays)):
                state.log.failure = (
                    f"{', '.join(bad)} was not finite by env step {end * loop.graph.env_steps}; "
                    "the last checkpoint is untouched"
                )
                return "failed"
            phase = "warm-up" if at < marks.warm else "training"
            every = marks.evaluate_every
            if every and end > at and end % every == 0 and end >= marks.warm:
                phase, state.evaluation_due = "evaluation", True
                _evaluate(loop, state)
                stop = asked.asked or state.log.failure is not None
            if marks.metrics_every and end // marks.metrics_every > at // marks.metrics_every:
                metrics.row(state)
            due = marks.checkpoint_every and end % marks.checkpoint_every == 0
            off = False
            if loop.save and (stop or (due and end < marks.total and loop.due())):
                try:
                    loop.save(state)
                    if loop.watch and due and window and window.looks >= LOOKS:
                        off = loop.watch.due(window, end, state.wall_s) and end < marks.total
                        window = Window(end, state.wall_s)
                except OSError as error:  # a full disk: the one before is whole, and others follow
                    state.log.note(unwritten(state, loop, error), restarts=0)
            if stop:
                return "interrupted" if state.log.failure is None else "failed"
            now = time.perf_counter()
            if loop.progress and (now - shown >= PROGRESS_S or end == marks.total):
                shown = now
                try:
                    loop.progress(_progress(loop, state, (end - at) / max(wall_s, 1e-12), phase))
                except (Exception, SystemExit) as error:
                    loop.raised = error
                    state.log.failure = " ".join(
                        f"the progress listener raised {type(error).__name__}: {error}".split()
                    )
                    continue
            if off:
                return "off"
    return "done" if state.log.failure is None else "failed"


def stretch(rounds: int, done: int, begin_s: float) -> int:
    """Iterations of the next stretch. Their number changes no results, which depend on iterations
    alone.

    rounds: the most that the last stretch could have.
    done: iterations of the last stretch, since `begin_s`.
    """
    each_s = max(time.perf_counter() - begin_s, 1e-9) / max(done, 1)
    return max(1, min(ROUNDS, 2 * rounds, int(STRETCH_S / each_s)))


def finite(arrays: Buffers) -> bool:
    """Whether all learned arrays are finite.

    A loss that is not finite while these are may be finite again at the next iteration. Whether it
    ends the run must not depend on where a stretch happened to end.
    """
    return all(np.isfinite(a).all() for name, a in arrays.items() if name.startswith("learner."))


def _evaluate(loop: TrainingLoop, state: State) -> None:
    """Evaluate the policy if that is due. It stays due where a signal ends the evaluation."""
    if not state.evaluation_due:
        return
    try:
        found = loop.interruption.unless_asked(loop.evaluate)
    except EnvironmentFailed as error:
        state.log.failure = str(error)
        return
    if found is None:
        return
    state.evaluation_due = False
    if found.returns:
        state.last_mean = float(np.mean(found.returns))
        if state.best_mean is None or state.last_mean >= state.best_mean:
            state.best_mean = state.last_mean
            loop.keep()


def unwritten(state: State, loop: TrainingLoop, error: OSError) -> str:
    """A sentence about a checkpoint that could not be written."""
    where = f" ({error.filename})" if error.filename else ""
    return (
        f"the checkpoint at env step {state.iteration * loop.graph.env_steps} could not be "
        f"written: {error.strerror}{where}; the one before, if there is one, is whole"
    )


def _count(
    loop: TrainingLoop,
    state: State,
    rounds: int,
    wall_s: float,
    cpu_s: float,
    waited_s: float | None,
) -> None:
    """Add a stretch to the state. steady.waited_s stays as long as every stretch had a value."""
    state.wall_s += wall_s
    state.cpu_s += cpu_s
    if state.iteration - rounds >= loop.milestones.steady:
        before_s = state.steady.pop("waited_s", None if state.steady["wall_s"] else 0.0)
        if before_s is not None and waited_s is not None and not loop.clock.simulated:
            state.steady["waited_s"] = before_s + min(waited_s, wall_s)
        state.steady["wall_s"] += wall_s
        state.steady["cpu_s"] += cpu_s
        state.steady["env_steps"] += rounds * loop.graph.env_steps
        state.steady["updates"] += rounds * loop.graph.updates


def _progress(loop: TrainingLoop, state: State, rounds_per_s: float, phase: str) -> Progress:
    return Progress(
        env_steps=state.iteration * loop.graph.env_steps,
        total_steps=loop.milestones.total * loop.graph.env_steps,
        mean_return=mean_return(loop.arrays),
        env_steps_per_s=rounds_per_s * loop.graph.env_steps,
        predicted_env_steps_per_s=loop.plan.rates["env_steps_per_s"],
        eval_mean=state.last_mean,
        phase=phase,
    )
