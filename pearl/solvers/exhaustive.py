"""Every assignment and every order: the oracle that other methods are tested against.

All fusions, slack splits, modes and lanes are enumerated; then, from the least order bound
upwards, all orders with offsets of lanes with at most 3 firings, until the bound of what is left
is no better than the best plan. Longer lanes are searched as `orders`
does: there the bound may stay below.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from pearl.assignment import Assignment, Orders, Timing, timing
from pearl.costs import CostTable, Mode
from pearl.errors import SpecError
from pearl.graph import TaskGraph
from pearl.limits import Limits
from pearl.solvers.choices import Program, cost_of, programs
from pearl.solvers.conflict import explain
from pearl.solvers.orders import FAR, Ordered, best_orders, ring_period, token_distances
from pearl.solvers.outcome import SAME, Found, Outcome

PLANS = 20_000
"""Assignments at most, and orders of one assignment at most."""

FIRINGS = 3
"""Firings of a lane at most for which every order is tried."""


def solve(
    graph: TaskGraph,
    costs: CostTable,
    objective: str,
    limits: Limits,
    deadline: float,
    seed: int,
) -> Outcome:
    """The best plan by enumeration. More than PLANS assignments are a SpecError saying how many;
    InfeasibleError where no plan meets the limits. `seed` changes nothing."""
    choices = programs(graph, costs, limits)
    ranked = []
    late = False
    for number, assignment in enumerate(_assignments(choices)):
        if number % 64 == 0 and time.monotonic() > deadline:
            late = True
            break
        bound = timing(assignment).order_bound_s
        cost, _ = cost_of(objective, assignment, bound, limits)
        if cost < math.inf:
            ranked.append((cost, number, assignment))
    ranked.sort(key=lambda r: r[:2])
    best: Found | None = None
    loose = 0.0 if late else math.inf
    for least, _, assignment in ranked:
        if best and least >= best.cost * (1 - SAME):
            break
        if time.monotonic() > deadline:
            late, loose = True, min(loose, least)
            break
        timed = timing(assignment)
        ordered = _every_order(timed) or best_orders(timed, deadline=deadline)
        cost, paced = cost_of(objective, assignment, ordered.period_s, limits)
        proven, _ = cost_of(objective, assignment, ordered.bound_s, limits)
        if proven < cost:
            loose = min(loose, proven)
        if cost < (best.cost if best else math.inf):
            best = Found(assignment, ordered, paced, cost)
    if best is None:
        raise explain(graph, costs, limits, least_cost)
    return Outcome(best, min(best.cost, loose), late)


def least_cost(choices: Sequence[Program], objective: str, limits: Limits) -> float:
    """The least cost (seconds or joules of an iteration) of any assignment, orders left out."""
    return min(
        (cost_of(objective, a, timing(a).order_bound_s, limits)[0] for a in _assignments(choices)),
        default=math.inf,
    )


def count(choices: Sequence[Program]) -> int:
    """Combinations of modes and lanes, before rules that couple tasks; stops above PLANS."""
    return sum(1 for _ in itertools.islice(_every(choices), PLANS + 1))


def _assignments(choices: Sequence[Program]) -> Iterator[Assignment]:
    total = count(choices)
    if total > PLANS:
        modes = sum(math.prod(len(m) for m in p.options) for p in choices)
        raise SpecError(
            f"method exhaustive: this graph has {modes} choices of modes and more than {PLANS} "
            f"assignments to lanes; at most {PLANS} are enumerated: use method 'milp'"
        )
    for program, assignment in _every(choices):
        if not program.broken(assignment):
            yield assignment


def _every(choices: Sequence[Program]) -> Iterator[tuple[Program, Assignment]]:
    for program in choices:
        for modes in itertools.product(*program.options):
            if any(len({modes[u].device for u in c}) > 1 for c in program.classes):
                continue
            for lanes in _partitions(modes, program.lanes, (), {}):
                yield program, Assignment(program.expansion, program.costs, modes, lanes)


def _partitions(
    modes: Sequence[Mode], most: Mapping[str, int], lanes: tuple[int, ...], used: Mapping[str, int]
) -> Iterator[tuple[int, ...]]:
    """Lane numbers unit by unit; a new lane of a device takes the next number."""
    u = len(lanes)
    if u == len(modes):
        yield lanes
        return
    device = modes[u].device
    have = used.get(device, 0)
    for lane in range(min(have + 1, most[device])):
        yield from _partitions(modes, most, (*lanes, lane), {**used, device: max(have, lane + 1)})


def _every_order(timed: Timing) -> Ordered | None:
    """The best of all orders; None where a lane has more than FIRINGS, or there are too many."""
    if max(len(members) for members in timed.lanes.values()) > FIRINGS:
        return None
    distance = token_distances(len(timed.names), timed.arcs)
    bound = timed.order_bound_s
    reach = 2 + math.ceil(sum(a[2] for a in timed.arcs) / bound) if bound > 0 else 2
    rings = []
    for members in timed.lanes.values():
        rows = []
        for order in itertools.permutations(members[1:]):
            ahead = []
            for i in order:  # the paths between two firings bound how far one runs ahead
                back, forth = int(distance[i, members[0]]), int(distance[members[0], i])
                low = 1 - back if back < FAR else (forth - reach if forth < FAR else -reach)
                high = forth if forth < FAR else low + reach
                ahead.append(range(low, high + 1))
            for offsets in itertools.product(*ahead):
                ring = _listed(timed, ((members[0], 0), *zip(order, offsets, strict=True)))
                if ring:
                    rows.append(ring)
        rings.append(rows)
    if math.prod(len(r) for r in rings) > PLANS:
        return None
    best: Orders = {}
    period = math.inf
    for choice in itertools.product(*rings):
        orders = dict(zip(timed.lanes, choice, strict=True))
        value = ring_period(timed, orders)
        if value < period:
            best, period = orders, value
        if period <= bound * (1 + 1e-12):
            break
    return Ordered(best, period, period)


def _listed(timed: Timing, ring: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...] | None:
    """A ring turned so that each task's entries stand in the order of its firings and no offset is
    negative; None where a task's firings are out of order, which never helps."""
    for _ in ring:
        seen: dict[str, list[int]] = {}
        for i, _o in ring:
            seen.setdefault(timed.names[i][0], []).append(timed.names[i][1])
        if all(f == sorted(f) for f in seen.values()):
            least = min(o for _, o in ring)
            return tuple((i, o - least) for i, o in ring)
        ring = (*ring[1:], (ring[0][0], ring[0][1] + 1))
    return None
