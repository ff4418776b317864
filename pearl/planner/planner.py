"""`plan`: spec → task graph → cost table → plan.

Solvers are imported when a search needs one; cached or given plans need none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import listed
from pearl.graph.limits import Limits, time_limit_faults
from pearl.graph.task_graph import TaskGraph
from pearl.planner.boards import solve_on_boards, tell_refusals, tell_unchecked
from pearl.planning.costs import CostTable, problem_faults
from pearl.planning.estimated_costs import add_lane_overhead, build_cost_table
from pearl.planning.plans import EvaluationPlacement, Plan
from pearl.planning.problem import Problem
from pearl.spec.platform_entries import count_unsourced
from pearl.spec.reading import System, load
from pearl.spec.user_code import build_graph
from pearl_devices import DeviceKindError, FigureError, offers
from pearl_devices.base import WIDE
from pearl_devices.system import explain_no_processes, host_system
from pearl_estimators import estimate
from pearl_estimators.cpu import UNTIMED_RUNGS
from pearl_estimators.host import calibrator
from pearl_estimators.host.user_code_timing import limiting_steps

if TYPE_CHECKING:
    from pearl.planner.energy_front import Front

MIN_GAIN = 1.15
"""The least gain for which a plan has a second lane. A smaller gain is uncertain, because no
estimate includes the caches and memory that lanes share (assumed; DQN with eight native
environments: 1.22 predicted, 1.13 measured, with one 1.14 and 0.71: `benchmarks.two_cores`)."""

MIN_SOLVE_S = 0.1
"""Time limit of each solve at least, where the engines of a first plan do not fit on their part."""

ASSUMED_LANE_OVERHEAD = {"firing_s": 1e-6, "handoff_s": 2.5e-6, "carry_s_per_byte": 2e-11}
"""Overhead of lanes if it was not measured: rounded up from readings of
`pearl.runtime.lanes.overhead` on 2 × AMD EPYC, virtual, 2026."""
ASSUMED_OVERHEAD_NOTE = (
    "the overhead of lanes is assumed: no two cores of this host were free to measure it"
)


def as_system(
    spec: System | str | Path | Mapping[str, Any], set: Mapping[str, object] | None = None
) -> System:
    """Return `spec` if it is a System, else the System that `load` makes from it with `set`.

    Raises:
        SpecError: the spec is wrong, or `set` is given for a System.
    """
    if not isinstance(spec, System):
        return load(spec, set=set)
    if set:
        raise SpecError(
            "compile: `set` changes a spec, but a loaded System was given; pass it to `load`"
        )
    return spec


def build_problem(system: System) -> Problem:
    """Return the problem of a system. Its costs are estimated on first use."""
    graph = build_graph(system)
    costing = cache(partial(_costs, system, graph))
    return Problem(graph, costing, system.limits, system.objective, system)


def _costs(system: System, graph: TaskGraph) -> CostTable:
    """The cost of every mode. If lanes are threads of one process, calls with several threads of
    torch are excluded unless named, because torch's number of threads is the same in all lanes."""
    with limiting_steps(system.train.env_time_limit):
        costs = build_cost_table(graph, system.platform, system.limits)
    if system.train.lanes != "threads":
        return costs
    named = {v for variants in system.limits.variants.values() for v in variants}
    kept = tuple(m for m in costs.modes if m.variant not in WIDE or m.variant in named)
    return replace(costs, modes=kept)


def check_estimates(system: System) -> None:
    """Estimate every mode of a system without timing anything: a CPU of this host is estimated from
    its data sheet.

    Raises:
        SpecError: a device lacks a figure, or the file of its kind fails.
    """
    platform = system.platform
    sheets = tuple(replace(device, real=False) for device in platform.devices)
    graph = build_graph(system)
    with suppress(InfeasibleError):
        build_cost_table(graph, replace(platform, devices=sheets), system.limits)


