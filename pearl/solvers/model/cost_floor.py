"""A cost that no plan of a search space undercuts, without transfers: cheap, and for every size."""

from __future__ import annotations

import math

from pearl.graph.period import howard
from pearl.solvers.model.dag_instance import fastest, shared_s
from pearl.solvers.model.search_space import SearchSpace


def period_floor_s(space: SearchSpace) -> float:
    """No plan has a shorter period: cycles in the fastest modes, and loads shared evenly."""
    x, quick = space.expansion, fastest(space)
    latency = [min(seconds for seconds, _ in row.values()) for row in quick]
    arcs = [(s, d, latency[x.nodes[s][0]], m) for s, d, m, _ in x.arcs]
    return max(howard(len(x.nodes), arcs)[0], shared_s(space, quick))


def cost_floor(space: SearchSpace, objective: str) -> float:
    """No plan costs less: the period floor, for energy with the frugal modes and what is always on
    for that long. Seconds or joules of an iteration."""
    period_s = period_floor_s(space)
    if objective == "throughput":
        return period_s
    always_w = math.fsum(space.costs.platform.idle_w().values())
    dynamic_j = math.fsum(
        space.expansion.firings(u) * min(m.estimate.energy_j for m in modes)
        for u, modes in enumerate(space.options)
    )
    return dynamic_j + always_w * period_s
