"""HEFT, heterogeneous earliest finish time: by upward rank, each to where it ends first.

Topcuoglu, Hariri and Wu 2002, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13(3). Works on the
token-free arcs of one iteration, over devices, modes and lanes, with gaps filled and links that do
one thing at a time; asked for throughput or power efficiency, the plan is valued like any other.
"""

from __future__ import annotations

import math

from pearl.planning.problem import Problem
from pearl.solvers.methods.relaxation_bounds import best_of, listed_outcome
from pearl.solvers.model.dag_instance import DagInstance
from pearl.solvers.model.list_schedule import Schedule
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.time_limit import look, watched


def solve(problem: Problem, search: Search) -> Outcome:
    """HEFT's schedule, with a bound from a relaxation. Deterministic; `seed` changes nothing.

    Raises:
        InfeasibleError: no plan meets the limits, or HEFT's does not.
    """
    return listed_outcome(schedule, problem, search)


def schedule(it: DagInstance) -> Candidate | None:
    """HEFT's schedule of one iteration of a search space; None if it got stuck for want of lanes,
    widths or memory."""
    return best_of(lambda lanes: listed(it, upward_rank(it), lanes))


def upward_rank(it: DagInstance) -> list[float]:
    """For each firing, the mean seconds of its modes plus the longest way to the end behind it,
    transfers at their mean over pairs of different devices (equation 8 of the paper)."""
    p = it.space
    mean = [math.fsum(m.estimate.latency_s for m in o) / len(o) for o in p.options]
    busy = [math.fsum(m.estimate.occupancy_s for m in o) / len(o) for o in p.options]
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


def listed(it: DagInstance, rank: list[float], most_lanes: float) -> Schedule | None:
    """Firings by falling rank, each placed where it is complete first."""
    made = Schedule(it, most_lanes)
    for v in sorted(range(len(rank)), key=lambda v: (-rank[v], it.place[v])):
        look()
        places = [(made.at(v, place)[1], *place) for place in made.places(v)]
        if not places:
            return None
        _, option, lane = min(places)
        made.put(v, (option, lane))
    return made