def plan(
    system: System | str | Path,
    *,
    method: str | None = None,
    time_limit_s: float = 20.0,
    seed: int = 0,
) -> Plan:
    """Find the best plan for a system within `time_limit_s` seconds, with its proof.

    The devices of the platform need not be present on this machine.

    Args:
        system: a loaded system, or the path or name of a spec.
        method: one of `pearl list methods`; None for the default of the objective.
        time_limit_s: seconds of the search.
        seed: seed of the search.

    Examples:
        >>> plan = pearl.plan(pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"}))
        >>> plan.status, {task.device for task in plan.tasks}
        ('optimal', {'cpu'})

    Raises:
        SpecError: the spec, the method or the time limit is invalid.
        InfeasibleError: no plan meets the limits, or the method found none.
    """
    problems = time_limit_faults(time_limit_s)
    if problems:
        raise SpecError(*problems)
    problem = build_problem(as_system(system))
    return plan_graph(problem, method=method, time_limit_s=time_limit_s, seed=seed)


def plan_graph(
    problem: Problem, *, method: str | None = None, time_limit_s: float = 20.0, seed: int = 0
) -> Plan:
    """Return the plan of a system's problem; see `plan`. The plan uses several hosts only if that
    pays, else only home."""
    system = problem.spec
    options: dict[str, Any] = {"method": method, "seed": seed}
    home = system.platform.device(system.platform.host).host
    if len({d.host for d in system.platform.devices}) < 2 or system.limits.any_order:
        return _plan_lanes(problem, time_limit_s=time_limit_s, **options)
    options["time_limit_s"] = time_limit_s / 2
    try:
        one = _plan_lanes(on_host(problem, home), **options)
    except InfeasibleError:
        one = None
    many = _plan_lanes(problem, **options)
    hosts = {system.platform.device(t.device).host for t in many.tasks}
    named, gain = listed(sorted(hosts)), _gain(many, one) if one else math.inf
    if one is None or (hosts != {home} and gain >= MIN_GAIN):
        worth = f"{gain:.2f} x the value of {home} alone" if one else f"{home} alone has no plan"
        return _add_host_note(many, system, f"lanes on {named}: {worth}")
    if hosts == {home}:
        return _add_host_note(many, system, f"{home} alone: no plan over several hosts is better")
    less = f"less than {MIN_GAIN:g} x, below which unmodelled effects decide"
    return _add_host_note(
        one, system, f"{home} alone: {named} would give {gain:.2f} x as much, {less}"
    )


def on_host(problem: Problem, host: str) -> Problem:
    """Return the problem with every task on devices of one host."""
    system, graph = problem.spec, problem.graph
    own = [d.name for d in system.platform.devices if d.host == host]
    allowed = {t.name: system.limits.devices.get(t.name, tuple(own)) for t in graph.tasks}
    kept = {task: tuple(d for d in names if d in own) for task, names in allowed.items()}
    limits = replace(problem.limits, devices=kept)
    there = replace(system, limits=limits)
    costing = cache(partial(_costs, there, graph))
    return replace(problem, costing=costing, limits=limits, system=there)


def _add_host_note(found: Plan, system: System, why: str) -> Plan:
    """The plan with a note about its hosts, and about assumed links between them."""
    host = {d.name: d.host for d in system.platform.devices}
    between = [k for k in system.platform.links if host[k.a] != host[k.b]]
    sources = [text for k in between for text in k.sources.values()]
    assumed = [f"links between hosts: {t}" for t in sources if t.startswith("assumed")][:1]
    assert found.problem is not None
    note = "; ".join(filter(None, (found.note, why, *assumed)))
    return replace(found, note=note, problem=replace(found.problem, system=system))


def _gain(many: Plan, one: Plan) -> float:
    """Return the ratio of the values of two plans; above 1 if the first is better."""
    gain = many.value / one.value if one.value > 0 else math.inf
    return 1 / gain if many.objective == "makespan" else gain


