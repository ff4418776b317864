"""Simple plans of search spaces, for scaling and as upper bounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.large.greedy_replicas import place_replicas
from pearl.solvers.large.load_search import FEW
from pearl.solvers.large.starts import greedy, mended
from pearl.solvers.large.tables import to_places
from pearl.solvers.model.result import SAME, Candidate
from pearl.solvers.model.search_space import SearchSpace, cost_of
from pearl.solvers.orders.lane_sequencing import MANY, best_orders
from pearl.time_limit import OutOfTimeError

TRIED = 3
"""Number of simple assignments that get orders (assumed)."""

TRYING = 0.3
"""Share of the time limit for finding and ordering simple assignments (assumed)."""


def simple_plan(
    spaces: Sequence[tuple[float, SearchSpace]], problem: Problem, deadline: float
) -> Candidate | None:
    """Return a plan for scaling and as upper bound: all on one device as far as possible, each
    class at its best, copies in parallel, or loads that a greedy rule balances.

    spaces: with a lower bound on the cost of their plans, least bound first.
    """
    now = time.monotonic()
    until = now + TRYING * max(0.0, deadline - now)
    trials: list[tuple[float, int, Assignment]] = []
    for floor, space in spaces:
        if len(trials) >= TRIED and floor > sorted(trials)[TRIED - 1][0]:
            break
        for a in _simple(space, problem):
            if trials and time.monotonic() > until:
                break
            if not space.violates_coupling(a):
                cost, _ = cost_of(problem, a, build_timed_graph(a).order_bound_s)
                if cost < math.inf:
                    trials.append((cost, len(trials), a))
    best: Candidate | None = None
    for least, _, a in sorted(trials, key=lambda t: t[:2])[:TRIED]:
        if best and (least >= best.cost * (1 - SAME) or time.monotonic() > until):
            break
        with suppress(OutOfTimeError):
            timed = build_timed_graph(a)
            effort = 0.1 if len(timed.names) < MANY else 0.0
            ordered = best_orders(timed, deadline=until, nodes=20, effort=effort)
            cost, paced = cost_of(problem, a, ordered.period_s)
            if cost < (best.cost if best else math.inf):
                best = Candidate(a, ordered, paced, cost)
    return best


def _simple(space: SearchSpace, problem: Problem) -> Iterator[Assignment]:
    def seconds(m: Mode) -> float:
        return m.estimate.occupancy_s

    def joules(m: Mode) -> float:
        return m.estimate.energy_j

    if len(space.classes) >= FEW:  # first, as it is good and quick: time may end the others
        loads = to_places(space, problem)
        place = mended(loads, greedy(loads))
        if place is not None:
            yield loads.assignment(place)
    for taste in (seconds, joules):
        there = [_best_there(space, members, taste) for members in space.classes]
        usual = [min(sorted(best), key=lambda d: best[d][0]) for best in there]
        for favourite in [*_different(space, there), None]:
            modes: dict[int, Mode] = {}
            for members, best, device in zip(space.classes, there, usual, strict=True):
                chosen_there = best[favourite if favourite and favourite in best else device][1]
                modes |= zip(members, chosen_there, strict=True)
            chosen = tuple(modes[u] for u in range(len(space.options)))
            yield Assignment(space.expansion, space.costs, chosen, (0,) * len(chosen))
            used: dict[str, int] = {}
            lanes = []
            for m in chosen:
                used[m.device] = used.get(m.device, -1) + 1
                lanes.append(used[m.device] % space.lanes[m.device])
            yield Assignment(space.expansion, space.costs, chosen, tuple(lanes))
    yield from place_replicas(space)


There = dict[str, tuple[float, list[Mode]]]
"""Device that a class may be on → its cost there, and the best mode of each of its units."""


def _best_there(
    space: SearchSpace, members: Sequence[int], taste: Callable[[Mode], float]
) -> There:
    best: list[dict[str, Mode]] = []
    for u in members:
        best_modes: dict[str, Mode] = {}
        for m in space.options[u]:
            if m.device not in best_modes or taste(m) < taste(best_modes[m.device]):
                best_modes[m.device] = m
        best.append(best_modes)
    firings = [space.expansion.firings(u) for u in members]
    return {
        d: (sum(n * taste(b[d]) for n, b in zip(firings, best, strict=True)), [b[d] for b in best])
        for d in set.intersection(*map(set, best))
    }


def _different(space: SearchSpace, there: Sequence[There]) -> list[str]:
    """Return one device of each set of devices with the same costs and links."""
    platform, first_of = space.costs.platform, dict[object, str]()
    for d in platform.devices:
        way = platform.route(platform.host, d.name)
        links = [(k.latency_s, k.per_message_s, k.bytes_per_s, k.paid_by) for k in way]
        properties = space.lanes[d.name], space.capacity_bytes[d.name], d.idle_power_w, tuple(links)
        costs = tuple(best[d.name][0] if d.name in best else None for best in there)
        first_of.setdefault((d.name == platform.host, *properties, costs), d.name)
    return list(first_of.values())
