"""The `Run` of a finished loop: rates, returns, energy, and measured beside predicted times."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pearl.planning.plans import Plan
from pearl.planning.runs import Run, Status, TaskTiming
from pearl.runtime import fork_server
from pearl.runtime.protocol import single_lane
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.evaluations.evaluator import Finals
from pearl.training.loop_context import LoopContext
from pearl.training.metrics import episode_count, mean_return
from pearl.training.replanning import drift
from pearl.training.run_clock import RunClock
from pearl_estimators.energy import Energy, total

PROFILE_ROUNDS = 30
"""Rounds in which the members of a fused call are timed one by one."""


def outcome(
    loop: LoopContext,
    state: RunState,
    status: Status,
    timings: tuple[TaskTiming, ...],
    *,
    wall_s: float,
    cpu_s: float,
    energy: Sequence[Energy],
    final: Finals | None,
    lags: Mapping[str, Mapping[int, int]],
    traffic: Sequence[Mapping[str, Any]],
    out: str | None,
    message: str | None,
    spent: RunClock,
    threshold: float | None,
) -> Run:
    """The `Run` of a finished loop.

    wall_s, cpu_s: seconds of the whole run on this machine; an emulated run reports those of the
    virtual clock as its wall_s.
    energy: of every device over the whole run; none of an emulated one, whose energy the plan's
    model says.
    final: None where the run did not come to its end.
    lags: name → observed lag → how often.
    traffic: with the lanes of other hosts.
    spent: the clock of the run.
    threshold: return from which the environment counts as solved.
    """
    steady, simulated = state.steady, loop.clock.simulated
    iterations = steady["env_steps"] / loop.graph.env_steps
    period_s = _per(steady["wall_s"], iterations)
    waited = _per(steady["waited_s"], steady["wall_s"]) if "waited_s" in steady else None
    energy_j, energy_source = total(energy)
    if simulated:
        energy_j, energy_source = loop.plan.energy_per_iteration_j * state.iteration, "modelled"
    return Run(
        status=status,
        env_steps=state.iteration * loop.graph.env_steps,
        updates=state.learning(loop.milestones.warm) * loop.graph.updates,
        wall_s=state.wall_s if simulated else wall_s,
        cpu_s=cpu_s,
        steady=steady,
        env_steps_per_s=_per(steady["env_steps"], steady["wall_s"]),
        env_steps_per_cpu_s=None if simulated else _per(steady["env_steps"], steady["cpu_s"]),
        updates_per_s=_per(steady["updates"], steady["wall_s"]),
        predicted_env_steps_per_s=loop.plan.rates["env_steps_per_s"],
        returns={
            "mean_last_20": mean_return(loop.arrays),
            "episodes": episode_count(loop.arrays),
            **_judged("eval", final.best if final else None),
            **_judged("last_eval", final.last if final else None),
            "best_is_last": final.best is final.last if final and final.best.returns else None,
        },
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        energy_j=energy_j if energy_j > 0 else None,
        energy_source=energy_source if energy_j > 0 else None,
        simulated=simulated,
        tasks=timings,
        plan=loop.plan,
        lags={k: {str(n): seen[n] for n in sorted(seen)} for k, seen in lags.items() if seen},
        traffic=tuple(traffic),
        message=message,
        restarts=state.log.restarts,
        lost_transitions=state.log.lost_transitions,
        events=tuple(state.log.events),
        drift=None if simulated else drift(loop.plan, period_s, timings, state.decisions, waited),
        stopped=loop.steering.stopped if status == "stopped" else None,
        solution=None if simulated else spent.solution(threshold, state.best_mean),
        out=out,
    )


def _judged(name: str, found: Evaluation | None) -> dict[str, Any]:
    """An evaluation in the form of a run: keys that begin with `name`."""
    returns = found.returns if found else ()
    mean = float(np.mean(returns)) if returns else None
    cut = found.cut if found else 0
    return {f"{name}_mean": mean, f"{name}_returns": [*returns], f"{name}_cut": cut}


def cpu_seconds() -> float:
    """User and system seconds of this process, its ended children and its forked processes."""
    spent = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(s.ru_utime + s.ru_stime for s in spent) + fork_server.cpu_s()


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def timings(
    loop: LoopContext, plan: Plan, times_ns: dict[str, list[int]]
) -> tuple[TaskTiming, ...]:
    """Predicted beside measured seconds per firing.

    A fused call is a row of its own, named by its members joined with +. Its members are measured
    one by one in PROFILE_ROUNDS further rounds on copies of the arrays they change (profiled).

    plan: of the loop, the copies of split tasks as tasks.
    """
    measured = single_lane.medians_s(times_ns)
    rows = []
    for call in loop.jobs:
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
        alone = single_lane.profile(loop.graph, call, loop.arrays, PROFILE_ROUNDS)
        rows += [TaskTiming(m.task, m.seconds, *alone[m.task], profiled=True) for m in members]
    return tuple(rows)
