"""Every assignment and every order: the oracle that other methods are tested against.

All replicas, fusions, slack of every edge from 0 to its limit, modes and lanes are enumerated;
then, from the least order bound upwards, all orders with offsets of lanes with at most 3 firings,
until the bound of what is left is no better than the best plan. Longer lanes are searched as
`orders` does: there the bound may stay below. Of plans that cost the same, one of least slack is
taken.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pearl.assignment import Assignment, Orders, Timing, timing
from pearl.costs import CostTable, Mode, split_costs
from pearl.errors import InfeasibleError, SpecError
from pearl.graph import TaskGraph
from pearl.limits import SLACK_LIMITS, Limits
from pearl.period import expand
from pearl.replicas import GRAINS, Split, split_graph, split_limits, splits
from pearl.solvers.choices import (
    Program,
    check_names,
    cost_of,
    fusion_choices,
    program_of,
)
from pearl.solvers.conflict import explain
from pearl.solvers.makespan import ends_s, listed_by, makespan_programs
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
    if objective == "makespan":
        return _soonest(graph, costs, limits, deadline)
    choices = every_program(graph, costs, limits)
    ranked = []
    late = False
    for number, assignment in enumerate(assignments(choices)):
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
        raise explain(graph, costs, limits)
    spare = [
        (_slack(a), number, a)
        for least, number, a in ranked
        if least <= best.cost * (1 + SAME) and _slack(a) < _slack(best.assignment)
    ]
    for _, _, assignment in sorted(spare, key=lambda r: r[:2]):
        if time.monotonic() > deadline:
            break
        timed = timing(assignment)
        ordered = _every_order(timed) or best_orders(timed, deadline=deadline)
        cost, paced = cost_of(objective, assignment, ordered.period_s, limits)
        if cost <= best.cost * (1 + SAME):
            best = Found(assignment, ordered, paced, cost)
            break
    return Outcome(best, min(best.cost, loose), late)


def _soonest(graph: TaskGraph, costs: CostTable, limits: Limits, deadline: float) -> Outcome:
    """The plan whose first iteration ends soonest, by enumeration: entries that run ahead change
    nothing in the first iteration, so all orders without offsets are all there are."""
    makespan_programs(graph, costs, limits)  # for its errors
    none = replace(limits, **dict.fromkeys(SLACK_LIMITS, 0))  # type: ignore[arg-type]
    ranked = []
    for number, a in enumerate(assignments(every_program(graph, costs, none))):
        timed = timing(a)
        start = _starts(timed, {})
        firings = range(len(a.expansion.nodes))
        lanes = [a.lane(u) for u in range(len(a.modes))]
        loads = [timed.loads_s[lane] for lane in lanes]
        assert start is not None
        ranked.append((max(*(start[i] + timed.latency_s[i] for i in firings), *loads), number, a))
        if number % 64 == 0 and time.monotonic() > deadline:
            break
    late = time.monotonic() > deadline
    best: Found | None = None
    loose = 0.0 if late else math.inf
    for least, _, a in sorted(ranked, key=lambda r: r[:2]):
        if best and least >= best.cost * (1 - SAME):
            break
        if best and time.monotonic() > deadline:
            late, loose = True, min(loose, least)
            break
        found, proven = _soonest_order(a, least)
        loose = loose if proven else min(loose, least)
        if found and found.cost < (best.cost if best else math.inf):
            best = found
    if best is None:
        raise explain(graph, costs, limits)
    return Outcome(best, min(best.cost, loose), late)


def _soonest_order(a: Assignment, least: float) -> tuple[Found | None, bool]:
    """The best of all orders of an assignment, and whether these are all; where they are too many,
    the one in the order in which firings could start."""
    timed = timing(a)
    rings = [list(itertools.permutations(m)) for m in timed.lanes.values() if len(m) <= FIRINGS]
    every = len(rings) == len(timed.lanes) and math.prod(map(len, rings)) <= PLANS
    if not every:
        free = _starts(timed, {}) or []
        keys = [(t, t, float(i)) for i, t in enumerate(free)]
        listed, start = listed_by(timed, keys)
        return _timed(timed, listed, start), False
    best: Found | None = None
    for choice in itertools.product(*rings):
        orders = dict(zip(timed.lanes, (tuple((i, 0) for i in r) for r in choice), strict=True))
        if any(not _in_turn(timed, r) for r in choice):
            continue
        found_start = _starts(timed, orders)
        if found_start is not None:
            if best is None or ends_s(timed, found_start) < best.cost:
                best = _timed(timed, orders, found_start)
            if best.cost <= least * (1 + 1e-12):
                break
    return best, True


def _timed(timed: Timing, orders: Orders, start: Sequence[float]) -> Found:
    period = ring_period(timed, orders)
    ordered = Ordered(orders, period, timed.order_bound_s)
    return Found(timed.assignment, ordered, period, ends_s(timed, start))


def _in_turn(timed: Timing, ring: Sequence[int]) -> bool:
    """Whether each task's firings stand in their own order; another one never helps."""
    firings: dict[str, list[int]] = {}
    for i in ring:
        firings.setdefault(timed.names[i][0], []).append(timed.names[i][1])
    return all(f == sorted(f) for f in firings.values())


