"""An upper bound on the period of optimal plans, for the energy rows of the period form."""

from __future__ import annotations

import itertools
import math

from pearl.planning.problem import Problem
from pearl.solvers.model.linear import Terms
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace


def longest_optimum_s(
    space: SearchSpace,
    problem: Problem,
    known: Candidate | None,
    on_w: float,
    joules: Terms,
) -> float:
    """Return an upper bound on the period of optimal plans: the big-M constant of the energy rows.

    on_w: power of the devices that are always on. joules: energy of the transfers.
    """
    p = space
    cap = problem.limits.power_w
    if known and problem.objective == "throughput":
        return known.period_s
    bounds = []
    if known:
        energy = known.assignment.energy_j(known.period_s)
        bounds.append(max(p.serial_s, energy / cap if cap else 0.0))
        if on_w > 0:
            bounds.append(energy / on_w)
    elif cap is None:
        bounds.append(p.serial_s)
    else:
        dynamic = sum(j for _, j in joules) + sum(
            p.expansion.firings(u) * max(m.estimate.energy_j for m in modes)
            for u, modes in enumerate(p.options)
        )
        off = p.costs.platform.idle_w()
        extra = [d.waiting_power_w - off[d.name] for d in p.costs.platform.devices]
        extra = [watts for watts in extra if watts > 0]
        spare = [
            cap - on_w - sum(some)
            for size in range(len(extra) + 1)
            for some in itertools.combinations(extra, size)
        ]
        least = min((s for s in spare if s > 0), default=math.inf)
        bounds.append(max(p.serial_s, dynamic / least))
    return min(bounds)
