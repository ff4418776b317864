"""One training run: rounds of the lane, evaluation, metrics, checkpoints, and its `Run`."""

from __future__ import annotations

import csv
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from pearl.graph import TaskGraph
from pearl.plans import Plan
from pearl.runs import Progress, Run, Status, TaskTiming
from pearl.runtime import lane
from pearl.runtime.clock import Clock
from pearl_devices import Buffers

ROUNDS = 64
"""Iterations between two looks at the clock, at signals and at the losses."""

PROGRESS_S = 0.25
"""Seconds between two calls of a progress listener."""

ROWS = 200
"""Rows of metrics.csv in a whole run, about."""


@dataclass
class State:
    """What has happened so far: all that a checkpoint says beside the arrays. Seconds of iterations
    only, without evaluation and checkpoints."""

    iteration: int = 0
    best_mean: float | None = None
    last_mean: float | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    steady: dict[str, float] = field(
        default_factory=lambda: {"wall_s": 0.0, "cpu_s": 0.0, "env_steps": 0, "updates": 0}
    )


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

    def next_stop(self, at: int) -> int:
        """The next iteration at which the loop must pause."""
        stops = [self.total, at + ROUNDS]
        stops += [s for s in (self.warm, self.steady) if s > at]
        for every in (self.evaluate_every, self.checkpoint_every, self.metrics_every):
            if every:
                stops.append((at // every + 1) * every)
        return min(stops)


@dataclass
class Job:
    """What one run works on; the trainer fills it in.

    evaluate: episodes, which evaluation → returns; it judges the current policy, or with which =
    "final" the best one. save: writes a checkpoint. keep: makes the current policy the best one.
    """

    graph: TaskGraph
    plan: Plan
    arrays: Buffers
    steps: Sequence[lane.Step]
    schedule: Schedule
    clock: Clock
    evaluate: Callable[[str], list[float]]
    keep: Callable[[], None]
    save: Callable[[State], None] | None
    metrics: Path | None
    progress: Callable[[Progress], None] | None


def train(job: Job, state: State) -> tuple[Status, dict[str, list[int]]]:
    """Run iterations from `state` to the end of the schedule; also returns nanoseconds by call."""
    times_ns: dict[str, list[int]] = {}
    acting = [s.call for s in job.steps if not s.learns]
    calls = [s.call for s in job.steps]
    losses = [a for name, a in job.arrays.items() if name.startswith("loss.")]
    plan, shown = job.schedule, 0.0
    with _interruptible() as interrupted, _Metrics(job, state) as metrics:
        while state.iteration < plan.total:
            at, end = state.iteration, plan.next_stop(state.iteration)
            cpu = time.process_time()
            job.clock.start()
            if at < plan.warm:
                lane.run(acting, end - at)
            else:
                lane.run(calls, end - at - 1)
                lane.timed_round(job.steps, times_ns)
            wall_s, cpu_s = job.clock.stop(end), time.process_time() - cpu
            state.iteration = end
            _count(job, state, end - at, wall_s, cpu_s)
            if not all(np.isfinite(loss[0]) for loss in losses):
                return "failed", times_ns
            phase = "warm-up" if at < plan.warm else "training"
            if plan.evaluate_every and end % plan.evaluate_every == 0 and end >= plan.warm:
                phase = "evaluation"
                state.last_mean = float(np.mean(job.evaluate(f"periodic {end}")))
                if state.best_mean is None or state.last_mean >= state.best_mean:
                    state.best_mean = state.last_mean
                    job.keep()
            if plan.metrics_every and end % plan.metrics_every == 0:
                metrics.row(state)
            stop = interrupted()
            due = plan.checkpoint_every and end % plan.checkpoint_every == 0
            if job.save and (due or stop or end == plan.total):
                job.save(state)
            now = time.perf_counter()
            if job.progress and (now - shown >= PROGRESS_S or end == plan.total):
                shown = now
                job.progress(_progress(job, state, (end - at) / max(wall_s, 1e-12), phase))
            if stop:
                return "interrupted", times_ns
    return "done", times_ns


def _count(job: Job, state: State, rounds: int, wall_s: float, cpu_s: float) -> None:
    state.wall_s += wall_s
    state.cpu_s += cpu_s
    if state.iteration - rounds >= job.schedule.steady:
        state.steady["wall_s"] += wall_s
        state.steady["cpu_s"] += cpu_s
        state.steady["env_steps"] += rounds * job.graph.env_steps
        state.steady["updates"] += rounds * job.graph.updates


def mean_return(arrays: Buffers, last: int = 20) -> float | None:
    """Mean return of the last training episodes, None before the first has ended."""
    ring, count = arrays["episode.returns"], int(arrays["episode.count"][0])
    if not count:
        return None
    first = max(count - last, count - ring.size, 0)
    return float(np.mean([ring[i % ring.size] for i in range(first, count)]))


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


class _Metrics:
    """metrics.csv: a header, then rows; on resume the rows after the checkpoint are dropped."""

    def __init__(self, job: Job, state: State) -> None:
        self._job = job
        self._losses = sorted(n for n in job.arrays if n.startswith("loss."))
        self._columns = [
            *("env_steps", "updates", "wall_s", "cpu_s", "mean_return_20", "episodes", "eval_mean"),
            *(n.replace("loss.", "loss_") for n in self._losses),
        ]
        kept: list[list[str]] = []
        path = job.metrics
        if path is not None and state.iteration and path.is_file():
            limit = state.iteration * job.graph.env_steps
            with path.open(newline="", encoding="utf-8") as old:
                kept = [r for r in csv.reader(old) if r and r[0].isdigit() and int(r[0]) <= limit]
        self._file = None if path is None else path.open("w", newline="", encoding="utf-8")
        if self._file:
            csv.writer(self._file).writerows([self._columns, *kept])

    def __enter__(self) -> _Metrics:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()

    def row(self, state: State) -> None:
        if not self._file:
            return
        job, mean = self._job, mean_return(self._job.arrays)
        learnt = max(state.iteration - job.schedule.warm, 0)
        values = [
            state.iteration * job.graph.env_steps,
            learnt * job.graph.updates,
            round(state.wall_s, 6),
            round(state.cpu_s, 6),
            "" if mean is None else round(mean, 4),
            int(job.arrays["episode.count"][0]),
            "" if state.last_mean is None else round(state.last_mean, 4),
            *(float(job.arrays[name][0]) for name in self._losses),
        ]
        csv.writer(self._file).writerow(values)
        self._file.flush()


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the loop to stop after the iterations in hand; a second Ctrl-C raises.

    Outside the main thread signals cannot be caught, and the loop runs to its end.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome(
    job: Job,
    state: State,
    status: Status,
    timings: tuple[TaskTiming, ...],
    *,
    wall_s: float,
    cpu_s: float,
    final_returns: list[float],
    out: str | None,
) -> Run:
    """The `Run` of a finished loop. wall_s, cpu_s: the whole run on this machine; an emulated run
    reports the virtual clock's seconds as wall_s instead."""
    steady, energy_j = state.steady, job.plan.energy_per_iteration_j * state.iteration
    simulated = job.clock.simulated
    return Run(
        status=status,
        env_steps=state.iteration * job.graph.env_steps,
        updates=max(state.iteration - job.schedule.warm, 0) * job.graph.updates,
        wall_s=state.wall_s if simulated else wall_s,
        cpu_s=cpu_s,
        steady=steady,
        env_steps_per_s=_per(steady["env_steps"], steady["wall_s"]),
        env_steps_per_cpu_s=None if simulated else _per(steady["env_steps"], steady["cpu_s"]),
        updates_per_s=_per(steady["updates"], steady["wall_s"]),
        predicted_env_steps_per_s=job.plan.rates["env_steps_per_s"],
        returns={
            "mean_last_20": mean_return(job.arrays),
            "episodes": int(job.arrays["episode.count"][0]),
            "eval_mean": float(np.mean(final_returns)) if final_returns else None,
            "eval_returns": final_returns,
        },
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        energy_j=energy_j if energy_j > 0 else None,
        energy_source="modelled" if energy_j > 0 else None,
        simulated=simulated,
        tasks=timings,
        plan=job.plan,
        out=out,
    )


def cpu_seconds() -> float:
    """User and system seconds of this process and its ended children."""
    spent = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(s.ru_utime + s.ru_stime for s in spent)


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def timings(job: Job, times_ns: dict[str, list[int]], profile_rounds: int) -> tuple[Any, ...]:
    """Predicted beside measured seconds per firing.

    A fused call is a row of its own, named by its members joined with +. Its members are measured
    one by one in `profile_rounds` further rounds on copies of what they change (profiled).
    """
    measured = lane.medians_s(times_ns)
    rows = []
    for step in {s.job.name: s for s in job.steps}.values():
        seconds, count = measured.get(step.job.name, (None, 0))
        members = [job.plan.task(t) for t in step.job.tasks]
        if len(members) == 1:
            rows.append(TaskTiming(members[0].task, members[0].seconds, seconds, count))
            continue
        call_s = sum(m.seconds * m.firings for m in members)
        rows.append(TaskTiming(step.job.name, call_s, seconds, count))
        if seconds is None:
            rows += [TaskTiming(m.task, m.seconds, None, 0) for m in members]
            continue
        alone = lane.profile(job.graph, step.job, job.arrays, profile_rounds)
        rows += [TaskTiming(m.task, m.seconds, *alone[m.task], profiled=True) for m in members]
    return tuple(rows)