def _plan_lanes(problem: Problem, *, method: str | None, time_limit_s: float, seed: int) -> Plan:
    """The plan with as many lanes as pay."""
    from pearl.planner import async_plan
    from pearl.solvers.solver import solve_problem

    system = problem.spec

    def solved(lanes: Problem, share: float) -> Plan:
        until = time.monotonic() + share * time_limit_s

        def solve(part: Problem) -> Plan:
            seconds = max(MIN_SOLVE_S, until - time.monotonic())
            return solve_problem(part, method=method, time_limit_s=seconds, seed=seed)

        plan = solve_on_boards(lanes, solve)
        return replace(plan, spec_sha256=system.sha256, host=system.platform.name)

    if system.limits.any_order:
        plan = solve_on_boards(problem, async_plan.solve)
        plan = replace(plan, spec_sha256=system.sha256, host=system.platform.name)
        return _add_notes(plan)
    overhead = lane_overhead(system)
    if not overhead:
        return _add_notes(solved(problem, 1.0))
    assumed = ASSUMED_LANE_OVERHEAD.items() <= overhead.items()
    guessed = [ASSUMED_OVERHEAD_NOTE] if assumed else []
    several = with_lanes(problem, problem.limits.max_lanes)
    try:
        one = solved(with_lanes(problem, 1), 0.5)
    except InfeasibleError:
        return _add_notes(solved(several, 0.5), *guessed)
    many = solved(several, 0.5)
    lanes = sum(k.width > 0 for k in many.lanes)
    gain = _gain(many, one)
    if lanes > 1 and gain >= MIN_GAIN:
        reason = f"{lanes} lanes give {gain:.2f} x the value of one"
        return _add_notes(many, reason, *guessed)
    if lanes > 1:
        return _add_notes(
            one,
            f"a second lane does not pay: {lanes} lanes would give {gain:.2f} x the value of one, "
            f"less than {MIN_GAIN:g} x, below which the interference of lanes decides",
            *guessed,
        )
    return _add_notes(one, "a second lane does not pay: the best plan of several has one", *guessed)


def _add_notes(found: Plan, *notes: str) -> Plan:
    """The plan with its evaluations, these notes, and a note on times of this host that are taken
    from the data sheet for now, with the reason."""
    assert found.problem is not None
    system, graph = found.problem.spec, found.problem.graph
    found = replace(found, evaluation=place_evaluation(found, graph, system))
    notes = (
        *tell_refusals(graph, system.platform), *tell_unchecked(found, system.platform), *notes
    )  # fmt: skip
    notes = (*filter(None, (system.env.note, count_unsourced(system.platform))), *notes)
    skipped = calibrator.skipped_groups()
    host_devices = {d.name for d in system.platform.devices if calibrator.is_calibrated_here(d)}
    tasks = [t.task for t in found.tasks if t.device in host_devices and t.rung in UNTIMED_RUNGS]
    reasons = [skipped[g] for g in sorted(calibrator.needed_groups(graph.kernels) & skipped.keys())]
    if tasks and reasons:
        names = listed(list(dict.fromkeys(tasks)))
        reason = "; ".join(dict.fromkeys(reasons))
        notes += (f"not timed on this host, but from the data sheet: {names} ({reason})",)
    return replace(found, note="; ".join(notes)) if notes else found


LANE_SHARE = 0.05
"""Least fraction of the loop's time from which evaluations get a separate lane."""

START_S = 2.0
"""CPU seconds until a process has imported PEARL and bound an evaluation (assumed: rounded up from
readings on 2 × AMD EPYC, virtual, 2026)."""


def place_evaluation(plan: Plan, graph: TaskGraph, system: System) -> EvaluationPlacement | None:
    """Decide where the evaluations of a run are played: at pauses of the loop, or in a lane of
    their own; None (at pauses) if the graph has none, or the host's kind has no estimate for them.

    Evaluations are not part of the period: one fires in many iterations, no task waits for it, and
    its length depends on the policy, so only an upper bound of its time is known in advance. The
    rule is
    simple: evaluations get a lane if they would otherwise take a large part of the loop's time and
    a core is free.

    Raises:
        SpecError: the spec requests a lane, and the host's kind has no estimate.
    """
    if graph.evaluation is None:
        return None
    kernel, requested = graph.evaluation.kernel, system.train.evaluate_in
    host = system.platform.device(system.platform.host)
    offered = offers(kernel, host)
    variant = offered[0][0] if offered else ""
    try:
        cost = estimate(kernel, host, variant=variant) if offered else None
    except (FigureError, DeviceKindError):  # a user-defined kind may lack them
        cost = None
    if cost is None and requested == "lane":
        raise SpecError(
            f"train.evaluate_in: lane: {host.name}, of kind {host.kind}, has no estimate of an "
            "evaluation; set it to pauses, or let the kind estimate kernels of evaluation"
        )
    if requested == "lane" and not host_system.PROCESSES:
        raise SpecError(f"train.evaluate_in: lane: {explain_no_processes()}; set it to pauses")
    if cost is None:
        return None
    every = math.ceil(system.train.evaluate_every / graph.env_steps)
    share = cost.latency_s / (every * plan.period_s)
    free = host.width - sum(lane.width for lane in plan.lanes if lane.device == host.name)
    spare = share > LANE_SHARE and free >= 1 and host_system.PROCESSES
    apart = requested == "lane" or (requested == "auto" and spare)
    return EvaluationPlacement(
        apart=apart,
        device=host.name,
        variant=variant,
        every=every,
        episodes=kernel.dim("episodes"),
        seconds=cost.latency_s,
        low_s=cost.low_s,
        high_s=cost.high_s,
        share=share,
        pays_from=1 if requested == "lane" else math.ceil(START_S / cost.latency_s),
        rung=cost.rung,
    )


