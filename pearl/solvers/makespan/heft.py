"""HEFT, heterogeneous earliest finish time: by upward rank, each firing to where it ends first.

Topcuoglu, Hariri and Wu 2002, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13(3). HEFT works on
the token-free arcs of one iteration, over devices, modes and lanes. It fills gaps, and links do one
thing at a time. For throughput, the plan is evaluated like any other plan.
"""

from __future__ import annotations

import math

from pearl.planning.problem import Problem
from pearl.solvers.makespan.list_outcome import best_of, listed_outcome
from pearl.solvers.makespan.list_schedule import list_schedule, soonest
from pearl.solvers.model.dag_instance import DagInstance
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.time_limit import watched


def solve(problem: Problem, search: Search) -> Outcome:
    """Return HEFT's schedule, with a bound from a relaxation. `seed` has no effect.

    Raises:
        InfeasibleError: no plan is within the limits, or HEFT's plan is not.
    """
    return listed_outcome(schedule, problem, search)


def schedule(it: DagInstance) -> Candidate | None:
    """Return HEFT's schedule of one iteration of a search space; None if a firing finds no lane,
    width or memory."""
    rank = upward_rank(it)
    return best_of(lambda lanes: list_schedule(it, rank, soonest, lanes))


def upward_rank(it: DagInstance) -> list[float]:
    """Return for each firing the mean seconds of its modes plus the longest path after it,
    transfers at their mean over pairs of different devices (equation 8 of the paper)."""
    mean, busy = mean_seconds(it)
    rank = [0.0] * len(it.order)
    for v in watched(reversed(it.order)):
        u = it.unit[v]
        longest = 0.0
        for s, size, _ in it.after[v]:
            longest = max(longest, it.mean_delay_s(u, it.unit[s], size) + rank[s])
        rank[v] = mean[u] + longest
        if it.turn[v] >= 0:
            rank[v] = max(rank[v], busy[u] + rank[it.turn[v]])
    return rank


def mean_seconds(it: DagInstance) -> tuple[list[float], list[float]]:
    """Return the mean latency and the mean occupancy of the modes of each unit."""
    options = it.space.options
    return (
        [math.fsum(m.estimate.latency_s for m in o) / len(o) for o in options],
        [math.fsum(m.estimate.occupancy_s for m in o) / len(o) for o in options],
    )
