"""The rows that every plan of a space keeps: linear in the choice of modes and lanes, and in the
period. A bound is a sum of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pearl.planning.costs import Mode
from pearl.verification.model import Space, channel_bytes, delay_s, load_s, longest_s, strong_parts
from pearl_devices import Link

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Term = tuple[int, float]


@dataclass(frozen=True)
class Row:
    """Σ terms + constant ≤ tokens · period in every plan; for `equal`, both are equal.

    ends: for an arc, the nodes whose starts differ by as much; it counts only in closed cycles.
    """

    name: str
    terms: Sequence[Term]
    constant: float = 0.0
    tokens: float = 0.0
    equal: bool = False
    ends: tuple[int, int] | None = None


class SpaceRows:
    """The rows of a space, and the least cost under multipliers of them.

    A column is a way (mode, lane) of a unit; or 1 if two units have two places, if a message
    crosses a link, if a lane is used; or a lane's width as a share of its device's. All are 0 to 1.
    """

    def __init__(self, x: Space, objective: str) -> None:
        self.x, self.energy = x, objective == "power_efficiency"
        self.rows: list[Row] = []
        self.names = [d.name for d in x.problem.costs.platform.devices]
        idle = x.problem.costs.platform.idle_w
        self.idle_used, self.idle_unused = (np.array([*idle(d).values()]) for d in (self.names, ()))
        self._ways()
        self.joules: list[Term] = [
            (c, x.firings(u) * m.estimate.energy_j) for c, (u, m, _) in enumerate(self.ways)
        ]
        for add in (self._pairs, self._loads, self._rooms, self._arcs):
            add()
        from scipy.sparse import csr_array

        terms = [(r, c, v) for r, row in enumerate(self.rows) for c, v in row.terms]
        r, c, v = (list(each) for each in zip(*terms, strict=True)) if terms else ([], [], [])
        self.matrix: Any = csr_array((v, (c, r)), shape=(self.count, len(self.rows)))
        self.magnitude: Floats = np.asarray(abs(self.matrix).sum(axis=0), float)
        figures = [(row.constant, row.tokens, row.equal) for row in self.rows]
        sides: Floats = np.array(figures, float).reshape(-1, 3)
        self.constant, self.tokens, self.equal = sides[:, 0], sides[:, 1], sides[:, 2] > 0
        self.dynamic_j = np.zeros(self.count)
        np.add.at(self.dynamic_j, *(list(each) for each in zip(*self.joules, strict=True)))

    def column(self) -> int:
        self.count += 1
        return self.count - 1

    def _ways(self) -> None:
        x, limits = self.x, self.x.problem.limits
        couples = bool(x.problem.costs.lane_terms or limits.max_lanes or limits.rules)
        widest = [
            {m.device: max(o.width for o in modes if o.device == m.device) for m in modes}
            for modes in x.modes
        ]
        self.lanes: dict[str, int] = {}
        self.own: set[str] = set()
        for d in x.problem.costs.platform.devices:
            widths = [w[d.name] for w in widest if d.name in w]
            self.lanes[d.name] = min(x.lanes_on(d.name), len(widths))
            # With room for a lane of each unit, a plan with a lane of each is no worse.
            if not couples and len(widths) <= x.lanes_on(d.name) and sum(widths) <= d.width:
                self.own.add(d.name)
        # Lanes of a device are alike, so lane k may be the one whose first unit is at least k.
        self.ways: list[tuple[int, Mode, int]] = [
            (u, m, k)
            for u, modes in enumerate(x.modes)
            for m in modes
            for k in ((u,) if m.device in self.own else range(min(self.lanes[m.device], u + 1)))
        ]
        self.count = len(self.ways)
        self.unit = np.array([u for u, _, _ in self.ways], int)
        self.device = np.array([self.names.index(m.device) for _, m, _ in self.ways], int)
        class_of = {u: n for n, members in enumerate(x.classes) for u in members}
        self.class_of = np.array([class_of[u] for u in range(len(x.units))], int)

    def on(self, u: int, device: str, lane: int | None = None) -> list[int]:
        """The ways of a unit on a device, or on a lane."""
        return [
            c
            for c, (unit, m, k) in enumerate(self.ways)
            if unit == u and m.device == device and lane in (None, k)
        ]

    def _pairs(self) -> None:
        """Columns of two units' places, where their messages, pair terms or lanes make a
        difference: their sum over the places of one is the place of the other."""
        x, p, q = self.x, self.x.problem, self.x.problem.graph.repetition
        pairs: dict[tuple[int, int], set[str]] = {}

        def join(u: int, w: int, why: str) -> None:
            if u != w:
                pairs.setdefault((min(u, w), max(u, w)), set()).add(why)

        for e in p.graph.edges:
            size = x.payload(e)[0]
            if any(delay_s(k, size) + load_s(k, size) > 0 for k in p.costs.platform.links):
                join(x.unit_of[e.src], x.unit_of[e.dst], "message")
        single = {unit[0] for unit in x.units if len(unit) == 1}
        special: dict[tuple[int, int], list[tuple[int, object, object, float]]] = {}
        for ((a, of_a), (b, of_b)), s in p.costs.pair_extra_s.items():
            if {a, b} <= single:
                join(x.unit_of[a], x.unit_of[b], "mode")
                u, w = x.unit_of[a], x.unit_of[b]
                special.setdefault((min(u, w), max(u, w)), []).append((u, of_a, of_b, s))
        for a, b, _, _ in p.costs.lane_terms:
            join(x.unit_of[a], x.unit_of[b], "lane")
        for a, b in p.limits.apart:
            join(x.unit_of[a], x.unit_of[b], "lane")
        self.places: dict[tuple[int, int], list[tuple[str, str, int]]] = {}
        self.extra: dict[int, list[tuple[str, int | None, int, float]]] = {}
        for (u, w), why in pairs.items():
            terms = special.get((u, w), [])
            named = [{k for o, a, b, _ in terms for k in [a if o == v else b]} for v in (u, w)]
            sides: list[dict[tuple[str, int | None, Any], list[int]]] = [{}, {}]
            for c, (v, m, k) in enumerate(self.ways):
                if v in (u, w):
                    lane = k if why & {"lane", "mode"} else None
                    key3 = m.device, lane, m.key if m.key in named[v == w] else None
                    sides[v == w].setdefault(key3, []).append(c)
            sums: list[dict[object, list[Term]]] = [{}, {}]
            for at in sides[0]:
                for to in sides[1]:
                    shared = at[:2] == to[:2] and at[1] is not None
                    if shared and any(
                        {x.unit_of[t] for t in pair} == {u, w} for pair in p.limits.apart
                    ):
                        continue
                    c = self.column()
                    sums[0].setdefault(at, []).append((c, 1.0))
                    sums[1].setdefault(to, []).append((c, 1.0))
                    self.places.setdefault((u, w), []).append((at[0], to[0], c))
                    more = {u: 0.0, w: 0.0}
                    for owner, mine, theirs, s in terms:
                        if (at[2], to[2]) == ((mine, theirs) if owner == u else (theirs, mine)):
                            more[owner] += s
                    for one, other, s, together in p.costs.lane_terms:
                        v = x.unit_of[one]
                        if {v, x.unit_of[other]} == {u, w} and shared == together:
                            more[v] += s * (q[one] if len(x.units[v]) > 1 else 1)
                    for v, here in ((u, at), (w, to)):
                        if more[v]:
                            self.extra.setdefault(v, []).append((here[0], here[1], c, more[v]))
            for side, total, v in zip(sides, sums, (u, w), strict=True):
                for key3, ways in side.items():
                    sum_ = [*total.get(key3, []), *((c, -1.0) for c in ways)]
                    self.rows.append(Row(f"pair {u},{w} {v} {key3[0]}", sum_, equal=True))

    def crossing(self, u: int, w: int, src: str, dst: str) -> list[int]:
        """The columns of unit u on one device and unit w on another."""
        pair, ends = ((u, w), (src, dst)) if u < w else ((w, u), (dst, src))
        return [c for a, b, c in self.places.get(pair, ()) if (a, b) == ends]

    def busy(
        self, u: int, device: str, lane: int | None = None, *, latency: bool = False
    ) -> list[Term]:
        """Seconds of one firing of a unit on a device, or on a lane."""
        seconds = [
            (c, m.estimate.latency_s if latency else m.estimate.occupancy_s)
            for c in self.on(u, device, lane)
            for m in [self.ways[c][1]]
        ]
        return seconds + [
            (c, s) for d, k, c, s in self.extra.get(u, ()) if d == device and lane in (None, k)
        ]

    def _loads(self) -> None:
        x, p = self.x, self.x.problem
        host = p.costs.platform.host
        loads: dict[str, list[Term]] = {d: [] for d in self.names}
        per_lane: dict[tuple[str, int], list[Term]] = {}
        for u in range(len(x.units)):
            q = x.firings(u)
            for d in self.names:
                loads[d] += [(c, q * s) for c, s in self.busy(u, d)]
                for k in {k for v, m, k in self.ways if v == u and m.device == d}:
                    some = [(c, q * s) for c, s in self.busy(u, d, k)]
                    per_lane.setdefault((d, k), []).extend(some)
        links: dict[str, list[Term]] = {}
        for t in p.graph.tasks:
            u, sizes = x.unit_of[t.name], dict[int, float]()
            for e in p.graph.edges:
                if e.src == t.name and x.unit_of[e.dst] != u:
                    w, (size, messages) = x.unit_of[e.dst], x.payload(e)
                    sizes[w] = max(size, sizes.get(w, 0.0))
            for src in self.names if sizes else ():
                ends: dict[str, tuple[Link, bool]] = {}
                over: dict[tuple[str, int], list[int]] = {}
                for w in sizes:
                    for dst in self.names:
                        if columns := self.crossing(u, w, src, dst):
                            for n, (link, to) in enumerate(x.stops(src, dst)):
                                ends[to] = link, n > 0
                                over.setdefault((to, w), []).extend(columns)
                for to, (link, second) in ends.items():
                    ways = {w: columns for (end, w), columns in over.items() if end == to}
                    most = max(sizes[w] for w in ways)
                    count, bytes_ = self._copies(f"{t.name} {src}>{to}", ways, sizes, most)
                    fixed, per_byte = link.per_message_s, most / link.bytes_per_s
                    load = [(c, v * messages * fixed) for c, v in count]
                    load += [(c, v * messages * per_byte) for c, v in bytes_]
                    joules = messages * most * link.energy_j_per_byte
                    self.joules += [(c, v * joules) for c, v in bytes_]
                    if link.paid_by == "link":
                        links.setdefault(link.name, []).extend(load)
                    elif link.paid_by == "lane":
                        loads[to if second or src == host else src] += load
        self.rows += [
            Row(f"device {d}", terms, tokens=self.lanes[d]) for d, terms in loads.items() if terms
        ]
        for (d, k), terms in per_lane.items():
            if self.lanes[d] > 1:
                self.rows.append(Row(f"lane {d}.{k}", terms, tokens=1))
        self.rows += [Row(f"link {name}", terms, tokens=1) for name, terms in links.items()]
        if p.limits.max_lanes:
            every = [term for terms in loads.values() for term in terms]
            self.rows.append(Row("lanes", every, tokens=p.limits.max_lanes))

    def _copies(
        self,
        name: str,
        ways: dict[int, list[int]],
        sizes: dict[int, float],
        most: float,
    ) -> Sequence[list[Term]]:
        """Terms that count the copies of a task on one device to another, and their bytes as a
        share of `most`: one copy for all consumers there, with the size of the largest."""
        if len(ways) == 1:
            return ([(c, 1.0) for c in next(iter(ways.values()))],) * 2
        found = []
        for what in ("copy", "size"):
            column = self.column()
            for w, columns in ways.items():
                share = 1.0 if what == "copy" else (sizes[w] / most if most else 0.0)
                terms = [*((c, share) for c in columns), (column, -1.0)]
                self.rows.append(Row(f"{what} {name} {w}", terms))
            found.append([(column, 1.0)])
        return found

    def _rooms(self) -> None:
        """Rows of memory, widths and lanes, divided by what there is; of power and period."""
        x, p = self.x, self.x.problem
        needs, room = x.memory
        into = [0.0] * len(x.units)
        for e in x.bare.edges:
            if x.is_channel(e):
                into[x.unit_of[e.dst]] += channel_bytes(e)
        for d, size in room.items():
            if size < math.inf:
                kept = [(members[0], n) for members, n in zip(x.classes, needs, strict=True)]
                kept += list(enumerate(into))
                self._room(f"memory {d}", [(c, n) for u, n in kept for c in self.on(u, d)], size)
        for device in p.costs.platform.devices:
            lanes = sorted({k for _, m, k in self.ways if m.device == device.name})
            for k in lanes if device.unit_memory_bytes < math.inf else ():
                held = [
                    (c, m.unit_bytes + into[u])
                    for c, (u, m, lane) in enumerate(self.ways)
                    if (m.device, lane) == (device.name, k)
                ]
                self._room(f"unit memory {device.name}.{k}", held, device.unit_memory_bytes)
            if device.name not in self.own and len(lanes) > 1:
                self._shares(
                    f"widths {device.name}",
                    {(device.name, k) for k in lanes},
                    device.width,
                    wide=True,
                )
        places = {(m.device, k) for _, m, k in self.ways}
        if p.limits.max_lanes and p.limits.max_lanes < len(places):
            self._shares("max_lanes", places, p.limits.max_lanes, wide=False)
        self.longest = longest = longest_s(p)
        self.rows += [Row("period", (), -longest, -1)] if longest < math.inf else []
        self.power = len(self.rows)  # its row, if there is a limit
        self.most_w = p.limits.power_w or math.inf
        self.rows += [Row("power", self.joules)] if self.most_w < math.inf else []

    def _room(self, name: str, terms: list[Term], size: float) -> None:
        unit = size if size > 0 else 1.0
        if sum(v for _, v in terms) > size:
            self.rows.append(Row(name, [(c, v / unit) for c, v in terms], -size / unit))

    def _shares(self, name: str, places: set[tuple[str, int]], most: float, *, wide: bool) -> None:
        """Rows of a column for each lane, at least the width of each unit there or 1: at most
        `most` together."""
        column = {place: self.column() for place in sorted(places)}
        found: dict[tuple[int, tuple[str, int]], list[Term]] = {}
        for c, (u, m, k) in enumerate(self.ways):
            if (m.device, k) in places:
                size = m.width / most if wide else 1.0
                found.setdefault((u, (m.device, k)), []).append((c, size))
        for (u, place), terms in found.items():
            self.rows.append(Row(f"{name} {u} {place[1]}", [*terms, (column[place], -1.0)]))
        self._room(name, [(c, most if wide else 1.0) for c in column.values()], most)

    def _arcs(self) -> None:
        """Rows of the arcs between starts, and of the sequence of firings."""
        x, graph = self.x, self.x.problem.graph
        n = len(x.nodes)
        turn = [
            (i, x.first[u] + (f + 1) % x.firings(u), int(f + 1 == x.firings(u)))
            for i, (u, f) in enumerate(x.nodes)
            if x.firings(u) > 1
        ]
        pairs = [(s, d) for s, d, _, _ in x.arcs] + [(s, d) for s, d, _ in turn]
        self.part = part = strong_parts(n, pairs)
        seconds = {
            (u, late): [t for d in self.names for t in self.busy(u, d, latency=late)]
            for u in range(len(x.units))
            for late in (False, True)
        }
        delay: dict[int, list[Term]] = {}
        for number, e in enumerate(graph.edges):
            u, w, size = x.unit_of[e.src], x.unit_of[e.dst], x.payload(e)[0]
            delay[number] = [
                (c, sum(delay_s(link, size) for link, _ in x.stops(src, dst)))
                for src in self.names
                for dst in self.names
                if u != w and src != dst
                for c in self.crossing(u, w, src, dst)
            ]
        for s, d, m, number in x.arcs:
            if part[s] == part[d]:
                terms = seconds[x.nodes[s][0], True] + delay[number]
                self.rows.append(Row(f"arc {s}>{d}", terms, tokens=m, ends=(s, d)))
        for s, d, m in turn:
            terms = seconds[x.nodes[s][0], False]
            self.rows.append(Row(f"arc {s}>{d}", terms, tokens=m, ends=(s, d)))

    @cached_property
    def every(self) -> Mask:
        """All ways of devices that a class has in common."""
        return self.narrow(np.ones(len(self.ways), bool))

    def narrow(self, open_: Mask) -> Mask:
        """Return the ways on devices that each unit of the class may still have."""
        has = np.zeros((len(self.x.units), len(self.names)), bool)
        has[self.unit[open_], self.device[open_]] = True
        common = np.ones((len(self.x.classes), len(self.names)), bool)
        np.logical_and.at(common, self.class_of, has)
        left: Mask = open_ & common[self.class_of[self.unit], self.device]
        return left

    def idle_w(self, open_: Mask) -> float:
        """Watts of the devices that every plan left uses."""
        has = np.zeros((len(self.x.units), len(self.names)), bool)
        has[self.unit[open_], self.device[open_]] = True
        sure = has[has.sum(axis=1) == 1].any(axis=0)
        return float(np.where(sure, self.idle_used, self.idle_unused).sum())

    def _breaks_rule(self, open_: Mask) -> bool:
        """Return whether the units with one way left break a further limit."""
        rules = self.x.problem.limits.rules
        if not rules:
            return False
        sure = np.bincount(self.unit[open_], minlength=len(self.x.units)) == 1
        decided = np.flatnonzero(open_ & sure[self.unit])
        calls = [self.x.call(*self.ways[c]) for c in decided]
        return any(not rule.holds(calls) for rule in rules)

    def least_cost(self, open_: Mask, y: Floats) -> float:
        """Return what the multipliers of rows prove: no plan of the ways left costs less.

        Each class takes its best device, each unit its best way there, every other column 0 or 1.
        Rounding is subtracted. -inf: they need more of the period than it costs.
        """
        if self._breaks_rule(open_):
            return math.inf
        idle = self.idle_w(open_)
        weight, tokens = (idle if self.energy else 1.0), self.tokens
        if self.most_w < math.inf:
            tokens = tokens.copy()
            tokens[self.power] = self.most_w - idle
        if not tokens @ y <= weight:
            return -math.inf
        cost = self.matrix @ y + (self.dynamic_j if self.energy else 0.0)
        least = np.full((len(self.x.units), len(self.names)), math.inf)
        ways = cost[: len(self.ways)]
        np.minimum.at(least, (self.unit[open_], self.device[open_]), ways[open_])
        per_class = np.zeros((len(self.x.classes), len(self.names)))
        np.add.at(per_class, self.class_of, least)
        total = per_class.min(axis=1).sum() + np.minimum(cost[len(self.ways) :], 0.0).sum()
        if total == math.inf:
            return math.inf
        size = (self.magnitude + abs(self.constant)) @ abs(y)
        size += self.dynamic_j.sum() if self.energy else 0.0
        rounding = 4 * np.finfo(float).eps * (self.count + len(self.rows)) * size
        return float(total + self.constant @ y - rounding)
