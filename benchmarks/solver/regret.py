"""Whether the true regret of a robust plan lies in the interval that the plan reports:
`python -m benchmarks.solver.regret [LIMIT_S …] [--count N] [--json FILE]`.

Random problems of `pearl.testing.graphs` with wide bands, of 8 to MOST assignments, so that the
least seconds of each of the 40 draws are known by exhaustive search. The regret of the plan that
`solve` returns within each limit is computed from these, every draw timed anew. Problems with a
draw whose best lane orders the search does not prove are passed over.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import Bar, finish
from pearl import solve
from pearl.errors import InfeasibleError
from pearl.graph.task_graph import TaskGraph
from pearl.planning import problem as planning
from pearl.planning.bands import Regret
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan
from pearl.solvers.methods import enumeration
from pearl.solvers.model.method import ROBUST
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.orders.list_orders import ring_period
from pearl.solvers.robust import DRAWS
from pearl.testing.graphs import random_problem

COUNT, LIMITS_S = 40, (1.0, 3.0, 20.0)
"""Problems, and time limits where none are given."""

MOST = 120
"""Assignments of a problem at most."""

WIDE = 3.0
"""The band of every time reaches down to 1 / WIDE of the estimate, and up to WIDE times it."""

LONG_S = 600.0
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Problem:
    """tables: the costs of each draw. least_s: shape (draws,), seconds an iteration."""

    seed: int
    graph: TaskGraph
    costs: CostTable
    assignments: int
    tables: list[CostTable]
    least_s: NDArray[np.float64]


def problems(count: int) -> Iterator[Problem]:
    """The first `count` seeds whose problems are small enough and solved to proof in each draw."""
    seed = -1
    while count:
        seed += 1
        graph, costs = random_problem(seed, most_tasks=5, most_devices=3)
        try:
            size = enumeration.count(search_spaces(planning.Problem(graph, costs)))
        except InfeasibleError:
            continue
        if not 8 <= size <= MOST:
            continue
        costs = _banded(costs)
        tables = Draws(DRAWS, seed).tables(graph, costs)
        best = _solved(graph, tables)
        if best is not None:
            count -= 1
            yield Problem(seed, graph, costs, size, tables, np.array(best))


def _banded(costs: CostTable) -> CostTable:
    modes = []
    for m in costs.modes:
        low_s, high_s = m.estimate.latency_s / WIDE, m.estimate.latency_s * WIDE
        modes.append(replace(m, estimate=replace(m.estimate, low_s=low_s, high_s=high_s)))
    return replace(costs, modes=tuple(modes))


def _solved(graph: TaskGraph, tables: list[CostTable]) -> list[float] | None:
    """The least period of each draw; None where one of them is not proved."""
    found = []
    for table in tables:
        try:
            plan = solve(graph, table, method="exhaustive", time_limit_s=LONG_S)
        except InfeasibleError:
            return None
        if plan.status != "optimal":
            return None
        found.append(plan.period_s)
    return found


def true_regrets(problem: Problem, plan: Plan) -> NDArray[np.float64]:
    """The regret of a plan in each draw, shape (draws,)."""
    seconds = []
    for table in problem.tables:
        timed, orders, _ = plan_orders(plan, planning.Problem(problem.graph, table))
        seconds.append(ring_period(timed, orders))
    return np.array(seconds) / problem.least_s - 1


def holds(regret: Regret, true: NDArray[np.float64]) -> bool:
    """Whether both intervals hold the true regrets, and the bound is none above the true one."""
    mean, worst = float(true.mean()), float(true.max())
    ends = (
        (regret.mean, mean, regret.mean_high),
        (regret.worst, worst, regret.worst_high),
        (regret.bound, mean if regret.kind == "mean" else worst, None),
    )
    return all(
        low <= value + TOLERANCE and (high is None or value <= high + TOLERANCE)
        for low, value, high in ends
    )


def measured(problem: Problem, objective: str, limit_s: float) -> list[dict[str, Any]]:
    """What `solve` returns in this time and what is true of it; nothing where it finds no plan."""
    cpu = time.process_time()
    try:
        plan = solve(
            problem.graph, problem.costs, objective=objective, time_limit_s=limit_s,
            seed=problem.seed,
        )  # fmt: skip
    except InfeasibleError:  # there is a plan, but none was found in time
        return []
    cpu_s, regret, true = time.process_time() - cpu, plan.regret, true_regrets(problem, plan)
    assert regret is not None
    found = {
        "seed": problem.seed, "assignments": problem.assignments, "objective": objective,
        "limit_s": limit_s, "cpu_s": cpu_s, "holds": holds(regret, true),
        "true": {"mean": float(true.mean()), "worst": float(true.max())},
        "mean": [regret.mean, regret.mean_high], "worst": [regret.worst, regret.worst_high],
        "bound": regret.bound, "solved": regret.solved, "proved": regret.is_proved,
    }  # fmt: skip
    return [found]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.solver.regret")
    parser.add_argument("limits_s", nargs="*", type=float, default=LIMITS_S, metavar="LIMIT_S")
    parser.add_argument("--count", type=int, default=COUNT, help="problems")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    limits_s: list[float] = list(options.limits_s)
    runs: list[dict[str, Any]] = []
    for n, problem in enumerate(problems(options.count)):
        for limit_s in limits_s:
            runs += measured(problem, list(ROBUST)[n % 2], limit_s)
    rows, bars = [], []
    for limit_s in limits_s:
        mine = [r for r in runs if r["limit_s"] == limit_s]
        held, proved, solved = (
            sum(r[what] for r in mine) for what in ("holds", "proved", "solved")
        )
        none, cpu_s = options.count - len(mine), sum(r["cpu_s"] for r in mine)
        draws = f"{solved} of {DRAWS * options.count}"
        shown = [f"{held} of {len(mine)}", str(none), draws, str(proved), f"{cpu_s:.1f}"]
        rows.append([f"{limit_s:g}", *shown])
        what = f"the true regret lies in the interval, limit {limit_s:g} s"
        told = f"{held}, no plan in time {none}"
        bars.append(Bar(what, told, "all of the plans", held == len(mine)))
    columns = ["limit, s", "intervals that hold it", "no plan in time", "draws solved"]
    columns += ["plans proved", "CPU, s"]
    title = "regret of robust plans"
    return finish(title, columns, rows, bars, [], options.json, {"runs": runs})


if __name__ == "__main__":
    sys.exit(main())
