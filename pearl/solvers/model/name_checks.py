"""Check of the names in limits, modes, lane terms and edges."""

from __future__ import annotations

from pearl.errors import SpecError
from pearl.planning.costs import LANE_TERMS
from pearl.planning.problem import Problem


def check_names(problem: Problem) -> None:
    """Check that limits, modes and edges name tasks, devices and limits that exist.

    Raises:
        SpecError: a limit, a mode or an edge has an unknown name.
    """
    graph, costs, limits = problem.graph, problem.costs, problem.limits
    tasks = dict.fromkeys(t.name for t in graph.tasks)
    devices = dict.fromkeys(d.name for d in costs.platform.devices)
    named_tasks = [
        ("devices", limits.devices),
        ("pin", limits.pin),
        ("variants", limits.variants),
        ("replicas", limits.replicas),
        ("together", [t for pair in limits.together for t in pair]),
        ("apart", [t for pair in limits.apart for t in pair]),
    ]
    problems = [
        f"limits.{key}: no task {n!r}; there are {[*tasks]}"
        for key, names in named_tasks
        for n in names
        if n not in tasks
    ]
    named_devices = [
        ("pin", limits.pin.values()),
        ("memory", limits.memory_bytes),
        ("devices", [d for ds in limits.devices.values() for d in ds]),
    ]
    problems += [
        f"limits.{key}: no device {n!r}; there are {[*devices]}"
        for key, names in named_devices
        for n in names
        if n not in devices
    ]
    problems += [
        f"cost table: mode of {', '.join(m.tasks)}: no task {t!r}; there are {[*tasks]}"
        for m in costs.modes
        for t in m.tasks
        if t not in tasks
    ]
    problems += [
        f"cost table: {name} of {' with '.join(pair)}: no task {t!r}; there are {[*tasks]}"
        for name in LANE_TERMS
        for pair in getattr(costs, name)
        for t in pair
        if t not in tasks
    ]
    problems += [
        f"edge {e.src} → {e.dst}: slack limit {e.limit!r} is unknown"
        for e in graph.edges
        if e.limit is not None and not hasattr(limits, e.limit)
    ]
    if problems:
        raise SpecError(*problems)
