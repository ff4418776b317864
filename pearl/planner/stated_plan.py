"""Check of a plan of a file by the times that it states, before it runs."""

from __future__ import annotations

import math
from collections import Counter

from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.graph.parallel_edges import key_edges
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plan_validation import costs_from_plan, plan_orders
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.replicas import split_of
from pearl.verification import SAME, check_timing
from pearl_devices import DeviceKindError, FigureError, Platform, offers


def check_stated_plan(plan: Plan, graph: TaskGraph, platform: Platform) -> None:
    """Check an unfolded plan of a file: it is sound with the times that it states, whatever
    slack and copies it has, and its devices offer its variants.

    Raises:
        SpecError: the plan is not sound; or one line for each call that its device does not offer.
    """
    slack = Counter[str]()
    for key, e in key_edges(graph.edges).items():
        channel = key_edges(plan.edges).get(key)
        slack[e.limit or "prefetch"] += max(0, channel.slack) if channel else 0
    slack["priority_staleness"] += slack["prefetch"]  # they share this limit
    split = split_of(graph)
    replicas = dict.fromkeys(split.tasks, len(split.shares))
    limits = Limits(**slack, replicas=replicas)  # type: ignore[arg-type]
    problem = Problem(graph, costs_from_plan(plan, graph, platform), limits)
    timed, orders, _ = plan_orders(plan, problem)
    channels = key_edges(plan.edges)
    held = [channels[key].capacity for key in key_edges(timed.assignment.expansion.graph.edges)]
    check_timing(timed, orders, problem, plan.period_s, held)
    if plan.objective == "throughput":  # its value follows from the period
        value = (graph.env_steps or 1) / plan.period_s
        if not math.isclose(plan.value, value, rel_tol=SAME):
            raise SpecError(
                f"plan: value is {plan.value:.9g}; at its period_s of {plan.period_s:.9g} it is "
                f"{value:.9g}: the plan was altered"
            )
    problems = []
    for t in {frozenset((t.task, *t.fused_with)): t for t in plan.tasks}.values():
        device = platform.device(t.device)
        try:
            offered = offers(graph.kernel_of((t.task, *t.fused_with)), device)
        except (DeviceKindError, FigureError) as error:
            raise SpecError(f"plan: {error}") from error
        if t.variant not in dict(offered):
            names = "+".join(n.name for n in graph.tasks if n.name in (t.task, *t.fused_with))
            problems.append(
                f"plan: {names} runs as {t.variant!r} on {device.name}, which offers "
                f"{offered or 'nothing'} for it"
            )
    if problems:
        raise SpecError(*sorted(problems))
