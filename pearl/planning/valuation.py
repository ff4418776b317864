"""The value of a plan under many samples of its times, without solving anything again.

With its lane orders a plan is a timed graph whose arcs are sums of sampled times and a constant, so
its period in each sample is a maximum cycle ratio. All samples are computed at once. The ratio of
the known cycles is a lower bound, and longest paths at that period (one number per sample on every
node) prove it. If they do not end in a sample, Howard's algorithm finds another cycle there. Where
that algorithm runs compiled, it values every sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pearl.graph.cycle_ratio import Arc, CyclicPart, howard
from pearl.graph.period import topological
from pearl.planning.bands import Bands
from pearl.planning.draws import Draws, Vector
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph
from pearl.time_limit import watched

Rows = NDArray[np.float64]
"""A row of numbers, one for each sample, of every arc or node."""

SAME = 1e-9
"""Relative difference below which two periods count as equal."""

COMPILED_ARCS = 4_000
"""From this number of arcs on, valuing loads numba for policy iteration, which may run for every
sample (assumed)."""

PATIENCE = 4
"""Passes over all arcs in which longest paths usually end; then a cycle is searched."""


@dataclass(frozen=True)
class SampledValues:
    """Period and energy of an iteration in each sample, shape (draws,), seconds and joules. A limit
    on power slows the periods down.

    period_s, energy_j: of an iteration, shape (number of samples,).
    """

    period_s: Vector
    energy_j: Vector


def evaluate_samples(
    timed: TimedGraph,
    orders: Orders,
    draws: Draws,
    *,
    held: Sequence[Arc] = (),
    power_w: float | None = None,
    pace_s: float | None = None,
) -> SampledValues:
    """Return the values of a plan in every sample.

    held: the arcs of full channels, in seconds of latency of their source.
    power_w: limit that paces the plan; a sample in which idling alone exceeds it has an infinite
        period.
    pace_s: least time of an iteration; None: as fast as possible.
    """
    a = timed.assignment
    factors = [draws.factors(m, a.expansion.graph, a.costs) for m in a.modes]
    natural = _periods(timed, timed.ring(orders), held, factors, _drawn_links(a, draws))
    natural = np.maximum(natural, pace_s or 0.0)
    dynamic = np.full(draws.number, math.fsum(h.energy_j for h in a.hops.values()))
    watts, unchanged = draws.watts(a.costs), np.ones(draws.number)
    for u, m in enumerate(a.modes):
        joules = a.expansion.firings(u) * m.estimate.energy_j
        dynamic += joules * factors[u] * watts.get(m.device, unchanged)
    idle_w = np.zeros(draws.number)
    for name, some in a.idle_w.items():
        idle_w += some * watts.get(name, unchanged)
    period = natural
    if power_w is not None:
        spare = power_w - idle_w
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.where(spare > 0, dynamic / spare, np.inf)
        over = dynamic + idle_w * natural > power_w * natural
        period = np.where(over, np.maximum(natural, least), natural)
    with np.errstate(invalid="ignore"):
        return SampledValues(period, idle_w * period + dynamic)


def least_periods(assignment_timed: TimedGraph, draws: Draws) -> Vector:
    """Return a lower bound of the period for any lane order in each sample: shape (draws,)."""
    a = assignment_timed.assignment
    factors = [draws.factors(m, a.expansion.graph, a.costs) for m in a.modes]
    return _periods(assignment_timed, (), (), factors, _drawn_links(a, draws))


@dataclass(frozen=True)
class _DrawnLinks:
    """Links with the same error. factor: on their seconds in each sample. twice: the plan's graph
    if they take twice as long; seconds of a link enter each of its numbers linearly."""

    factor: Vector
    twice: TimedGraph

    def more(self, nominal: Sequence[float], twice: Sequence[float]) -> Rows:
        """Return the additions to numbers of the graph in each sample."""
        rows: Rows = np.outer(np.array(twice) - np.array(nominal), self.factor - 1)
        return rows


def _drawn_links(a: Assignment, draws: Draws) -> list[_DrawnLinks]:
    """The links in use whose seconds are sampled."""
    used = {hop.link.name for hop in a.hops.values()}
    drawn = {name: f for name, f in draws.link_factors(a.costs).items() if name in used}
    alike: dict[bytes, set[str]] = {}
    for name, factor in drawn.items():
        alike.setdefault(factor.tobytes(), set()).add(name)
    platform, groups = a.costs.platform, []
    for names in alike.values():
        links = tuple(k.slower(2.0) if k.name in names else k for k in platform.links)
        costs = replace(a.costs, platform=replace(platform, links=links))
        groups.append(_DrawnLinks(drawn[min(names)], build_timed_graph(replace(a, costs=costs))))
    return groups


def _periods(
    timed: TimedGraph,
    rings: Sequence[Arc],
    held: Sequence[Arc],
    factors: Sequence[Vector],
    crossings: Sequence[_DrawnLinks],
) -> Vector:
    a, n = timed.assignment, len(timed.names)
    number = len(factors[0])
    own, latency, occupancy = _times(timed, a, factors, crossings, number)
    loads = [occupancy[list(members)].sum(axis=0) for members in timed.lanes.values()]
    least = np.maximum.reduce(loads) if loads else np.zeros(number)
    rows = [*timed.arcs, *held, *rings]
    if not rows:
        return least
    weights = []
    for times, nominal, arcs in (
        (own, timed.latency_s, timed.arcs),
        (latency, timed.latency_s, held),
        (occupancy, timed.occupancy_s, rings),
    ):
        tails = np.array([s for s, _, _, _ in arcs], int)
        fixed = np.array([w for _, _, w, _ in arcs]) - np.array(nominal)[tails]
        weights.append(times[tails] + fixed[:, None])
    for c in crossings:
        twice = [w for _, _, w, _ in c.twice.arcs]
        weights[0] += c.more([w for _, _, w, _ in timed.arcs], twice)
    if not crossings and all(np.all(f == f[0]) for f in factors):  # nothing varies
        seconds = np.concatenate(weights)[:, 0].tolist()
        exact = [(s, d, w, m) for (s, d, _, m), w in zip(rows, seconds, strict=True)]
        return np.maximum(least, howard(n, exact)[0])
    return _ratios(n, rows, np.concatenate(weights), least)


def _times(
    timed: TimedGraph,
    a: Assignment,
    factors: Sequence[Vector],
    crossings: Sequence[_DrawnLinks],
    number: int,
) -> tuple[Rows, Rows, Rows]:
    """Seconds of every node in each sample: latency without the links' changes, latency,
    occupancy."""
    own = np.tile(np.array(timed.latency_s)[:, None], number)
    occupancy = np.tile(np.array(timed.occupancy_s)[:, None], number)
    units = [u for u, _ in a.expansion.nodes]
    for times, seconds in (own, a.latency_s), (occupancy, a.occupancy_s):
        # costs of crossing between lanes are not sampled
        more = [(seconds(u) - a.lane_extra_s[u]) * (f - 1) for u, f in enumerate(factors)]
        times[: len(units)] += np.array(more)[units]
    latency = own.copy()
    for c in crossings:
        latency += c.more(timed.latency_s, c.twice.latency_s)
        occupancy += c.more(timed.occupancy_s, c.twice.occupancy_s)
    return own, latency, occupancy


def _ratios(n: int, arcs: Sequence[Arc], weights: NDArray[np.float64], least: Vector) -> Vector:
    """The maximum cycle ratio in each sample, at least `least`. weights: (arcs, draws), seconds."""
    tokens = np.array([a[3] for a in arcs], float)
    ratios, part = least.copy(), CyclicPart.of(n, arcs)
    compiled, policy = part.compiles(COMPILED_ARCS), np.full(n, -1)

    def learn(draw: int) -> None:
        """Add the critical cycle of a sample to the known ones."""
        seconds: Any = weights[part.arcs, draw]
        seconds = seconds if compiled else seconds.tolist()
        ratio, cycle = part.find_critical(seconds, compiled=compiled, policy=policy)
        if ratio > ratios[draw] * (1 + SAME):
            round_s = weights[cycle].sum(axis=0) / max(tokens[cycle].sum(), 1e-300)
            np.maximum(ratios, round_s, out=ratios)
        ratios[draw] = max(ratios[draw], ratio)

    learn(0)
    if compiled:  # a search that begins with a good policy takes less than longest paths
        for draw in range(1, len(ratios)):
            learn(draw)
        return ratios
    # In this order most paths are longest after one pass.
    early = topological(n, [(s, d) for s, d, _, m in watched(arcs) if m <= 0])
    place = {u: i for i, u in enumerate(early)}
    order = sorted(range(len(arcs)), key=lambda e: place[arcs[e][0]])
    value = np.zeros((n, len(ratios)))
    exact = np.zeros(len(ratios), bool)
    while True:
        slack, small = weights - tokens[:, None] * ratios, SAME * (ratios + 1e-300)
        for _ in range(PATIENCE):
            before = value.copy()
            for e in watched(order):
                s, d, _, _ = arcs[e]
                np.maximum(value[d], value[s] + slack[e], out=value[d])
            grown = np.where(exact, 0.0, (value - before).max(axis=0))
            if np.all(grown <= small):
                return ratios
        known = ratios.copy()
        for draw in np.argsort(-grown / (ratios + 1e-300)):
            if grown[draw] > small[draw] and ratios[draw] == known[draw]:
                learn(int(draw))
                exact[draw] = True


def build_bands(
    values: SampledValues, draws: Draws, env_steps: float, updates: float, batch: float
) -> Bands:
    """Return the 90 % bands of a plan's rates, power and energy."""

    def ends(row: Vector) -> tuple[float, float] | None:
        if not np.all(np.isfinite(row)):
            return None
        low, high = np.quantile(row, (0.05, 0.95))
        return float(low), float(high)

    rate, energy = 1 / values.period_s, values.energy_j
    with np.errstate(divide="ignore", invalid="ignore"):
        per_j, watts = env_steps / energy, energy * rate
    return Bands(
        draws=draws.number,
        seed=draws.seed,
        period_s=ends(values.period_s),
        env_steps_per_s=ends(env_steps * rate),
        updates_per_s=ends(updates * rate),
        samples_per_s=ends(updates * batch * rate),
        energy_per_iteration_j=ends(energy),
        power_w=ends(watts),
        env_steps_per_j=ends(per_j) if env_steps else None,
        missed=int(np.isinf(values.period_s).sum()),
    )
