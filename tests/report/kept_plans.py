"""Plans of random problems, and what is planned for GPUs, as JSON. No search makes them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from pearl import Limits
from pearl.graph.limits import SLACK_LIMITS
from pearl.planning.draws import Draws, uncertainties
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plan_validation import completions
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.methods.enumeration import assignments, every_space
from pearl.solvers.orders.list_orders import listed_orders
from pearl.testing.graphs import random_limited
from pearl.verification import check_plan
from tests.graphs import banded
from tests.report.kept_pages import rounded

LINK = {"between": ["cpu", "gpu"], "source": "test", "latency": "10 us", "bandwidth": "16 GB/s"}
OBJECTIVES = ("throughput", "power_efficiency", "makespan")


def assigned(seed: int) -> tuple[Problem, Assignment]:
    graph, costs, limits = random_limited(seed, most_tasks=5, most_devices=3)
    problem = Problem(graph, banded(costs), limits)
    every = list(islice(assignments(every_space(problem)), 40))
    return problem, random.Random(seed).choice(every)


def plans(name: str) -> dict[str, Any]:
    """A plan by any assignment of a random problem, its times, and its chart."""
    seed = int(name)
    problem, a = assigned(seed)
    timed = build_timed_graph(a)
    orders, _ = listed_orders(timed, float("inf"))
    proof = Proof(OBJECTIVES[seed % 3], "kept", seed, 0.5, 1e-9, 1e-9, timed_out=seed % 2 == 1)
    power_w = problem.limits.power_w
    plan = build_plan(a, orders, proof, power_w=power_w)
    left_out = {"pearl_version", "certified", "certified_bound", "certificate"}
    found = {k: v for k, v in plan.to_json().items() if k not in left_out}
    found["bound"] = timed.order_bound_s
    found["firings"] = [list(vars(f).values()) for f in plan.schedule(2)]
    found["ends"] = completions(plan, problem.graph, a.costs.platform, 5).tolist()
    if seed % 4 == 0:
        found["chart"] = plan.gantt(iterations=2).splitlines()
        found["trace"] = plan.trace(iterations=2)
    if plan.objective != "makespan":  # which allows no slack
        slack = Limits(**dict.fromkeys(SLACK_LIMITS, 99), replicas=problem.limits.replicas)  # type: ignore[arg-type]
        check_plan(plan, Problem(problem.graph, problem.costs, slack))
    return {f"{name}: {k}": rounded(v, 9) for k, v in found.items()}


def draws(name: str) -> dict[str, Any]:
    """Names and sizes of the doubts about modes, and two samples of a table."""
    problem, _ = assigned(int(name))
    graph, costs = problem.graph, problem.costs
    found: dict[str, Any] = {
        f"{name}: {'+'.join(m.tasks)} {m.device} {m.variant} {m.width} {m.share}": [
            [doubt and list(vars(doubt).values()), share]
            for doubt, share in uncertainties(m, graph, costs)
        ]
        for m in costs.modes
    }
    tables = Draws(2, 7).tables(graph, costs)
    found[f"{name}: tables"] = [
        [*(m.estimate.latency_s for m in t.modes), *t.pair_extra_s.values()] for t in tables
    ]
    return {k: rounded(v, 9) for k, v in found.items()}


FIGURES: dict[str, tuple[Callable[[str], dict[str, Any]], Iterable[str]]] = {
    "plans.json": (plans, ("0", "1", "2")),
    "draws.json": (draws, ("1",)),
}
