"""Simulated boards in a plan: which cannot learn, whether engines fit together, what is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pearl.errors import InfeasibleError
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Placement, Plan
from pearl.planning.problem import Problem
from pearl.planning.variants import has_backend, refusal_reason
from pearl_devices import Device, Platform, backend
from pearl_devices.kernels import kind_of


def tell_refusals(graph: TaskGraph, platform: Platform) -> list[str]:
    """Return a sentence for each simulated device that runs no gradient step of this algorithm."""
    learning = [t for t in graph.tasks if kind_of(t.kernel).structure == "gradient"]
    return [
        f"the simulated {device.name} does not run {task.name}: {why}"
        for device in platform.devices
        if device.simulated
        for task in learning
        if (why := refusal_reason(task.kernel, device))
    ]


def tell_unchecked(plan: Plan, platform: Platform) -> list[str]:
    """Return a sentence for each device of a plan on which a need of engines is not checked."""
    used = {placed.device for placed in plan.tasks}
    return [
        f"the simulated {device.name}: {why}"
        for device in platform.devices
        if device.name in used and (why := _ask(device, "tell_unchecked"))
    ]


def solve_on_boards(problem: Problem, solve: Callable[[Problem], Plan]) -> Plan:
    """Return the best plan whose engines fit together on each device.

    If the engines of the best plan do not fit, every plan that fits lacks one of them. The search
    excludes each in turn, as long as the remaining modes may give a better plan than the best one
    that fits.

    Raises:
        InfeasibleError: no plan fits; names the resource, the need and the limit.
    """
    open_parts, fitting, failure = [problem], None, None
    least = problem.objective == "makespan"
    bounds = list[float]()
    while open_parts:
        part = open_parts.pop()
        try:
            found = solve(part)
        except InfeasibleError as error:
            failure = failure or error
            continue
        worse = fitting is not None and (found.value >= fitting.value) == least
        crowd, why = _crowd(found, problem) if not worse else ((), "")
        if not crowd:
            bounds.append(found.bound_value)
            fitting = fitting if worse else found
            continue
        failure = failure or InfeasibleError(why)
        for placed in crowd:
            mode = placed.device, placed.variant, placed.width
            kept = tuple(m for m in part.costs.modes if placed.task not in m.tasks or m.key != mode)
            open_parts.append(replace(part, costing=replace(part.costs, modes=kept)))
    if fitting is None:
        assert failure is not None
        raise failure
    bound = (min if least else max)(bounds)
    if bound == fitting.bound_value:
        return replace(fitting, problem=problem)
    gap = 1 - (bound / fitting.value if least else fitting.value / bound)
    status = fitting.status if gap <= 1e-6 else "time_limit"
    return replace(fitting, problem=problem, bound_value=bound, gap=gap, status=status)


def _crowd(plan: Plan, problem: Problem) -> tuple[Sequence[Placement], str]:
    """Return placements on one device whose engines do not fit together, and the reason; empty if
    all engines fit. Without any one of these placements, the others fit."""
    for device in problem.costs.platform.devices:
        placed = [t for t in plan.tasks if t.device == device.name]
        if not _misfit(placed, device, problem.graph):
            continue
        for one in tuple(placed):
            rest = [t for t in placed if t is not one]
            if _misfit(rest, device, problem.graph):
                placed = rest
        return placed, (
            f"the plan's engines do not fit together on the simulated {device.name}: "
            f"{_misfit(placed, device, problem.graph)}; keep the learner, or the replay, on "
            "another device (limits.devices)"
        )
    return (), ""


def _misfit(placed: Sequence[Placement], device: Device, graph: TaskGraph) -> str:
    """Return why the engines of these placements do not fit together; empty if they do."""
    engines = [(graph.task(t.task).kernel, t.variant, t.width) for t in placed]
    return _ask(device, "crowding", engines)


def _ask(device: Device, name: str, *given: Any) -> str:
    """Return what an optional function of the device's kind returns; empty without the function."""
    function = has_backend(device) and getattr(backend(device.kind), name, None)
    return str(function(device, *given)) if function else ""
