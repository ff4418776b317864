"""One training run: rounds of the lane, evaluation, metrics, checkpoints, and its `Run`."""

from __future__ import annotations

import csv
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import numpy as np

from pearl.drift import LOOKS, Watch, Window, drift
from pearl.graph import TaskGraph
from pearl.plans import Plan
from pearl.runs import Progress, Run, Status, TaskTiming
from pearl.runtime import lane, waiting
from pearl.runtime.clock import Clock
from pearl.runtime.messages import episodes
from pearl.state import State
from pearl_devices import Buffers
from pearl_estimators.energy import Energy, total

ROUNDS = 64
"""Iterations between two looks at the clock, at signals and at the losses."""

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
        """The next iteration at which the loop looks at clock, signals and losses."""
        looks = [self.next_stop(at), at + ROUNDS]
        looks += [s for s in (self.warm, self.steady) if s > at]
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
class Job:
    """What one run works on; the trainer fills it in.

    lanes: what runs iterations. jobs: every call there is, once. evaluate: episodes, which
    evaluation → returns; it judges the current policy, or with which = "final" the best one. save:
    writes a checkpoint. keep: makes the current policy the best one. settled: told the iteration
    that has been reached. watch: says at checkpoints whether to look for another plan; None: never.
    """

    graph: TaskGraph
    plan: Plan
    arrays: Buffers
    lanes: Lanes
    jobs: Sequence[lane.Job]
    schedule: Schedule
    clock: Clock
    evaluate: Callable[[str], list[float]]
    keep: Callable[[], None]
    settled: Callable[[int], None]
    save: Callable[[State], None] | None
    metrics: Path | None
    progress: Callable[[Progress], None] | None
    watch: Watch | None = None


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


def train(job: Job, state: State, *, stop: bool = False) -> Status | Literal["off"]:
    """Run iterations from `state` to the end of the schedule; stop: to the next look only. `off`:
    right after a checkpoint, because the period is off from the plan's (`job.watch`)."""
    losses = {name: a for name, a in job.arrays.items() if name.startswith("loss.")}
    plan, shown, asked = job.schedule, 0.0, stop
    window: Window | None = None
    with interruptible() as interrupted, _Metrics(job, state) as metrics:
        while state.iteration < plan.total:
            at = state.iteration
            cpu, waits = job.lanes.cpu_s(), waiting.waits(job.lanes.threads())
            job.clock.start()
            end = job.lanes.run(plan.next_look(at), plan.next_stop(at), timed=at >= plan.warm)
            stop = asked or interrupted() or state.log.failure is not None
            if stop:
                end = job.lanes.halt()
            wall_s, cpu_s = job.clock.stop(end), job.lanes.cpu_s() - cpu
            later = waiting.waits(job.lanes.threads())
            waited_s = waiting.between(waits, later, job.plan.bottleneck.name)
            state.iteration = end
            job.settled(end)
            _count(job, state, end - at, wall_s, cpu_s, waited_s)
            if at >= plan.warm:  # the first stretch may still load and compile: it is not counted
                window = window.longer() if window else Window(end, state.wall_s)
            bad = [name for name, loss in losses.items() if not np.isfinite(loss[0])]
            if bad:
                state.log.failure = (
                    f"{', '.join(bad)} was not finite by env step {end * job.graph.env_steps}; the "
                    "last checkpoint is untouched"
                )
                return "failed"
            phase = "warm-up" if at < plan.warm else "training"
            if plan.evaluate_every and end % plan.evaluate_every == 0 and end >= plan.warm:
                phase = "evaluation"
                state.last_mean = float(np.mean(job.evaluate(f"periodic {end}")))
                if state.best_mean is None or state.last_mean >= state.best_mean:
                    state.best_mean = state.last_mean
                    job.keep()
            if plan.metrics_every and end // plan.metrics_every > at // plan.metrics_every:
                metrics.row(state)
            due = plan.checkpoint_every and end % plan.checkpoint_every == 0
            off = False
            if job.save and (due or stop or end == plan.total):
                try:
                    job.save(state)
                    if job.watch and due and window and window.looks >= LOOKS:
                        off = job.watch.due(window, end, state.wall_s) and end < plan.total
                        window = Window(end, state.wall_s)
                except OSError as error:  # a full disk: the one before is whole, and others follow
                    state.log.note(unwritten(state, job, error), restarts=0)
            now = time.perf_counter()
            if job.progress and (now - shown >= PROGRESS_S or end == plan.total):
                shown = now
                job.progress(_progress(job, state, (end - at) / max(wall_s, 1e-12), phase))
            if state.log.failure is not None:
                return "failed"
            if stop:
                return "interrupted"
            if off:
                return "off"
    return "done"


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


def mean_return(arrays: Buffers, last: int = 20) -> float | None:
    """Mean return of the last training episodes, None before the first has ended."""
    rings = list(episodes(arrays))
    newest: list[float] = []
    for ring, counter in rings:
        count = int(counter[0])
        first = max(count - -(-last // len(rings)), count - ring.size, 0)
        newest += [ring[i % ring.size] for i in range(first, count)]
    return float(np.mean(newest)) if newest else None


def episode_count(arrays: Buffers) -> int:
    """Finished training episodes."""
    return sum(int(counter[0]) for _, counter in episodes(arrays))


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
            *("period_s", "predicted_period_s"),
        ]
        self._last = state.iteration, state.wall_s
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
        self._close()

    def _close(self) -> None:
        with suppress(OSError):  # what a full disk did not take
            if self._file:
                self._file.close()
        self._file = None

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
            episode_count(job.arrays),
            "" if state.last_mean is None else round(state.last_mean, 4),
            *(float(job.arrays[name][0]) for name in self._losses),
            *self._periods(state),
        ]
        try:
            csv.writer(self._file).writerow(values)
            self._file.flush()
        except OSError as error:  # a full disk
            state.log.note(f"metrics.csv ends here: {error.strerror}", restarts=0)
            self._close()

    def _periods(self, state: State) -> tuple[float | str, float]:
        """Seconds of an iteration since the row before, beside the plan's; before learning it is
        another loop."""
        (at, wall_s), predicted_s = self._last, self._job.plan.period_s
        self._last = state.iteration, state.wall_s
        if at < self._job.schedule.warm or state.iteration == at:
            return "", predicted_s
        return (state.wall_s - wall_s) / (state.iteration - at), predicted_s


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
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
    energy: Sequence[Energy],
    final_returns: list[float],
    lags: Mapping[str, Mapping[int, int]],
    out: str | None,
    message: str | None,
) -> Run:
    """The `Run` of a finished loop. wall_s, cpu_s: the whole run on this machine; an emulated run
    reports the virtual clock's seconds as wall_s instead. energy: of every device over the whole
    run; of an emulated one there is none, and the plan's model says what it would be."""
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
            "episodes": episode_count(job.arrays),
            "eval_mean": float(np.mean(final_returns)) if final_returns else None,
            "eval_returns": final_returns,
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
    measured = lane.medians_s(times_ns)
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
        alone = lane.profile(job.graph, call, job.arrays, profile_rounds)
        rows += [TaskTiming(m.task, m.seconds, *alone[m.task], profiled=True) for m in members]
    return tuple(rows)
