"""Selection of replicas to try if there are too many devices and copies to try all choices.

Two even choices and the choice without replicas are tried. A bound covers the other choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pearl.planning.costs import CostTable, Mode
from pearl.planning.problem import Problem
from pearl.planning.replicas import ReplicaSplit, enumerate_splits
from pearl.solvers.model.cost_floor import period_floor_s
from pearl.solvers.model.search_space import search_spaces

MOST = 200_000
"""Copies times devices, over all choices of replicas, up to which all choices are tried (assumed:
some seconds for their search spaces)."""


@dataclass(frozen=True)
class SelectedSplits:
    """splits: choices to try. bound: no plan of any choice costs less; seconds."""

    splits: tuple[ReplicaSplit, ...]
    bound: float


def select_splits(problem: Problem) -> SelectedSplits | None:
    """Return the choices of replicas to try, or None for all."""
    costs = problem.costs
    choices = enumerate_splits(problem.graph, problem.limits)
    devices = len(costs.platform.devices)
    if problem.objective != "throughput" or devices * sum(len(s.shares) for s in choices) <= MOST:
        return None
    widest = max(len(s.tasks) for s in choices)
    even = [s for s in choices if len(s.tasks) == widest and max(s.shares) - min(s.shares) <= 1]
    floor_s = bound_s(problem)
    seconds = acting_s(costs)
    quickest = min(even, key=seconds)
    enough = [s for s in even if seconds(s) <= floor_s]
    least = min(enough, key=lambda s: len(s.shares), default=quickest)
    return SelectedSplits(tuple(dict.fromkeys((least, quickest, ReplicaSplit()))), floor_s)


def acting_s(costs: CostTable) -> Callable[[ReplicaSplit], float]:
    """Return a function: choice of replicas → seconds of the split tasks, if copies share all lanes
    of the devices that can run them."""
    lanes = {d.name: d.max_lanes for d in costs.platform.devices}
    quick: dict[tuple[str, int], float] = {}
    places: dict[tuple[str, int], set[str]] = {}
    for m in costs.modes:
        if m.share is not None:
            key = m.tasks[0], m.share
            quick[key] = min(m.estimate.occupancy_s, quick.get(key, math.inf))
            places.setdefault(key, set()).add(m.device)

    def seconds(split: ReplicaSplit) -> float:
        keys = [(task, max(split.shares)) for task in split.tasks]
        if any(key not in quick for key in keys):
            return math.inf
        turns = [-(-len(split.shares) // sum(lanes[d] for d in places[key])) for key in keys]
        return math.fsum(quick[key] * n for key, n in zip(keys, turns, strict=True))

    return seconds


def bound_s(problem: Problem) -> float:
    """Return a lower bound on the period for every choice of replicas.

    The graph of a choice contains the graph with one copy of each split task. So the unsplit graph
    is a bound for all choices, if these tasks have their least latency of all shares and take no
    lane. Its own bound comes from cycles in the fastest modes and evenly shared loads.
    """
    costs, limits = problem.costs, problem.limits
    if any(seconds < 0 for seconds in costs.pair_extra_s.values()):
        return 0.0
    split_tasks = {t for t, n in limits.replicas.items() if n > 1}
    quick: dict[tuple[tuple[str, ...], str], Mode] = {}
    modes = []
    for m in costs.modes:
        if m.fused or m.tasks[0] not in split_tasks:
            modes.append(m)
            continue
        key = m.tasks, m.device
        if key not in quick or m.estimate.latency_s < quick[key].estimate.latency_s:
            quick[key] = m
    free = [
        replace(m, share=None, estimate=replace(m.estimate, occupancy_s=0.0))
        for m in quick.values()
    ]
    table = CostTable(costs.platform, (*modes, *free))
    unsplit = replace(problem, costing=table, limits=replace(limits, replicas={}))
    spaces = search_spaces(unsplit, frozenset({"memory"}))
    return min(period_floor_s(space) for space in spaces)