def _starts(timed: Timing, orders: Orders) -> list[float] | None:
    """When each node of the first iteration starts; None where the orders deadlock."""
    n = len(timed.names)
    arcs = [(s, d, w) for s, d, w, m in timed.arcs if m == 0]
    for ring in orders.values():
        arcs += [(a, b, timed.occupancy_s[a]) for (a, _), (b, _) in itertools.pairwise(ring)]
    out: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    waits = [0] * n
    for s, d, w in arcs:
        out[s].append((d, w))
        waits[d] += 1
    start = [0.0] * n
    sequence = [i for i in range(n) if waits[i] == 0]
    for i in sequence:
        for d, w in out[i]:
            start[d] = max(start[d], start[i] + w)
            waits[d] -= 1
            if waits[d] == 0:
                sequence.append(d)
    return start if len(sequence) == n else None


def every_program(graph: TaskGraph, costs: CostTable, limits: Limits) -> list[Program]:
    """Every choice of replicas, fused modes and slack within the limits, with every mode. Errors as
    `choices.programs`, and a SpecError where there are more than PLANS."""
    check_names(graph, costs, limits)
    expand(graph)
    found: list[Program] = []
    first_error: InfeasibleError | None = None
    for split in _every_split(graph, limits):
        torn = split_graph(graph, split)
        table, allowed = split_costs(costs, split), split_limits(limits, split)
        vectors = _every_slack(torn, limits)
        for slack, fused in itertools.product(vectors, list(fusion_choices(torn, table))):
            try:
                x = expand(torn.with_slack(slack), fused)
            except SpecError:  # a fused call that would wait for itself
                continue
            try:
                found.append(program_of(x, table, allowed, every_mode=True))
            except InfeasibleError as error:
                first_error = first_error or error
            _refuse_more(len(found), "choices of replicas, fused modes and slack")
    if not found and first_error:
        raise first_error
    return found


def _refuse_more(number: float, what: str) -> None:
    if number > PLANS:
        raise SpecError(
            f"method exhaustive: there are more than {PLANS} {what}; that many at most are "
            "enumerated: use method 'milp'"
        )


def _every_split(graph: TaskGraph, limits: Limits) -> Iterator[Split]:
    """Replicas by trying all shares, against the rules of `pearl.replicas`: largest first, and
    multiples of an eighth of the environments (what is left over on the first) or nearly equal."""
    splits(graph, limits)  # for its errors
    yield Split()
    able = [t for t in graph.tasks if t.environments and limits.replicas.get(t.name, 1) > 1]
    for chosen in itertools.product((True, False), repeat=len(able)):
        tasks = [t for t, taken in zip(able, chosen, strict=True) if taken]
        if not tasks or len({t.environments for t in tasks}) > 1:
            continue
        whole, most = tasks[0].environments, min(limits.replicas[t.name] for t in tasks)
        unit = math.ceil(whole / GRAINS)
        for copies in range(2, most + 1):
            _refuse_more(float(whole - 1) ** copies, "ways to share out environments")
            for shares in itertools.product(range(1, whole), repeat=copies):
                falling = all(a >= b for a, b in itertools.pairwise(shares))
                if sum(shares) != whole or not falling:
                    continue
                grained = [shares[0] - whole % unit, *shares[1:]]
                whole_grains = all(n % unit == 0 and n > 0 for n in grained)
                if shares[0] - shares[-1] <= 1 or (
                    whole_grains and all(a >= b for a, b in itertools.pairwise(grained))
                ):
                    yield Split(tuple(t.name for t in tasks), shares)


def _every_slack(graph: TaskGraph, limits: Limits) -> list[dict[tuple[str, str], int]]:
    """Slack of every edge with a limit, each from 0 up; prefetch and deferral within the limit of
    staleness together. By rising sum."""
    keyed = [e for e in graph.edges if e.limit]
    ranges = [range(max(e.slack, getattr(limits, e.limit or "")) + 1) for e in keyed]
    _refuse_more(math.prod(float(len(r)) for r in ranges), "choices of slack")
    found = []
    for slack in itertools.product(*ranges):
        of = {
            key: max((n for e, n in zip(keyed, slack, strict=True) if e.limit == key), default=None)
            for key in ("prefetch", "priority_staleness")
        }
        ahead, late = of["prefetch"], of["priority_staleness"]
        if ahead is None or late is None or ahead + late <= limits.priority_staleness:
            found.append({(e.src, e.dst): n for e, n in zip(keyed, slack, strict=True)})
    return sorted(found, key=lambda v: sum(v.values()))


def _slack(a: Assignment) -> int:
    return sum(e.slack for e in a.expansion.graph.edges if e.limit)


def least_cost(choices: Sequence[Program], objective: str, limits: Limits) -> float:
    """The least cost (seconds or joules of an iteration) of any assignment, orders left out."""
    return min(
        (cost_of(objective, a, timing(a).order_bound_s, limits)[0] for a in assignments(choices)),
        default=math.inf,
    )


def count(choices: Sequence[Program]) -> int:
    """Combinations of modes and lanes, before rules that couple tasks; stops above PLANS."""
    return sum(1 for _ in itertools.islice(_every(choices), PLANS + 1))


def assignments(choices: Sequence[Program]) -> Iterator[Assignment]:
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
