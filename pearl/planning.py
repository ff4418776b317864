"""`plan`: spec → task graph → cost table → plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pearl.algorithms import algorithm
from pearl.costs import CostTable, tabulate
from pearl.graph import TaskGraph
from pearl.plans import Plan, Problem
from pearl.solvers import solve
from pearl.solvers.pareto import pareto
from pearl.spec import System, load


def as_system(spec: System | str | Path | Mapping[str, Any]) -> System:
    """`spec` itself if it is a System, else what `load` makes of it."""
    return spec if isinstance(spec, System) else load(spec)


def problem(system: System) -> tuple[TaskGraph, CostTable]:
    """What the solver is given for a system: its task graph and the cost of every mode."""
    graph = algorithm(system.algorithm.name).graph(system)
    return graph, tabulate(graph, system.platform, system.limits)


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
    system = as_system(system)
    graph, costs = problem(system)
    found = solve(
        graph,
        costs,
        objective=system.objective,
        method=method,
        limits=system.limits,
        time_limit_s=time_limit_s,
        seed=seed,
    )
    return replace(
        found,
        spec_sha256=system.sha256,
        host=system.platform.name,
        problem=Problem(graph, costs, system.limits, system),
    )


def front(
    system: System | str | Path, *, gap: float = 0.01, time_limit_s: float = 60.0
) -> list[Plan]:
    """The plans between least power and most throughput for a system; see `pareto`."""
    system = as_system(system)
    graph, costs = problem(system)
    plans = pareto(graph, costs, limits=system.limits, gap=gap, time_limit_s=time_limit_s)
    about = Problem(graph, costs, system.limits, system)
    named = {"spec_sha256": system.sha256, "host": system.platform.name}
    return [replace(p, **named, problem=about) for p in plans]  # type: ignore[arg-type]
