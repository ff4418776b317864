"""Check of a method's outcome: the plan is within all rules and limits, and its cost is correct."""

from __future__ import annotations

from dataclasses import replace

from pearl.errors import InfeasibleError
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import split_of
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.model.dag_instance import ends_s, start_times_s
from pearl.solvers.model.result import Candidate, Outcome
from pearl.solvers.model.search_space import cost_of, space_of
from pearl.solvers.orders.list_orders import ring_period
from pearl_devices.validation import quote

TOLERANCE = 1e-6
"""Relative difference up to which two periods or costs count as equal."""


def fault_of(outcome: object, problem: Problem) -> str:
    """Return the first fault of an outcome, for an error text; empty if there is none."""
    if not isinstance(outcome, Outcome):
        return f"it returned {quote(outcome)}, not an Outcome"
    best = outcome.best
    if not isinstance(best, Candidate) or not isinstance(best.assignment, Assignment):
        return f"the best of its outcome is {quote(best)}, not a Candidate with an Assignment"
    fault = _misplaced(best.assignment, problem) or _misordered(best, problem)
    if not fault and not outcome.bound <= best.cost * (1 + TOLERANCE):
        fault = f"its bound {outcome.bound:.9g} is above the cost {best.cost:.9g} of its plan"
    return fault


def _misplaced(a: Assignment, problem: Problem) -> str:
    """Return the rule or limit that an assignment breaks; empty if there is none."""
    x = a.expansion
    split = split_of(x.graph)
    part = split_problem(problem, split)
    graph, limits = part.graph, part.limits
    edges = list(zip(graph.edges, (e.slack for e in x.graph.edges), strict=False))
    if x.graph.tasks != graph.tasks or x.graph.edges != tuple(
        replace(e, slack=slack) for e, slack in edges
    ):
        return "its plan is for another graph"
    for task in split.tasks:
        if len(split.shares) > problem.limits.replicas.get(task, 1):
            return f"its plan has {len(split.shares)} replicas of {task}, more than the limit"
    for e, slack in edges:
        if slack > max(e.slack, getattr(limits, e.limit or "", 0)):
            return f"its plan gives edge {e.src} → {e.dst} the slack {slack}, above its limit"
    try:
        allowed = space_of(x, part, every_mode=True)
    except InfeasibleError as error:
        return f"its plan breaks the limits: {error}"
    for unit, mode, options in zip(x.units, a.modes, allowed.options, strict=True):
        if mode not in options:
            return f"its plan runs {'+'.join(unit)} in the mode {mode.key}, which is not allowed"
    if allowed.violates_coupling(a):
        return (
            "its plan breaks a rule that couples tasks (memory, lanes and width of a device, "
            "max_lanes, tasks that share a device)"
        )
    return ""


def _misordered(best: Candidate, problem: Problem) -> str:
    """Return the fault of a plan's lane orders, period or cost; empty if there is none."""
    timed, orders = build_timed_graph(best.assignment), best.ordered.orders
    for lane, members in timed.lanes.items():
        entries = [i for i, _ in orders.get(lane, ())]
        lane_nodes, fires = set(members), dict[str, list[int]]()
        for task, number in (timed.names[i] for i in entries if i in lane_nodes):
            fires.setdefault(task, []).append(number)
        if sorted(entries) != sorted(members) or any(f != sorted(f) for f in fires.values()):
            return f"its order of lane {lane} does not have each firing once, in the task's order"
    if set(orders) != set(timed.lanes):
        return f"its orders are of the lanes {sorted(orders)}; its plan uses {sorted(timed.lanes)}"
    period_s = ring_period(timed, orders)
    if problem.objective == "makespan":
        cost = ends_s(timed, start_times_s(timed, orders)) if period_s < float("inf") else period_s
    else:
        cost, period_s = cost_of(problem, best.assignment, period_s)
    stated = {"period_s": (best.period_s, period_s), "cost": (best.cost, cost)}
    for name, (stated_value, computed) in stated.items():
        if (
            not abs(stated_value - computed)
            <= TOLERANCE * max(abs(stated_value), abs(computed))
            < float("inf")
        ):
            return f"the {name} of its plan is {stated_value:.9g}, recomputed {computed:.9g}"
    return ""
