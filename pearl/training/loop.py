"""One training run: rounds of the lane, evaluation, metrics, checkpoints, and its `Run`."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.planning.runs import Progress, Run, Status, TaskTiming
from pearl.runtime import waiting
from pearl.runtime.clock import Clock
from pearl.runtime.protocol import single_lane
from pearl.training.evaluation import Evaluation
from pearl.training.interruption import Interruption
from pearl.training.metrics import Metrics, episode_count, mean_return
from pearl.training.replanning import LOOKS, Watch, Window, drift
from pearl.training.state import State
from pearl_devices import Buffers
from pearl_devices.base import EnvironmentFailed
from pearl_estimators.energy import Energy, total

STRETCH_S = 0.2
"""Seconds between two looks at clock, signals and losses, or one iteration where that is longer."""

ROUNDS = 64
"""Iterations between two looks at most, so that every call is timed often enough."""

PROGRESS_S = 0.25
"""Seconds between two calls of a progress listener."""

ROWS = 200
"""Rows of metrics.csv in a whole run, about."""


@dataclass(frozen=True)
class Schedule:
    """Iterations at which something happens besides training; 0 is never.

    warm: iterations before learning starts. steady: from here rates are counted.
    """

    total: int
    warm: int
    steady: int
    evaluate_every: int
    checkpoint_every: int
    metrics_every: int

    def next_look(self, at: int) -> int:
        """The next iteration at which the loop looks at clock, signals and losses however fast it
        is."""
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


@dataclass(frozen=True)
class Finals:
    """The final evaluation, of the best policy and of that of the end: one where these are one."""

    best: Evaluation
    last: Evaluation


@dataclass
class Job:
    """What one run works on; the trainer fills it in.

    lanes: what runs iterations. jobs: every call there is, once. evaluate: judges the current
    policy. save: writes a checkpoint; due: whether to, where the schedule names one. The one at the
    end is the trainer's. keep: makes the current policy the best one. settled: told
    the iteration that has been reached. interruption: the signals heard. watch: says at checkpoints
    whether to look for another plan; None: never. raised: what `progress` raised.
    """

    graph: TaskGraph
    plan: Plan
    arrays: Buffers
    lanes: Lanes
    jobs: Sequence[single_lane.Job]
    schedule: Schedule
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
    """The lanes of a plan, as the loop drives them."""

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Iterations up to `end` or beyond, `stop` at the latest, where all lanes are at the same
        one; how far they came. timed: with a clock around the calls of one of them."""

    def halt(self) -> int:
        """Bring all lanes to the same iteration soon; which one."""

    def cpu_s(self) -> float:
        """User and system seconds spent so far, those of other processes included."""

    def threads(self) -> Mapping[str, list[waiting.Thread]]:
        """Lane → the threads that run it."""


