"""The `Run` of a run whose lanes have ended: rates, returns, energy, predicted and measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pearl.planning.plans import Placement
from pearl.planning.runs import Run, Status, TaskTiming
from pearl.runtime import processes
from pearl.runtime.protocol.channels import count_episodes, mean_return
from pearl.runtime.protocol.lane_recorder import medians_s
from pearl.runtime.protocol.member_times import member_times
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.evaluations.evaluator import FinalEvaluations
from pearl.training.lane_accounts import lane_times, measured_calls
from pearl.training.lane_binding import Lanes
from pearl.training.replanning import append_times, measure_drift
from pearl.training.training_run import TrainingRun
from pearl_devices.system import host_system
from pearl_estimators.energy import EnergyMeter, total

PROFILE_ROUNDS = 30
"""Rounds that time the members of a fused call one by one."""


class Measurements:
    """Measurements of a run over all its sessions.

    begin_s, begin_cpu_s: wall and CPU seconds at its beginning.
    times_ns: call → nanoseconds of its timed firings under the present plan.
    lags: name → observed lag in iterations → number of firings.
    traffic: messages and bytes to and from the lanes of other hosts.
    records: time of each lane by what it did. session_records: records of the last session.
    user_code_failed: the user's code ended the run, so its calls are not profiled.
    """

    def __init__(self) -> None:
        self.begin_s, self.begin_cpu_s = time.perf_counter(), cpu_seconds()
        self.times_ns: dict[str, list[int]] = {}
        self.lags: dict[str, Counter[int]] = {}
        self.traffic: list[Mapping[str, Any]] = []
        self.records: list[Mapping[str, Any]] = []
        self.session_records: Sequence[Mapping[str, Any]] = ()
        self.user_code_failed = False

    def add(self, lanes: Lanes) -> None:
        """Add the measurements of the lanes of a session."""
        self.times_ns = append_times(self.times_ns, lanes.times_ns)
        self.traffic += lanes.traffic
        self.session_records = lanes.records
        self.records += lanes.records
        for name, lags in lanes.lags.items():
            self.lags.setdefault(name, Counter()).update(lags)


def build_run(
    run: TrainingRun,
    status: Status,
    final: FinalEvaluations | None,
    measured: Measurements,
    meter: EnergyMeter,
) -> Run:
    """Build the `Run` of a run whose lanes have ended.

    An emulated run reports the wall seconds of its virtual clock, and the energy of the plan's
    model.

    final: None if the run did not come to its end.
    meter: of the energy of every device over the whole run.
    """
    state, compiled, simulated = run.state, run.session.compiled, run.lane_clock.simulated
    timed = not (compiled.emulate or measured.user_code_failed)
    timings = time_tasks(run, measured.times_ns if timed else {})
    wall_s = time.perf_counter() - measured.begin_s
    cpu_s = cpu_seconds() - measured.begin_cpu_s
    steady, plan = state.steady, run.plan
    iterations = steady["env_steps"] / run.graph.env_steps
    period_s = _per(steady["wall_s"], iterations)
    waited = _per(steady["waited_s"], steady["wall_s"]) if "waited_s" in steady else None
    energy_j, energy_source = total(meter.read({compiled.system.platform.host: cpu_s}))
    if simulated:
        energy_j, energy_source = plan.energy_per_iteration_j * state.iteration, "modelled"
    return Run(
        status=status,
        env_steps=state.iteration * run.graph.env_steps,
        updates=state.learning_iterations(run.milestones.warm) * run.graph.updates,
        wall_s=state.wall_s if simulated else wall_s,
        cpu_s=cpu_s,
        steady=steady,
        env_steps_per_s=_per(steady["env_steps"], steady["wall_s"]),
        env_steps_per_cpu_s=None if simulated else _per(steady["env_steps"], steady["cpu_s"]),
        updates_per_s=_per(steady["updates"], steady["wall_s"]),
        predicted_env_steps_per_s=plan.rates["env_steps_per_s"],
        returns={
            "mean_last_20": mean_return(run.arrays),
            "episodes": count_episodes(run.arrays),
            **_summarise("eval", final.best if final else None),
            **_summarise("last_eval", final.last if final else None),
            "best_is_last": final.best is final.last if final and final.best.returns else None,
        },
        peak_rss_bytes=host_system.peak_bytes(),
        energy_j=energy_j if energy_j > 0 else None,
        energy_source=energy_source if energy_j > 0 else None,
        simulated=simulated,
        tasks=timings,
        plan=plan,
        lags={
            k: {str(n): seen[n] for n in sorted(seen)} for k, seen in measured.lags.items() if seen
        },
        traffic=tuple(measured.traffic),
        message=state.log.failure if status == "failed" else None,
        restarts=state.log.restarts,
        lost_transitions=state.log.lost_transitions,
        events=tuple(state.log.events),
        drift=None
        if simulated
        else measure_drift(plan, period_s, timings, state.decisions, waited),
        stopped=run.callbacks.stopped if status == "stopped" else None,
        solution=None
        if simulated
        else run.clock.solution(compiled.system.env.threshold, state.best_mean),
        lanes=() if simulated else lane_times(run, measured.records),
        calls=() if simulated else measured_calls(run, measured.session_records),
        platform=compiled.system.platform,
        out=None if run.folder is None else str(run.folder),
    )


def _summarise(name: str, evaluation: Evaluation | None) -> dict[str, Any]:
    """The entries of an evaluation in `Run.returns`: keys that begin with `name`."""
    returns = evaluation.returns if evaluation else ()
    mean = float(np.mean(returns)) if returns else None
    cut = evaluation.cut if evaluation else 0
    return {f"{name}_mean": mean, f"{name}_returns": [*returns], f"{name}_cut": cut}


def cpu_seconds() -> float:
    """Return user and system seconds of this process, its ended children and forked processes."""
    return host_system.own_cpu_s() + processes.cpu_s()


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def time_tasks(run: TrainingRun, times_ns: dict[str, list[int]]) -> tuple[TaskTiming, ...]:
    """Compare predicted with measured seconds per firing.

    A fused call has its own row, named by its members joined with +. Its members are timed one by
    one in PROFILE_ROUNDS further rounds on copies of the arrays they change (`profiled`).

    times_ns: call → nanoseconds of its firings.
    """
    measured, plan = medians_s(times_ns), run.session.compiled.protocol.plan
    rows = []

    def timing(
        of: Placement, seconds: float | None, count: int, *, profiled: bool = False
    ) -> TaskTiming:
        kernel = run.session.compiled.replica_graph.task(of.task).kernel
        moved = kernel.bytes_in + kernel.bytes_out
        return TaskTiming(of.task, of.seconds, seconds, count, profiled, kernel.flops, moved)

    for call in run.jobs:
        seconds, count = measured.get(call.name, (None, 0))
        members = [plan.task(t) for t in call.tasks]
        if len(members) == 1:
            rows.append(timing(members[0], seconds, count))
            continue
        call_s = sum(m.seconds * m.firings for m in members)
        rows.append(TaskTiming(call.name, call_s, seconds, count))
        if seconds is None:
            rows += [timing(m, None, 0) for m in members]
            continue
        alone = member_times(run.graph, call, run.arrays, PROFILE_ROUNDS)
        rows += [timing(m, *alone[m.task], profiled=True) for m in members]
    return tuple(rows)
