"""PEFT, predict earliest finish time: HEFT with a look-ahead by an optimistic cost table.

Arabnejad and Barbosa 2014, "List scheduling algorithm for heterogeneous systems by an optimistic
cost table", IEEE Transactions on Parallel and Distributed Systems 25(3). A mode takes the role of
the paper's processor. PEFT works on the token-free arcs of one iteration. For throughput, the plan
is evaluated like any other plan.
"""

from __future__ import annotations

import math

from pearl.planning.problem import Problem
from pearl.solvers.makespan.list_outcome import best_of, listed_outcome
from pearl.solvers.makespan.list_schedule import Place, Schedule, list_schedule
from pearl.solvers.model.dag_instance import DagInstance
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.time_limit import watched

OBJECTIVES = ("throughput", "makespan")
"""The objectives of the method, which looks at time alone."""


def solve(problem: Problem, search: Search) -> Outcome:
    """Return PEFT's schedule, with a bound from a relaxation. `seed` has no effect.

    Raises:
        InfeasibleError: no plan is within the limits, or PEFT's plan is not.
    """
    return listed_outcome(schedule, problem, search)


def schedule(it: DagInstance) -> Candidate | None:
    """Return PEFT's schedule of one iteration of a search space; None if a firing finds no lane,
    width or memory."""
    table = optimistic_costs(it)
    rank = [math.fsum(row) / len(row) for row in table]

    def choose(made: Schedule, v: int) -> Place | None:
        def cost(place: Place) -> tuple[float, float, Place]:
            end = made.at(v, place)[1]
            return end + table[v][place[0]], end, place

        return min(made.places(v), key=cost, default=None)

    return best_of(lambda lanes: list_schedule(it, rank, choose, lanes))


def optimistic_costs(it: DagInstance) -> list[list[float]]:
    """Return for each firing and option of its unit the longest of the shortest paths from its end
    to the end of the iteration, with all lanes free (equation 6 of the paper)."""
    p = it.space
    table: list[list[float]] = [[] for _ in it.order]
    for v in watched(reversed(it.order)):
        u = it.unit[v]
        row = [0.0] * len(p.options[u])
        for s, size, _ in it.after[v]:
            w = it.unit[s]
            mean = it.mean_delay_s(u, w, size)
            ways = [
                (m.device, cost + m.estimate.latency_s)
                for m, cost in zip(p.options[w], table[s], strict=True)
            ]
            away = min(way for _, way in ways) + mean
            at: dict[str, float] = {}
            for device, way in ways:
                at[device] = min(way, at.get(device, math.inf))
            for o, m in enumerate(p.options[u]):
                row[o] = max(row[o], min(away, at.get(m.device, math.inf)))
        if it.turn[v] >= 0:  # the next firing of the task runs in the same mode
            for o, m in enumerate(p.options[u]):
                row[o] = max(row[o], table[it.turn[v]][o] + m.estimate.occupancy_s)
        table[v] = row
    return table