def train(job: Job, state: State) -> Status | Literal["off"]:
    """Run iterations from `state` to the end of the schedule. `off`: right after a checkpoint,
    because the period is off from the plan's (`job.watch`)."""
    losses = {name: a for name, a in job.arrays.items() if name.startswith("loss.")}
    plan, asked, shown, rounds = job.schedule, job.interruption, 0.0, 1
    window: Window | None = None
    job.settled(state.iteration)
    with Metrics(job, state) as metrics:
        _evaluate(job, state)
        while state.iteration < plan.total:
            at, stop = state.iteration, asked.asked or state.log.failure is not None
            mark = plan.next_look(at)
            cpu, waits = job.lanes.cpu_s(), waiting.waits(job.lanes.threads())
            begin_s = time.perf_counter()
            job.clock.start()
            if not stop:
                end = job.lanes.run(
                    min(mark, at + rounds), plan.next_stop(at), timed=at >= plan.warm
                )
                stop = asked.asked or state.log.failure is not None
            if stop:
                end = job.lanes.halt()
            wall_s, cpu_s = job.clock.stop(end), job.lanes.cpu_s() - cpu
            rounds = 1 if end == plan.warm else stretch(rounds, end - at, begin_s)
            later = waiting.waits(job.lanes.threads())
            waited_s = waiting.between(waits, later, job.plan.bottleneck.name)
            state.iteration = end
            job.settled(end)
            _count(job, state, end - at, wall_s, cpu_s, waited_s)
            if at >= plan.warm:  # the first stretch may still load and compile: it is not counted
                window = window.longer() if window else Window(end, state.wall_s)
            bad = [name for name, loss in losses.items() if not np.isfinite(loss[0])]
            if bad and (end == mark or not finite(job.arrays)):
                state.log.failure = (
                    f"{', '.join(bad)} was not finite by env step {end * job.graph.env_steps}; the "
                    "last checkpoint is untouched"
                )
                return "failed"
            phase = "warm-up" if at < plan.warm else "training"
            every = plan.evaluate_every
            if every and end > at and end % every == 0 and end >= plan.warm:
                phase, state.evaluation_due = "evaluation", True
                _evaluate(job, state)
                stop = asked.asked or state.log.failure is not None
            if plan.metrics_every and end // plan.metrics_every > at // plan.metrics_every:
                metrics.row(state)
            due = plan.checkpoint_every and end % plan.checkpoint_every == 0
            off = False
            if job.save and (stop or (due and end < plan.total and job.due())):
                try:
                    job.save(state)
                    if job.watch and due and window and window.looks >= LOOKS:
                        off = job.watch.due(window, end, state.wall_s) and end < plan.total
                        window = Window(end, state.wall_s)
                except OSError as error:  # a full disk: the one before is whole, and others follow
                    state.log.note(unwritten(state, job, error), restarts=0)
            if stop:
                return "interrupted" if state.log.failure is None else "failed"
            now = time.perf_counter()
            if job.progress and (now - shown >= PROGRESS_S or end == plan.total):
                shown = now
                try:
                    job.progress(_progress(job, state, (end - at) / max(wall_s, 1e-12), phase))
                except (Exception, SystemExit) as error:
                    job.raised = error
                    state.log.failure = " ".join(
                        f"the progress listener raised {type(error).__name__}: {error}".split()
                    )
                    continue
            if off:
                return "off"
    return "done" if state.log.failure is None else "failed"


def stretch(rounds: int, done: int, begin_s: float) -> int:
    """Iterations of the next stretch, after one of at most `rounds` in which `done` were done since
    `begin_s`. Which they are changes no results: those depend on iterations alone."""
    each_s = max(time.perf_counter() - begin_s, 1e-9) / max(done, 1)
    return max(1, min(ROUNDS, 2 * rounds, int(STRETCH_S / each_s)))


def finite(arrays: Buffers) -> bool:
    """Whether all that is learned is. A loss that is not, while this is, may have passed by the
    next iteration; whether it ends the run must not depend on where a stretch happened to end."""
    return all(np.isfinite(a).all() for name, a in arrays.items() if name.startswith("learner."))


def _evaluate(job: Job, state: State) -> None:
    """The evaluation that is due, if one is; still due where a signal ends it."""
    if not state.evaluation_due:
        return
    try:
        found = job.interruption.unless_asked(job.evaluate)
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
            job.keep()


def unwritten(state: State, job: Job, error: OSError) -> str:
    """A checkpoint that could not be written, in words."""
    where = f" ({error.filename})" if error.filename else ""
    return (
        f"the checkpoint at env step {state.iteration * job.graph.env_steps} could not be written: "
        f"{error.strerror}{where}; the one before, if there is one, is whole"
    )


def _count(
    job: Job, state: State, rounds: int, wall_s: float, cpu_s: float, waited_s: float | None
) -> None:
    """Takes a stretch into account. steady.waited_s is there as long as every stretch had one."""
    state.wall_s += wall_s
    state.cpu_s += cpu_s
    if state.iteration - rounds >= job.schedule.steady:
        before_s = state.steady.pop("waited_s", None if state.steady["wall_s"] else 0.0)
        if before_s is not None and waited_s is not None and not job.clock.simulated:
            state.steady["waited_s"] = before_s + min(waited_s, wall_s)
        state.steady["wall_s"] += wall_s
        state.steady["cpu_s"] += cpu_s
        state.steady["env_steps"] += rounds * job.graph.env_steps
        state.steady["updates"] += rounds * job.graph.updates


def _progress(job: Job, state: State, rounds_per_s: float, phase: str) -> Progress:
    return Progress(
        env_steps=state.iteration * job.graph.env_steps,
        total_steps=job.schedule.total * job.graph.env_steps,
        mean_return=mean_return(job.arrays),
        env_steps_per_s=rounds_per_s * job.graph.env_steps,
        predicted_env_steps_per_s=job.plan.rates["env_steps_per_s"],
        eval_mean=state.last_mean,
        phase=phase,
    )


