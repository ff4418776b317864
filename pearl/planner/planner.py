"""`plan`: spec → task graph → cost table → plan.

Solvers are imported where one is asked: a plan that is remembered or given needs none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import listed
from pearl.graph.limits import Limits, bad_time
from pearl.graph.task_graph import TaskGraph
from pearl.planner.evaluations import place_evaluation
from pearl.planning.costs import CostTable, build_cost_table, with_lanes
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.spec.platform_entries import count_unsourced
from pearl.spec.reading import System, load
from pearl.spec.user_code import build_graph
from pearl_devices.base import WIDE
from pearl_estimators.cpu import UNTIMED_RUNGS
from pearl_estimators.host import calibrator

if TYPE_CHECKING:
    from pearl.planner.energy_front import Front

MIN_GAIN = 1.15
"""The least gain for which a plan has a second lane. Below it, what no estimate has in it decides:
lanes share caches and memory (assumed; DQN with eight native environments: 1.22 predicted, 1.13
measured, with one 1.14 and 0.71: `benchmarks.two_cores`)."""

LANES_ASSUMED = {"firing_s": 1e-6, "handoff_s": 2.5e-6, "carry_s_per_byte": 2e-11}
"""Overhead of lanes where it was not measured: rounded up from readings of
`pearl.runtime.lanes.overhead` on 2 × AMD EPYC, virtual, 2026."""
GUESSED = "what lanes cost is assumed, for two cores of this host were not free to measure it"


def as_system(spec: System | str | Path | Mapping[str, Any]) -> System:
    """`spec` itself if it is a System, else what `load` makes of it."""
    return spec if isinstance(spec, System) else load(spec)


def build_problem(system: System) -> Problem:
    """The problem of a system. Its costs are estimated at first use."""
    graph = build_graph(system)
    costing = cache(partial(_costs, system, graph))
    return Problem(graph, costing, system.limits, system.objective, system)


def _costs(system: System, graph: TaskGraph) -> CostTable:
    """The cost of every mode. Where lanes are threads of one process, calls by several threads of
    torch are left out unless named: how many torch has would be every lane's."""
    costs = build_cost_table(graph, system.platform, system.limits)
    if system.train.lanes != "threads":
        return costs
    named = {v for variants in system.limits.variants.values() for v in variants}
    kept = tuple(m for m in costs.modes if m.variant not in WIDE or m.variant in named)
    return replace(costs, modes=kept)


