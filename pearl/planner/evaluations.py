"""Where the evaluations of a run are played: at pauses of the loop, or in a lane of their own.

They are no part of the period: one fires in many iterations, no task waits for it, and how long it
takes is the policy's affair. What can be said before is how long it takes at most. So the rule is
plain: a lane of their own where they would else take a good part of the loop's time, and a core is
free for it.
"""

from __future__ import annotations

import math

from pearl.errors import SpecError
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import EvaluationPlacement, Plan
from pearl.spec.system import System
from pearl_devices import DeviceKindError, FigureError, offers
from pearl_estimators import estimate

SHARE = 0.05
"""The least part of the loop's time for which evaluations have a lane of their own."""

START_S = 2.0
"""CPU seconds until a process has imported PEARL and bound an evaluation (assumed: rounded up from
readings on 2 × AMD EPYC, virtual, 2026)."""


def place_evaluation(plan: Plan, graph: TaskGraph, system: System) -> EvaluationPlacement | None:
    """The evaluations of a run of `plan`; None where the graph has none, or where the host's kind
    says nothing of them: they are played at pauses then.

    Raises:
        SpecError: the spec asks for a lane, and nothing is known of what it would take.
    """
    if graph.evaluation is None:
        return None
    kernel, requested = graph.evaluation.kernel, system.train.evaluate_in
    host = system.platform.device(system.platform.host)
    offered = offers(kernel, host)
    variant = offered[0][0] if offered else ""
    try:
        cost = estimate(kernel, host, variant=variant) if offered else None
    except (FigureError, DeviceKindError):  # a kind of the user's own need not know of evaluations
        cost = None
    if cost is None and requested == "lane":
        raise SpecError(
            f"train.evaluate_in: lane: {host.name}, of kind {host.kind}, says nothing of what an "
            "evaluation takes; set it to pauses, or let the kind estimate kernels of evaluation"
        )
    if cost is None:
        return None
    every = math.ceil(system.train.evaluate_every / graph.env_steps)
    share = cost.latency_s / (every * plan.period_s)
    free = host.width - sum(lane.width for lane in plan.lanes if lane.device == host.name)
    apart = requested == "lane" or (requested == "auto" and share > SHARE and free >= 1)
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
