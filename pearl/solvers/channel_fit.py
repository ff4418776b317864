"""Plans whose channels fit into memory.

Search spaces count channels at their least capacities, with no more slack than the graph's own. So
their bounds hold for every plan. The channels that a plan needs for its period may be larger. Here
the plan gets capacities that fit, at a longer period if need be, or less slack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.cycle_ratio import howard
from pearl.graph.parallel_edges import key_edges
from pearl.graph.period import expand, token_free_cycle
from pearl.planning.capacities import (
    ChannelRoom,
    Channels,
    capacities_within,
    cut_capacities,
    least_capacities,
)
from pearl.planning.plan_builder import makespan_s
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import split_of
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph
from pearl.solvers.model.result import SAME, Candidate
from pearl.solvers.model.search_space import cost_of, space_of
from pearl.solvers.orders.lane_sequencing import OrderResult, best_orders
from pearl.solvers.orders.list_orders import listed_orders

NODES = 40
"""Searched nodes of the orders of a plan with less slack (assumed)."""

TURNS = 6
"""Most orders for which the capacities of a plan are searched (assumed)."""


def fit_channels(
    first: Candidate, further: Iterable[Candidate], problem: Problem, deadline: float
) -> tuple[Candidate, Channels | None]:
    """Return a plan with channels that fit into memory: the first one unchanged if it has some, or
    if its channels fit, else the best of these plans. The channels are None if memory has no limit.

    Raises:
        InfeasibleError: no channels that fit were found; this proves nothing.
    """
    if first.channels or not _has_limit(first.assignment, problem):
        return first, first.channels
    best: tuple[Candidate, Channels] | None = None
    excess = 0.0
    for candidate in chain([first], further):
        for tried in _with_less_slack(candidate, problem, deadline):
            over, fitted = _fitted(tried, problem, deadline)
            excess = max(excess, over)
            if fitted and fitted[0].cost < (best[0].cost * (1 - SAME) if best else math.inf):
                best = fitted
            if best and best[0].cost <= first.cost * (1 + SAME):
                return best
    if best is None:
        raise InfeasibleError(
            "no plan was found whose channels fit into memory; for the best one, channels hold "
            f"{excess:.3g} bytes too many on some device, and none is excluded: give the device "
            "more memory, allow fewer tokens or smaller messages (Edge.bytes), or give more time"
        )
    return best


def _fitted(
    tried: Candidate, problem: Problem, deadline: float
) -> tuple[float, tuple[Candidate, Channels] | None]:
    """Return the bytes that are too many for the plan's period, and the plan with channels that
    fit, None if none were found. Orders and capacities are improved in turn."""
    a, single = tried.assignment, problem.objective == "makespan"
    timed, room = build_timed_graph(a), channel_room(a, problem)
    rings = [*timed.arcs, *timed.ring(tried.ordered.orders)]
    if token_free_cycle(len(timed.names), rings):
        return 0.0, None
    natural = howard(len(timed.names), rings)[0]
    wanted = least_capacities(timed, rings, natural, whole=single)
    excess = room.excess_bytes(a, wanted.capacity)
    if not excess:
        cost, paced = cost_of(problem, a, natural)
        if single:
            cost, paced = makespan_s(timed, [*rings, *wanted.held]), tried.period_s
        return 0.0, (replace(tried, period_s=paced, cost=cost), wanted)
    over, best = max(excess.values()), None
    cut = cut_capacities(timed, wanted.capacity, room)
    if cut is None:
        return over, None
    orders = [tried.ordered.orders]
    if not single:
        orders.append(_ordered_with(timed, cut, deadline))
    for order in orders:
        rings = [*timed.arcs, *timed.ring(order)]
        if single:
            if token_free_cycle(len(timed.names), [*rings, *cut.held]):
                continue
            cost, paced = makespan_s(timed, [*rings, *cut.held]), tried.period_s
            period, channels = tried.ordered.period_s, cut
        else:
            found = capacities_within(timed, rings, natural, room)
            if found is None:
                continue
            channels, period = found
            cost, paced = cost_of(problem, a, period)
            if len(orders) < TURNS and (best is None or cost < best[0].cost * (1 - SAME)):
                orders.append(_ordered_with(timed, channels, deadline))
        if cost < (best[0].cost * (1 - SAME) if best else math.inf):
            bound_s = min(tried.ordered.bound_s, period)
            ordered = OrderResult(order, period, bound_s)
            best = Candidate(a, ordered, paced, cost), channels
    return over, best


def _ordered_with(timed: TimedGraph, channels: Channels, deadline: float) -> Orders:
    """Return the best orders found for these capacities."""
    waiting = replace(timed, arcs=(*timed.arcs, *channels.held))
    return best_orders(waiting, deadline=deadline, nodes=NODES).orders


def channel_room(a: Assignment, problem: Problem) -> ChannelRoom:
    """Return the memory that the states and modes of an assignment leave for channels."""
    x = a.expansion
    space = space_of(x, split_problem(problem, split_of(x.graph)), every_mode=True)
    device = dict(space.capacity_bytes)
    for members, size in zip(space.classes, space.memory_bytes, strict=True):
        held = sum(space.read_bytes[u] for u in members)
        device[a.modes[members[0]].device] -= size - held
    unit = {lane: space.unit_capacity_bytes[lane[0]] - kept for lane, kept in a.unit_bytes.items()}
    return ChannelRoom(device, unit)


def _has_limit(a: Assignment, problem: Problem) -> bool:
    """Return whether a device of the assignment has a limit of memory and reads a channel."""
    limited = {
        d.name
        for d in problem.costs.platform.devices
        if min(d.memory_bytes, d.unit_memory_bytes) < math.inf
    } | set(problem.limits.memory_bytes)
    return any(
        e.is_channel and a.unit_of[e.src] != a.unit_of[e.dst] and a.device_of(e.dst) in limited
        for e in a.expansion.graph.edges
    )


def _with_less_slack(
    candidate: Candidate, problem: Problem, deadline: float
) -> Iterator[Candidate]:
    """Yield a plan, the plan with list orders, and both with less and less slack."""
    a = candidate.assignment
    x = a.expansion
    own = split_problem(problem, split_of(x.graph)).graph
    least = {key: e.slack for key, e in key_edges(own.edges).items()}
    now = {key: e.slack for key, e in key_edges(x.graph.edges).items() if key in least}
    most = max((now[key] - least[key] for key in now), default=0)
    yield candidate
    timed = build_timed_graph(a)
    yield _ordered(candidate, a, listed_orders(timed, math.inf))
    for level in reversed(range(most)):
        slack = {key: min(now[key], least[key] + level) for key in now}
        try:
            less = expand(x.graph.with_slack(slack), [u for u in x.units if len(u) > 1])
        except SpecError:  # a fused call needs the slack
            return
        tighter = replace(a, expansion=less)
        timed = build_timed_graph(tighter)
        yield replace(
            candidate,
            assignment=tighter,
            ordered=best_orders(timed, deadline=deadline, nodes=NODES),
        )
        yield _ordered(candidate, tighter, listed_orders(timed, math.inf))


def _ordered(candidate: Candidate, a: Assignment, listed: tuple[Orders, float]) -> Candidate:
    orders, period_s = listed
    bound_s = min(candidate.ordered.bound_s, period_s)
    return replace(candidate, assignment=a, ordered=OrderResult(orders, period_s, bound_s))