def outcome(
    job: Job,
    state: State,
    status: Status,
    timings: tuple[TaskTiming, ...],
    *,
    wall_s: float,
    cpu_s: float,
    energy: Sequence[Energy],
    final: Finals | None,
    lags: Mapping[str, Mapping[int, int]],
    out: str | None,
    message: str | None,
) -> Run:
    """The `Run` of a finished loop. wall_s, cpu_s: the whole run on this machine; an emulated run
    reports the virtual clock's seconds as wall_s instead. energy: of every device over the whole
    run; of an emulated one there is none, and the plan's model says what it would be. final: None
    where the run did not come to its end."""
    steady, simulated = state.steady, job.clock.simulated
    iterations = steady["env_steps"] / job.graph.env_steps
    period_s = _per(steady["wall_s"], iterations)
    waited = _per(steady["waited_s"], steady["wall_s"]) if "waited_s" in steady else None
    energy_j, energy_source = total(energy)
    if simulated:
        energy_j, energy_source = job.plan.energy_per_iteration_j * state.iteration, "modelled"
    return Run(
        status=status,
        env_steps=state.iteration * job.graph.env_steps,
        updates=state.learning(job.schedule.warm) * job.graph.updates,
        wall_s=state.wall_s if simulated else wall_s,
        cpu_s=cpu_s,
        steady=steady,
        env_steps_per_s=_per(steady["env_steps"], steady["wall_s"]),
        env_steps_per_cpu_s=None if simulated else _per(steady["env_steps"], steady["cpu_s"]),
        updates_per_s=_per(steady["updates"], steady["wall_s"]),
        predicted_env_steps_per_s=job.plan.rates["env_steps_per_s"],
        returns={
            "mean_last_20": mean_return(job.arrays),
            "episodes": episode_count(job.arrays),
            **_judged("eval", final.best if final else None),
            **_judged("last_eval", final.last if final else None),
            "best_is_last": final.best is final.last if final and final.best.returns else None,
        },
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        energy_j=energy_j if energy_j > 0 else None,
        energy_source=energy_source if energy_j > 0 else None,
        simulated=simulated,
        tasks=timings,
        plan=job.plan,
        lags={k: {str(n): seen[n] for n in sorted(seen)} for k, seen in lags.items() if seen},
        message=message,
        restarts=state.log.restarts,
        lost_transitions=state.log.lost_transitions,
        events=tuple(state.log.events),
        drift=None if simulated else drift(job.plan, period_s, timings, state.decisions, waited),
        out=out,
    )


def _judged(name: str, found: Evaluation | None) -> dict[str, Any]:
    """An evaluation as a run tells it."""
    returns = found.returns if found else ()
    mean = float(np.mean(returns)) if returns else None
    cut = found.cut if found else 0
    return {f"{name}_mean": mean, f"{name}_returns": [*returns], f"{name}_cut": cut}


def cpu_seconds() -> float:
    """User and system seconds of this process and its ended children."""
    spent = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(s.ru_utime + s.ru_stime for s in spent)


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def timings(
    job: Job, plan: Plan, times_ns: dict[str, list[int]], profile_rounds: int
) -> tuple[Any, ...]:
    """Predicted beside measured seconds per firing. plan: the job's, its copies as tasks.

    A fused call is a row of its own, named by its members joined with +. Its members are measured
    one by one in `profile_rounds` further rounds on copies of what they change (profiled).
    """
    measured = single_lane.medians_s(times_ns)
    rows = []
    for call in job.jobs:
        seconds, count = measured.get(call.name, (None, 0))
        members = [plan.task(t) for t in call.tasks]
        if len(members) == 1:
            rows.append(TaskTiming(members[0].task, members[0].seconds, seconds, count))
            continue
        call_s = sum(m.seconds * m.firings for m in members)
        rows.append(TaskTiming(call.name, call_s, seconds, count))
        if seconds is None:
            rows += [TaskTiming(m.task, m.seconds, None, 0) for m in members]
            continue
        alone = single_lane.profile(job.graph, call, job.arrays, profile_rounds)
        rows += [TaskTiming(m.task, m.seconds, *alone[m.task], profiled=True) for m in members]
    return tuple(rows)
