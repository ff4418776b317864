"""Online re-planning: compare measured with predicted periods, and solve again with measured times.

A run that re-plans is not bit-reproducible, because measured times decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import listed, si
from pearl.graph.cycle_ratio import howard
from pearl.graph.parallel_edges import key_edges
from pearl.graph.task_graph import TaskGraph
from pearl.planner import planner
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plan_builder import makespan_s
from pearl.planning.plan_validation import plan_timing
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.replicas import resize_kernel
from pearl.planning.runs import TOLERANCE, Drift, TaskDrift, TaskTiming
from pearl.runtime.protocol.lane_recorder import TIMES
from pearl.spec.system import System
from pearl_estimators import Estimate
from pearl_estimators.host.linear_fit import family

if TYPE_CHECKING:
    from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
    from pearl.runtime.protocol.single_lane import Job

GAIN = planner.MIN_GAIN
"""A plan must be this many times as good as the present one at the measured times, as for a second
lane."""

LOOKS = 5
"""Looks at the clock, and so times of every call, that a decision rests on at least (assumed)."""

SOLVE_S = 10.0
"""Maximum seconds of each of two searches for which training waits (assumed)."""

_NO_TIME = Estimate(0.0)

Factors = Mapping[str, float]
"""Kernel family and variant → measured seconds / estimated seconds."""


# ---------------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Window:
    """A range of iterations under one plan that is being measured.

    iteration, wall_s: iteration and seconds of iterations at its beginning.
    looks: number of clock readings since then.
    """

    iteration: int
    wall_s: float
    looks: int = 0

    def extend(self) -> Window:
        """Return the window with one more clock reading."""
        return replace(self, looks=self.looks + 1)

    def period_s(self, iteration: int, wall_s: float) -> float:
        """Return the mean seconds of an iteration since the beginning."""
        return (wall_s - self.wall_s) / max(iteration - self.iteration, 1)


class DriftMonitor:
    """Decides whether a search for another plan is worth its time.

    A search is, if the measured period is off from the predicted one and from the period of the
    last search.

    predicted_s: period of the plan, in seconds.
    weighed_s: period at which the last search was done for this plan, in seconds.
    """

    def __init__(self, predicted_s: float) -> None:
        self.predicted_s, self.weighed_s = predicted_s, predicted_s
        self.period_s, self.looks = predicted_s, 0

    def due(self, window: Window, iteration: int, wall_s: float) -> bool:
        """Return whether a search is due, by the mean period of a window."""
        self.period_s, self.looks = window.period_s(iteration, wall_s), window.looks
        away = [relative_error(self.period_s, s) for s in (self.predicted_s, self.weighed_s)]
        return min(map(abs, away)) > TOLERANCE


def relative_error(measured: float, predicted: float) -> float:
    """Return measured / predicted − 1."""
    return measured / predicted - 1 if predicted > 0 else float(measured > 0)


def measure_drift(
    plan: Plan,
    period_s: float | None,
    tasks: Sequence[TaskTiming],
    decisions: Sequence[str],
    waited: float | None = None,
) -> Drift:
    """Compare a run with its plan. Members of a fused call, which are timed separately, are left
    out.

    period_s: mean of the steady iterations; None if the run ended before them.
    decisions: sentences about re-planning.
    waited: share of the time in which the busiest lane had no core; None: unknown.
    """
    rows = tuple(
        TaskDrift(t.task, t.predicted_s, t.measured_s, relative_error(t.measured_s, t.predicted_s))
        for t in tasks
        if t.measured_s is not None and not t.profiled
    )
    away = None if period_s is None else relative_error(period_s, plan.period_s)
    # On a busy host, the exchange between two threads takes seconds and is not informative.
    busy = waited is not None and waited > TOLERANCE
    far = away is not None and abs(away) > TOLERANCE and _cores(plan) > 1 and not busy
    apart = _core_exchange_ratio() if far else None
    return Drift(plan.period_s, period_s, away, rows, tuple(decisions), apart, waited)


def _cores(plan: Plan) -> int:
    """The number of cores that the plan takes."""
    here = [t for t in plan.tasks if t.width_unit == "cores"]
    widest = {t.lane: max(o.width for o in here if o.lane == t.lane) for t in here}
    return sum(widest.values())


def _core_exchange_ratio() -> float | None:
    """The present value of `Drift.apart`."""
    from pearl_devices.primitives.math.core_latency import alike, exchange_s
    from pearl_estimators.host.calibration_file import load_calibration
    from pearl_estimators.sealed_files import CalibrationError

    try:
        known = load_calibration()
    except CalibrationError:
        return None
    if known is None or not known.apart_s:
        return None
    now_s = exchange_s()
    return None if alike(now_s, known.apart_s) else now_s / known.apart_s


def take_recent(
    times_ns: Mapping[str, list[int]], protocol: ExecutionSchedule, looks: int
) -> dict[str, list[int]]:
    """Return the newest times of every call: as many as its firings in `looks` iterations."""
    q = protocol.graph.repetition
    return {
        name: times[-max(looks, 1) * (1 if "+" in name else q[name]) :]
        for name, times in times_ns.items()
    }


def append_times(
    before: Mapping[str, list[int]], more: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    """Append the times of calls in another session; keep the newest TIMES of each."""
    names = [*before, *(n for n in more if n not in before)]
    return {n: [*before.get(n, ()), *more.get(n, ())][-TIMES:] for n in names}


# ---------------------------------------------------------------------- what it would cost


def compute_factors(
    problem: Problem,
    protocol: ExecutionSchedule,
    jobs: Sequence[Job],
    rows: Sequence[TaskTiming],
) -> dict[str, float]:
    """Return measured / estimated seconds of calls, by kernel family and variant.

    rows: of `pearl.training.outcome.time_tasks`, with the members of fused calls.
    """
    sums: dict[str, list[float]] = {}
    measured = {r.task: r.measured_s for r in rows}
    for job in jobs:
        members = [(t,) for t in job.tasks] if len(job.tasks) > 1 else []
        for tasks in [job.tasks, *members]:
            placed, part = protocol.plan.task(tasks[0]), protocol.graph.task(tasks[0]).part
            origins = tuple(protocol.graph.origin(t)[0] for t in tasks)
            seconds = measured.get("+".join(tasks))
            share = part.shares[part.replica] if part else None
            key = (placed.device, placed.variant, placed.width)
            for mode in problem.costs.modes:
                if seconds and (mode.tasks, mode.share, mode.key) == (origins, share, key):
                    sum_s = sums.setdefault(_factor_name(problem.graph, mode), [0.0, 0.0])
                    sum_s[0] += seconds
                    sum_s[1] += mode.estimate.latency_s
    return {name: found / said for name, (found, said) in sums.items() if said > 0}


def apply_factors(costs: CostTable, graph: TaskGraph, by: Factors) -> CostTable:
    """Return the table with times and energies of every mode multiplied by its measured factor.

    by: factors by kernel family and variant. A fused mode without one takes the factors of its
        members, each by its share of the call. A mode of which nothing was measured, or whose
        shares are unknown, keeps its estimate.
    """

    def scale(mode: Mode) -> Mode:
        factor = by.get(_factor_name(graph, mode))
        if factor is None and mode.fused:
            shares = costs.shares(mode, graph)
            alone = {
                t: by.get(_factor_name(graph, replace(mode, tasks=(t,))), 1.0) for t in mode.tasks
            }
            factor = sum(shares[t] * alone[t] for t in mode.tasks) if shares else None
        if factor is None or factor == 1.0:
            return mode
        source = f"{mode.estimate.source}; times {factor:.3g}, as the run measured"
        slower = mode.scale(factor)
        return replace(slower, estimate=replace(slower.estimate, source=source))

    return replace(costs, modes=tuple(scale(m) for m in costs.modes))


def _factor_name(graph: TaskGraph, mode: Mode) -> str:
    kernel = graph.kernel_of(mode.tasks)
    if mode.share:
        kernel = resize_kernel(kernel, mode.share, graph.task(mode.tasks[0]).environments)
    return f"{family(kernel)}, {mode.variant}"


def cost(plan: Plan, problem: Problem, beyond_s: float = 0.0) -> tuple[float, float]:
    """Return (value, period in seconds) of a plan under the costs of a problem.

    Orders and capacities stay as they are. The objective minimises the value: seconds or joules an
    iteration.

    beyond_s: seconds of an iteration outside its calls.

    Raises:
        SpecError: the plan does not fit the table.
    """
    timed, arcs = plan_timing(plan, problem)
    a = timed.assignment
    natural_s = howard(len(timed.names), arcs)[0] + beyond_s
    period_s = a.paced_s(natural_s, problem.limits.power_w)
    if problem.objective == "makespan":
        return makespan_s(timed, arcs) + beyond_s, period_s
    return (a.energy_j(period_s) if problem.objective == "power_efficiency" else period_s), period_s


# ---------------------------------------------------------------------- what is decided


@dataclass(frozen=True)
class Decision:
    """The result of a search.

    plan: the plan to continue with; None: the present one.
    why: the reason, in words.
    """

    plan: Plan | None
    why: str


def decide(problem: Problem, plan: Plan, by: Factors, measured_s: float) -> Decision:
    """Search a plan that is GAIN times as good as `plan`, both at the corrected estimates.

    The present plan takes the measured period. Time outside its calls (the loop, waits, other
    programs on the cores) is added to the other plan too, because no plan is known to avoid it. If
    the calls explain more than the measured period, only the present plan gets the difference.

    The search is limited to plans that can continue the run: environments stay in their variant,
    which holds their state; the number of replicas stays; devices that cannot be driven are left
    out.

    by: measured / estimated seconds, by kernel family and variant.
    measured_s: period of the present plan.
    """
    from pearl.solvers.solver import solve_problem

    system, limits = problem.spec, problem.limits
    if all(t.replicas == 1 for t in plan.tasks):
        limits = replace(limits, replicas={})
    table = apply_factors(_usable_modes(problem.costs, plan, system), problem.graph, by)
    usable = replace(problem, costing=table, limits=limits)
    one, several = (planner.with_lanes(usable, most) for most in (1, limits.max_lanes))
    count = sum(k.width > 0 for k in plan.lanes)
    try:
        mine = several if count > 1 else one
        beyond_s = measured_s - cost(plan, mine)[1]
        now, now_s = cost(plan, mine, beyond_s)
    except SpecError as error:
        return Decision(None, f"the plan is not one of the present problem: {error}")
    options: list[tuple[float, float, Plan]] = []
    for lanes in (one, several):
        try:
            found = solve_problem(lanes, time_limit_s=SOLVE_S)
        except InfeasibleError:
            continue
        value, period_s = cost(found, lanes, max(0.0, beyond_s))
        if not options or value * GAIN <= options[0][0]:
            options = [(value, period_s, found)]
    if not options:
        return Decision(None, "no plan meets the limits at the times measured")
    ((value, period_s, found),) = options
    gain = now / value if value > 0 else 1.0
    least = f"{GAIN:g} x is the least that is worth a change"
    told = (
        f"the plan takes {si(now_s, 's')} an iteration, {si(abs(beyond_s), 's')} "
        f"{'more' if beyond_s > 0 else 'less'} than its calls explain"
    )
    if gain < GAIN:
        return Decision(None, f"{told}; the best found is {gain:.2f} x as good, and {least}")
    guessed = _unmeasured(found, problem.graph, by)
    why = (
        f"{told}, the new one {si(period_s, 's')}, {gain:.2f} x as good, and {least}; "
        f"{describe_moves(plan, found)}"
        + (f"; not measured, and so at the estimate: {listed(guessed)}" if guessed else "")
    )
    note = f"made during a run, at the measured times: {gain:.2f} x as good as the plan before"
    named = {"spec_sha256": system.sha256, "host": system.platform.name, "note": note}
    return Decision(replace(found, **named), why)  # type: ignore[arg-type]


def _usable_modes(costs: CostTable, plan: Plan, system: System) -> CostTable:
    """The modes of plans that can continue a run of this plan."""
    steps = next((t.variant for t in plan.tasks if t.task == "step"), None)
    real = {d.name for d in system.platform.devices if d.real}
    kept = (
        m for m in costs.modes if m.device in real and ("step" not in m.tasks or m.variant == steps)
    )
    return replace(costs, modes=tuple(kept))


def _unmeasured(plan: Plan, graph: TaskGraph, by: Factors) -> list[str]:
    """The tasks of a plan whose mode was not measured, only estimated."""
    found = []
    for t in plan.tasks:
        alone = Mode((t.task,), t.device, t.variant, t.width, _NO_TIME)
        call = {t.task, *t.fused_with}
        fused = [f for f in graph.fusions if set(f.tasks) == call]
        names = [
            _factor_name(graph, alone),
            *(_factor_name(graph, replace(alone, tasks=f.tasks)) for f in fused),
        ]
        if not any(n in by for n in names):
            found.append(f"{t.task} ({t.variant})")
    return list(dict.fromkeys(found))


def describe_moves(before: Plan, after: Plan) -> str:
    """Describe the tasks that run elsewhere or in another way."""

    def where(plan: Plan) -> dict[str, str]:
        found: dict[str, str] = {}
        for t in plan.tasks:
            mates = f" in a call of {1 + len(t.fused_with)}" if t.fused_with else ""
            here = f"{t.lane} {t.variant}{'' if t.width == 1 else f' x {t.width}'}{mates}"
            found[t.task] = f"{found[t.task]} and {here}" if t.task in found else here
        return found

    old, new = where(before), where(after)
    parts = [f"{t}: {old[t]} → {new[t]}" for t in old if t in new and old[t] != new[t]]
    slack = {key: e.slack for key, e in key_edges(before.edges).items()}
    for key, e in key_edges(after.edges).items():
        was = slack.get(key, e.slack)
        if was != e.slack:
            parts.append(f"slack of {e.src} → {e.dst}: {was} → {e.slack}")
    parts = list(dict.fromkeys(parts))
    return "moved: " + ", ".join(parts) if parts else "no task moves; the order of calls differs"
