"""Fewest lanes, then fewest watts: of plans that cost the same, the one that takes least.

More lanes never make an optimum worse, so a plan may spread over lanes that it does not need. Two
lanes of a device become one, those with the least to do first, as long as the cost stays. Then, of
plans as fast in as many lanes, the method is asked for the one of least energy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from pearl.errors import InfeasibleError
from pearl.graph.limits import SLACK_LIMITS
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.model.lane_sequencing import best_orders
from pearl.solvers.model.request import Request
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import cost_of
from pearl.solvers.period.slack_minimisation import taken_slack

MERGED = 24
"""Pairs of lanes for which orders are sought at most (assumed), and searched nodes of one."""
NODES = 200

FEW = 24
"""Firings of an iteration up to which the method is asked once more, for watts (assumed)."""

SLOWER = 1e-7
"""Share by which a plan of least energy may be slower, so that no tolerance forbids the plan that
there is; a proof allows ten times as much."""


def fewest_lanes(found: Candidate, request: Request) -> Candidate:
    """The plan with as many of its lanes made one as leaves its cost as it is."""
    tries, again = 0, True
    while again:
        again = False
        for merged in _merged(found):
            tries += 1
            if tries > MERGED:
                return found
            timed = build_timed_graph(merged)
            ordered = best_orders(timed, below_s=found.period_s * (1 + SAME), nodes=NODES)
            cost, paced = cost_of(request.objective, merged, ordered.period_s, request.limits)
            if cost <= found.cost * (1 + SAME):
                bound = replace(ordered, bound_s=min(found.ordered.bound_s, ordered.period_s))
                found, again = Candidate(merged, bound, paced, cost), True
                break
    return found


def fewest_watts(
    found: Candidate, request: Request, run: Callable[[Request], Outcome]
) -> Candidate:
    """A plan as fast, in no more lanes and with no more slack, that draws less, where `run` finds
    one. Only of several lanes, for throughput, without a limit on power."""
    limits, lanes = request.limits, len(_lanes(found.assignment))
    firings = sum(request.graph.repetition.values())
    if request.objective != "throughput" or limits.power_w or lanes == 1 or firings > FEW:
        return found
    none = dict.fromkeys(SLACK_LIMITS, 0)
    most = min(limits.period_s or found.period_s, found.period_s) * (1 + SLOWER)
    frugal = replace(limits, **none, max_lanes=lanes, period_s=most)  # type: ignore[arg-type]
    graph = request.graph.with_slack(taken_slack(found, request.graph))
    changed = replace(request, graph=graph, limits=frugal, start=None)
    asked = replace(changed, objective="power_efficiency")
    try:
        trial = run(asked).best
    except InfeasibleError:
        return found
    joules = found.assignment.energy_j(found.period_s)
    return replace(trial, cost=trial.period_s) if trial.cost < joules * (1 - SAME) else found


def _lanes(a: Assignment) -> dict[tuple[str, int], list[int]]:
    """Device and number of each lane → its units."""
    lanes: dict[tuple[str, int], list[int]] = {}
    for u, mode in enumerate(a.modes):
        lanes.setdefault((mode.device, a.lanes[u]), []).append(u)
    return lanes


def _merged(found: Candidate) -> Iterator[Assignment]:
    """The plan with two lanes of a device made one, those with the least load together first; none
    whose load is longer than the period."""
    a, loads = found.assignment, build_timed_graph(found.assignment).loads_s
    lanes = sorted(_lanes(a), key=lambda lane: loads[f"{lane[0]}.{lane[1]}"])
    pairs = [
        (sum(loads[f"{device}.{n}"] for device, n in pair), pair)
        for pair in itertools.combinations(lanes, 2)
        if pair[0][0] == pair[1][0]
    ]
    for load, ((device, one), (_, other)) in sorted(pairs):
        if load > found.period_s * (1 + SAME):
            return
        low, high = min(one, other), max(one, other)

        def number(u: int, low: int = low, high: int = high, device: str = device) -> int:
            n = a.lanes[u]
            if a.modes[u].device != device or n < high:
                return n
            return low if n == high else n - 1

        yield replace(a, lanes=tuple(number(u) for u in range(len(a.modes))))
