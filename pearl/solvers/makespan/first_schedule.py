"""The first schedule of an iteration: the best of HEFT's, CPoP's and all on one device, or the
start of the search.

CPoP, critical path on a processor: Topcuoglu, Hariri and Wu 2002, "Performance-effective and
low-complexity task scheduling for heterogeneous computing", IEEE Transactions on Parallel and
Distributed Systems 13(3).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from pearl.planning.problem import Problem
from pearl.solvers.makespan import heft
from pearl.solvers.makespan.list_outcome import any_feasible_schedule, best_of
from pearl.solvers.makespan.list_schedule import (
    Place,
    Schedule,
    build_schedule,
    list_schedule,
    places_of,
    soonest,
)
from pearl.solvers.methods.simple_plans import gather, spread
from pearl.solvers.model.dag_instance import DagInstance, fastest
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import OutOfTimeError, look, watched


def first_schedule(
    it: DagInstance, problem: Problem, search: Search, until: float
) -> Candidate | None:
    """Return the best simple schedule of a search space: HEFT's, CPoP's, all on one device as far
    as possible, or the start of the search; else any that satisfies the rules; None if there is
    none.

    until: `time.monotonic()` seconds, after which the schedules so far are enough.
    """
    best = _start_in(it.space, search)
    with suppress(OutOfTimeError):
        for found in _list_schedules(it):
            if found and (best is None or found.cost < best.cost):
                best = found
            if best and time.monotonic() > until:
                break
    if best is None:
        look()
        best = any_feasible_schedule(it, problem, search.deadline)
    return best


def _list_schedules(it: DagInstance) -> Iterator[Candidate | None]:
    gathered = _gather(it)
    yield from islice(gathered, 1)  # the quickest
    yield heft.schedule(it)
    yield critical_path_schedule(it)
    yield from gathered


def _start_in(space: SearchSpace, search: Search) -> Candidate | None:
    """Return the start of a search as a plan of one of its search spaces; None if it belongs to
    another one, or has a mode that the space omits."""
    start = search.start
    if start is None:
        return None
    a, x = start.assignment, space.expansion
    if a.expansion.graph != x.graph or a.expansion.units != x.units:
        return None
    if any(m not in options for m, options in zip(a.modes, space.options, strict=True)):
        return None
    return replace(start, assignment=replace(a, expansion=x, costs=space.costs))


def critical_path_schedule(it: DagInstance) -> Candidate | None:
    """Return CPoP's schedule: the firings of the longest path on the device that runs them in the
    least time, each other one where it ends first."""
    ahead, behind = downward_rank(it), heft.upward_rank(it)
    rank = [a + b for a, b in zip(ahead, behind, strict=True)]
    path = {v for v in range(len(rank)) if rank[v] >= max(rank) * (1 - SAME)}
    seconds: dict[str, float] = {}
    quick = fastest(it.space)
    for device in set.intersection(*(set(it.devices[it.unit[v]]) for v in path)):
        seconds[device] = sum(quick[it.unit[v]][device][0] for v in path)
    home = min(sorted(seconds), key=lambda d: seconds[d], default=None)

    def choose(made: Schedule, v: int) -> Place | None:
        if v not in path:
            return soonest(made, v)
        places = list(made.places(v))
        there = [k for k in places if made.mode(it.unit[v], k[0]).device == home]
        return min(there or places, key=lambda k: (made.at(v, k)[1], k), default=None)

    return best_of(lambda lanes: list_schedule(it, rank, choose, lanes))


def downward_rank(it: DagInstance) -> list[float]:
    """Return for each firing the longest path before it, with the means of `heft.upward_rank`
    (equation 10 of the paper)."""
    mean, busy = heft.mean_seconds(it)
    rank = [0.0] * len(it.order)
    for v in watched(it.order):
        u = it.unit[v]
        for s, size, _ in it.after[v]:
            delay = it.mean_delay_s(u, it.unit[s], size)
            rank[s] = max(rank[s], rank[v] + mean[u] + delay)
        if it.turn[v] >= 0:
            rank[it.turn[v]] = max(rank[it.turn[v]], rank[v] + busy[u])
    return rank


def _gather(it: DagInstance) -> Iterator[Candidate | None]:
    """Yield plans with every class on one device if possible, else where it is fastest; with one
    lane per device, or with all lanes."""
    p, rank = it.space, [-r for r in heft.upward_rank(it)]
    for gathered in gather(p, lambda m: m.estimate.latency_s):
        for a in gathered, spread(p, gathered):
            if not p.violates_coupling(a):
                yield build_schedule(it, rank, places_of(p, a)).to_candidate()
