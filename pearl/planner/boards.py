"""Simulated boards in a plan: which of them cannot learn, and whether its engines fit together."""

from __future__ import annotations

from pearl.errors import InfeasibleError
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.planning.variants import has_backend, refusal_reason
from pearl_devices import Platform, backend
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


def check_boards(plan: Plan, graph: TaskGraph, platform: Platform) -> None:
    """Check that the engines of a plan fit together on each simulated device.

    Raises:
        InfeasibleError: they do not fit; the text names the resource, the need and the limit.
    """
    for device in platform.devices:
        crowding = has_backend(device) and getattr(backend(device.kind), "crowding", None)
        if not crowding:
            continue
        engines = [
            (graph.task(t.task).kernel, t.variant, t.width)
            for t in plan.tasks
            if t.device == device.name
        ]
        if why := crowding(device, engines):
            raise InfeasibleError(
                f"the plan's engines do not fit together on the simulated {device.name}: {why}; "
                "keep the learner, or the replay, on another device (limits.devices)"
            )