ONE_LANE = "one lane on one CPU needs no timing to be trained"


def skipping_timing_if_busy(system: System) -> AbstractContextManager[None]:
    """Return a context for planning and training a system: if every plan is one lane on one CPU of
    this host, no kernel is timed in it while the host is busy."""
    devices, limits = system.platform.devices, system.limits
    one = len(devices) == 1 and 1 in (limits.max_lanes, devices[0].max_lanes)
    if one and calibrator.is_calibrated_here(devices[0]):
        return calibrator.without_timing(ONE_LANE)
    return nullcontext()


def lane_overhead(system: System) -> dict[str, Any]:
    """Return the overhead of several lanes on this host, calibrated or else assumed.

    Empty if a plan has one lane anyway, or if its lanes may be on other hosts.
    """
    devices = system.platform.devices
    host_devices = [d for d in devices if calibrator.is_calibrated_here(d)]
    live = system.platform.name in ("host", "ray")
    if not host_devices or not live or system.limits.max_lanes == 1:
        return {}
    if host_devices[0].max_lanes == 1 and len(devices) == 1:
        return {}
    measured = calibrator.calibration(host_devices[0])
    return {**(measured.runtime or ASSUMED_LANE_OVERHEAD), "beside": measured.beside}


def with_lanes(problem: Problem, most: int | None) -> Problem:
    """Return the problem with at most `most` lanes (None: any number). The costs of several lanes
    include the overhead of lanes, if `lane_overhead` knows any."""
    limited = replace(problem, limits=replace(problem.limits, max_lanes=most))
    overhead = {} if most == 1 else lane_overhead(problem.spec)
    if not overhead:
        return limited
    return replace(limited, costing=add_lane_overhead(problem.costs, problem.graph, **overhead))


def pareto(
    of: System | str | Path | Mapping[str, Any] | TaskGraph,
    costs: CostTable | None = None,
    *,
    limits: Limits | None = None,
    gap: float = 0.01,
    time_limit_s: float = 60.0,
) -> Front:
    """Return the plans between least power and most throughput: see
    `energy_front.front_of_problem`.

    Args:
        of: a system or its spec, which has its own costs and limits; or a graph, with its costs.
        costs: of a graph.
        limits: of a graph.
        gap: largest relative distance of neighbours in throughput and power.
        time_limit_s: seconds of the search.

    Examples:
        >>> front = pearl.pareto(pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"}))
        >>> front[0].power_w < front[-1].power_w, front[0].value < front[-1].value
        (True, True)

    Raises:
        SpecError: an argument or the spec is wrong, or a system is given costs or limits.
        InfeasibleError: no plan meets the limits.
    """
    from pearl.planner import energy_front

    how: dict[str, Any] = {"gap": gap, "time_limit_s": time_limit_s}
    if isinstance(of, TaskGraph) or costs is not None:
        given = of, costs, limits or Limits()
        if problems := problem_faults(*given):
            raise SpecError(*problems)
        return energy_front.front_of_problem(Problem(*given), **how)  # type: ignore[arg-type]
    if limits is not None:
        raise SpecError(
            "pareto: limits are given in addition to a system, which has limits; set them there"
        )
    system = as_system(of)
    problem = build_problem(system)
    plans = energy_front.front_of_problem(problem, **how)
    named = {"spec_sha256": system.sha256, "host": system.platform.name}
    named_plans = [replace(p, **named, problem=problem) for p in plans]  # type: ignore[arg-type]
    return energy_front.Front(named_plans, plans.open_w)