def check_estimates(system: System) -> None:
    """Estimates every mode of a system without timing anything: a CPU of this host counts as one of
    a data sheet.

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
    """The best plan found for a system within `time_limit_s` seconds, with the proof it has.

    Always works, whether the devices are here or not. Raises SpecError for a spec or method that is
    wrong and InfeasibleError where no plan meets the limits.
    """
    problems = bad_time(time_limit_s)
    if problems:
        raise SpecError(*problems)
    problem = build_problem(as_system(system))
    return plan_graph(problem, method=method, time_limit_s=time_limit_s, seed=seed)


def plan_graph(
    problem: Problem, *, method: str | None = None, time_limit_s: float = 20.0, seed: int = 0
) -> Plan:
    """The plan of a system's problem: see `plan`. Several hosts have to be worth it: else the plan
    is that of home alone."""
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
        worth = f"{gain:.2f} x what {home} alone gives" if one else f"{home} alone meets no limits"
        return _with_host_note(many, system, f"lanes on {named}: {worth}")
    if hosts == {home}:
        return _with_host_note(many, system, f"{home} alone: no plan over several hosts is better")
    less = f"less than the {MIN_GAIN:g} x below which what is not modelled decides"
    return _with_host_note(
        one, system, f"{home} alone: {named} would give {gain:.2f} x as much, {less}"
    )


def on_host(problem: Problem, host: str) -> Problem:
    """The problem where every task is on devices of one host."""
    system, graph = problem.spec, problem.graph
    own = [d.name for d in system.platform.devices if d.host == host]
    allowed = {t.name: system.limits.devices.get(t.name, tuple(own)) for t in graph.tasks}
    kept = {task: tuple(d for d in names if d in own) for task, names in allowed.items()}
    limits = replace(problem.limits, devices=kept)
    there = replace(system, limits=limits)
    costing = cache(partial(_costs, there, graph))
    return replace(problem, costing=costing, limits=limits, system=there)


def _with_host_note(found: Plan, system: System, why: str) -> Plan:
    """A plan of this system with a note of its hosts, and of assumed links between them."""
    host = {d.name: d.host for d in system.platform.devices}
    between = [k for k in system.platform.links if host[k.a] != host[k.b]]
    sources = [text for k in between for text in k.sources.values()]
    assumed = [f"links between hosts: {t}" for t in sources if t.startswith("assumed")][:1]
    assert found.problem is not None
    note = "; ".join(filter(None, (found.note, why, *assumed)))
    return replace(found, note=note, problem=replace(found.problem, system=system))


def _gain(many: Plan, one: Plan) -> float:
    """How many times as good the first plan is."""
    gain = many.value / one.value if one.value > 0 else math.inf
    return 1 / gain if many.objective == "makespan" else gain


def _plan_lanes(problem: Problem, *, method: str | None, time_limit_s: float, seed: int) -> Plan:
    """The plan with as many lanes as are worth it."""
    from pearl.planner import async_plan
    from pearl.solvers.solver import solve_problem

    system = problem.spec

    def solved(lanes: Problem, share: float) -> Plan:
        seconds = share * time_limit_s
        found = solve_problem(lanes, method=method, time_limit_s=seconds, seed=seed)
        return replace(found, spec_sha256=system.sha256, host=system.platform.name)

    if system.limits.any_order:
        found = async_plan.solve(problem)
        found = replace(found, spec_sha256=system.sha256, host=system.platform.name)
        return _with_notes(found)
    several = at_several_lanes(problem)
    if several is problem:
        return _with_notes(solved(problem, 1.0))
    guessed = [GUESSED] if LANES_ASSUMED.items() <= lane_overhead(system).items() else []
    try:
        one = solved(replace(problem, limits=replace(problem.limits, max_lanes=1)), 0.5)
    except InfeasibleError:
        return _with_notes(solved(several, 0.5), *guessed)
    many = solved(several, 0.5)
    lanes = sum(k.width > 0 for k in many.lanes)
    gain = _gain(many, one)
    if lanes > 1 and gain >= MIN_GAIN:
        why = f"{lanes} lanes give {gain:.2f} x what one gives"
        return _with_notes(many, why, *guessed)
    if lanes > 1:
        return _with_notes(
            one,
            f"a second lane does not pay: {lanes} lanes would give {gain:.2f} x what one "
            f"gives, less than the {MIN_GAIN:g} x below which what lanes cost each other decides",
            *guessed,
        )
    return _with_notes(
        one, "a second lane does not pay: the best plan of several has one", *guessed
    )


def _with_notes(found: Plan, *notes: str) -> Plan:
    """The plan with its evaluations, with these notes, and with what of this host it takes from the
    data sheet for the time being, and why."""
    assert found.problem is not None
    system, graph = found.problem.spec, found.problem.graph
    found = replace(found, evaluation=place_evaluation(found, graph, system))
    notes = (*filter(None, (system.env.note, count_unsourced(system.platform))), *notes)
    late = calibrator.skipped_groups()
    here = {d.name for d in system.platform.devices if calibrator.is_calibrated_here(d)}
    tasks = [t.task for t in found.tasks if t.device in here and t.rung in UNTIMED_RUNGS]
    whys = [late[g] for g in sorted(calibrator.needed_groups(graph.kernels) & late.keys())]
    if tasks and whys:
        names = listed(list(dict.fromkeys(tasks)))
        why = "; ".join(dict.fromkeys(whys))
        notes += (f"not timed on this host, but from the data sheet: {names} ({why})",)
    return replace(found, note="; ".join(notes)) if notes else found


ONE_LANE = "one lane on one CPU needs no timing to be trained"


def skipping_timing_if_busy(system: System) -> AbstractContextManager[None]:
    """A context to plan and train a system in: where every plan is one lane on one CPU of this
    host, no kernel is timed."""
    devices, limits = system.platform.devices, system.limits
    one = len(devices) == 1 and 1 in (limits.max_lanes, devices[0].max_lanes)
    if one and calibrator.is_calibrated_here(devices[0]):
        return calibrator.without_timing(ONE_LANE)
    return nullcontext()


def lane_overhead(system: System) -> dict[str, Any]:
    """Overhead of several lanes on this host, for `with_lanes`: as calibrated, else as assumed.

    Empty where a plan has one lane anyway, or lanes are not this host's alone.
    """
    devices = system.platform.devices
    here = [d for d in devices if calibrator.is_calibrated_here(d)]
    live = system.platform.name in ("host", "ray")
    if not here or not live or system.limits.max_lanes == 1:
        return {}
    if here[0].max_lanes == 1 and len(devices) == 1:
        return {}
    known = calibrator.calibration(here[0])
    return {**(known.runtime or LANES_ASSUMED), "beside": known.beside}


def at_several_lanes(problem: Problem) -> Problem:
    """Add the overhead of several lanes to a problem's costs, if `lane_overhead` knows any."""
    costs, overhead = problem.costs, lane_overhead(problem.spec)
    if not overhead:
        return problem
    return replace(problem, costing=with_lanes(costs, problem.graph, **overhead))


def pareto(
    of: System | str | Path | Mapping[str, Any] | TaskGraph,
    costs: CostTable | None = None,
    *,
    limits: Limits | None = None,
    gap: float = 0.01,
    time_limit_s: float = 60.0,
) -> Front:
    """The plans between least power and most throughput: see `energy_front.front`.

    of: a system or its spec, which has its own costs and limits; or a graph, with its costs.
    gap: largest relative distance of neighbours in throughput and power. time_limit_s: seconds.

    Raises:
        SpecError: an argument or the spec is wrong, or a system is given costs or limits.
        InfeasibleError: no plan meets the limits.
    """
    from pearl.planner import energy_front

    how: dict[str, Any] = {"gap": gap, "time_limit_s": time_limit_s}
    if isinstance(of, TaskGraph) or costs is not None:
        return energy_front.front(of, costs, limits=limits or Limits(), **how)  # type: ignore[arg-type]
    if limits is not None:
        raise SpecError(
            "pareto: limits are given beside a system, which has its own; set them in it"
        )
    system = as_system(of)
    problem = build_problem(system)
    plans = energy_front.front_of(problem, **how)
    named = {"spec_sha256": system.sha256, "host": system.platform.name}
    told = [replace(p, **named, problem=problem) for p in plans]  # type: ignore[arg-type]
    return energy_front.Front(told, plans.open_w)
