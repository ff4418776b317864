"""One iteration of a search space as a constraint program for OR-Tools' CP-SAT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pearl.planning.timing import Assignment, build_timed_graph, delay_s
from pearl.solvers.makespan.cpsat_rows import extra_ticks, lane_rules, memory_rows
from pearl.solvers.model.dag_instance import DagInstance, fastest, order_by_times, start_times_s
from pearl.solvers.model.result import Candidate
from pearl.time_limit import look
from pearl_devices import Link

PAIRS = 100_000
"""Largest number of rows for transfers between pairs of devices; above, an edge has its least
delay."""

NUMBERED = 200
"""Largest number of choices of modes and lanes of a device whose equal lanes are told apart for
firings of no time; above, such firings run beside all others, so that the bound may be too low."""

TICKS = 4_000_000
"""Ticks of the horizon for every firing on a chain: rounding every time by less than a tick is
then below 1e-6 of the horizon."""


def ticks_per_s(values: Sequence[float], horizon: float, firings: int) -> tuple[float, bool]:
    """Return the ticks per second, and whether all values are whole ticks (to a relative 1e-9)."""
    most = TICKS * max(1, firings)
    if horizon <= 0:
        return 1.0, True
    for power in range(-3, 13):
        scale = 10.0**power
        if horizon * scale > most:
            break
        if all(abs(v * scale - round(v * scale)) <= 1e-9 * max(1.0, v * scale) for v in values):
            return scale, True
    return most / horizon, False


class Model:
    """One iteration of a search space as a constraint program.

    The program is a relaxation: it omits the occupancy of copies on lanes that pay for them, and
    times below a tick.
    """

    def __init__(self, it: DagInstance, best: Candidate | None, below: float, floor: float) -> None:
        from ortools.sat.python import cp_model

        self.it = it
        p = it.space
        horizon = below
        times = [
            t
            for modes in p.options
            for m in modes
            for t in (m.estimate.latency_s, m.estimate.occupancy_s)
        ]
        times += [abs(extra) for extra in p.costs.pair_extra_s.values()]
        times += [extra for _, _, extra, _ in p.costs.lane_terms]
        for v, row in enumerate(it.before):
            for s, size, _ in row:
                times += [
                    it.delay_s(d, e, size)
                    for d in it.devices[it.unit[s]]
                    for e in it.devices[it.unit[v]]
                ]
        copying = [k for k in p.costs.platform.links if k.paid_by == "link"]
        sizes = {size for row in it.before for _, size, _ in row}
        times += [k.per_message_s + size / k.bytes_per_s for k in copying for size in sizes]
        self.scale, self.exact = ticks_per_s(sorted(set(times)), horizon, len(it.order))
        self.horizon = math.ceil(horizon * self.scale * (1 + 1e-12))
        low = math.ceil(floor * self.scale - 1e-3) if self.exact else self.ticks(floor)
        self.floor = max(0, min(low, self.horizon))
        self.model = cp_model.CpModel()
        self._choices()
        self._firings()
        self._precedence()
        self._lanes()
        memory_rows(self.model, p, self.on)
        lane_rules(self.model, p, self.x)
        self.model.minimize(self.span)
        if best is not None:
            self._hint(best)

    def ticks(self, seconds: float) -> int:
        """Return whole ticks, rounded down so that the program stays a relaxation."""
        return round(seconds * self.scale) if self.exact else math.floor(seconds * self.scale)

    def _choices(self) -> None:
        """Add the variables: x, option (and lane, if lanes differ) of a unit; on, device of a
        class."""
        p, m = self.it.space, self.model
        self.by_lane: dict[str, bool] = {}
        for d in p.costs.platform.devices:
            users = [(u, w) for u, o in enumerate(p.options) for w in o if w.device == d.name]
            widest = max((w.width for _, w in users), default=0)
            lanes = min(p.lanes[d.name], len({u for u, _ in users}))
            single = all(p.expansion.firings(u) == 1 for u, _ in users)
            free = widest * lanes <= d.width and p.max_lanes == math.inf
            # a cumulative lets firings of no time run inside others, no-overlap does not
            if len(users) * lanes <= NUMBERED:
                free = free and all(self.ticks(w.estimate.occupancy_s) > 0 for _, w in users)
            single = single and not p.lanes_couple
            alike = (lanes <= 1 and p.max_lanes == math.inf) or (single and free)
            self.by_lane[d.name] = not alike
        self.on: list[dict[str, Any]] = []
        self.x: list[dict[tuple[int, int], Any]] = []
        group = {u: c for c, members in enumerate(p.classes) for u in members}
        common = [
            sorted(set.intersection(*(set(self.it.devices[u]) for u in members)))
            for members in p.classes
        ]
        where = [{d: m.new_bool_var("") for d in names} for names in common]
        for literals in where:
            m.add_exactly_one(literals.values())
        for u, options in enumerate(p.options):
            row: dict[tuple[int, int], Any] = {}
            on = where[group[u]]
            for device, literal in on.items():
                here = [o for o, w in enumerate(options) if w.device == device]
                lanes = min(p.lanes[device], len(p.options)) if self.by_lane[device] else 1
                if len(here) * lanes == 1:
                    row[here[0], 0] = literal
                    continue
                some = [(o, k) for o in here for k in range(lanes)]
                row |= {key: m.new_bool_var("") for key in some}
                m.add(sum(row[key] for key in some) == literal)
            self.x.append(row)
            self.on.append(on)

    def _firings(self) -> None:
        it, m = self.it, self.model
        p = it.space
        self.span = m.new_int_var(self.floor, self.horizon, "")
        self.extra = extra_ticks(m, p, self.x, self.ticks)
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.intervals: dict[tuple[str, int], list[tuple[int, int, Any, Any]]] = {}
        for v, u in enumerate(it.unit):
            look()
            start = m.new_int_var(0, self.horizon, "")
            end = m.new_int_var(0, self.horizon, "")
            latency: Any = sum(
                self.ticks(p.options[u][o].estimate.latency_s) * x
                for (o, _), x in self.x[u].items()
            )
            plus = [t * both for (a, _), terms in self.extra.items() if a == u for t, both in terms]
            m.add(end == start + latency + sum(plus))
            m.add(end <= self.span)
            self.start.append(start)
            self.end.append(end)
            for (o, k), x in self.x[u].items():
                mode = p.options[u][o]
                busy = self.ticks(mode.estimate.occupancy_s)
                terms = self.extra.get((u, o))
                if terms:
                    most = busy + sum(max(t, 0) for t, _ in terms)
                    size = m.new_int_var(0, most, "")
                    m.add(size == busy + sum(t * both for t, both in terms)).only_enforce_if(x)
                    free = m.new_int_var(0, 2 * self.horizon, "")
                    interval = m.new_optional_interval_var(start, size, free, x, "")
                    busy -= sum(max(-t, 0) for t, _ in terms)
                else:
                    interval = m.new_optional_fixed_size_interval_var(start, busy, x, "")
                self.intervals.setdefault((mode.device, k), []).append((v, busy, interval, x))

    def _precedence(self) -> None:
        it, m = self.it, self.model
        rows = 0
        self.copies: dict[str, list[Any]] = {}
        self.sent: dict[tuple[str, int, str], Any] = {}
        self._sender: dict[tuple[int, str, str, str], tuple[Any, Any]] = {}
        for v, row in enumerate(it.before):
            look()
            u = it.unit[v]
            for s, size, task in row:
                w = it.unit[s]
                m.add(self.start[v] >= self.end[s])
                if self.on[w] is self.on[u]:
                    continue
                waits: dict[int, list[tuple[str, str]]] = {}
                for d in self.on[w]:
                    for e in self.on[u]:
                        ticks = self.ticks(it.delay_s(d, e, size))
                        if ticks and d != e:
                            waits.setdefault(ticks, []).append((d, e))
                rows += sum(map(len, waits.values()))
                if rows > PAIRS:
                    continue
                for ticks, pairs in waits.items():
                    for d, e in pairs:
                        m.add(self.start[v] >= self.end[s] + ticks).only_enforce_if(
                            [self.on[w][d], self.on[u][e]]
                        )
                        self._send(s, v, task, d, e, size)
        for v, after in enumerate(it.turn):
            if after >= 0:
                u = it.unit[v]
                busy = sum(
                    self.ticks(it.space.options[u][o].estimate.occupancy_s) * x
                    for (o, _), x in self.x[u].items()
                )
                m.add(self.start[after] >= self.start[v] + (0 if self._paired(u) else busy))

    def _paired(self, unit: int) -> bool:
        return any(u == unit for u, _ in self.extra)

    def _send(self, s: int, v: int, task: str, d: str, e: str, size: float) -> None:
        """Add the transfers from firing s on d to firing v on e, one on each link that is a lane. A
        transfer to the host serves all devices behind it, a transfer to e all firings there."""
        it, m = self.it, self.model
        platform = it.space.costs.platform
        route = platform.route(d, e)
        if all(link.paid_by != "link" for link in route):
            return
        f = it.space.expansion.nodes[s][1]
        ends = [self.on[it.unit[s]][d], self.on[it.unit[v]][e]]
        before, passed = self.end[s], 0
        for n, (link, to) in enumerate(zip(route, [platform.host, e][-len(route) :], strict=True)):
            if link.paid_by == "link":
                key = (task, f, to)
                if key not in self.sent:
                    self.sent[key] = m.new_int_var(0, self.horizon, "")
                    m.add(self.sent[key] >= self.end[s])
                begin = self.sent[key]
                m.add(begin >= before + passed).only_enforce_if(ends)
                rest = self.ticks(math.fsum(delay_s(k, size) for k in route[n:]))
                m.add(self.start[v] >= begin + rest).only_enforce_if(ends)
                self._occupy(s, task, d, to, link, begin, size, ends)
                before, passed = begin, 0
            passed += self.ticks(delay_s(link, self._least_bytes[task]))

    def _occupy(
        self,
        s: int,
        task: str,
        d: str,
        to: str,
        link: Link,
        begin: Any,
        size: float,
        ends: list[Any],
    ) -> None:
        """Add the time of a copy on its link: one interval per sender and reached device, as long
        as its largest message."""
        m = self.model
        sender = (s, task, d, to)
        if sender not in self._sender:
            present = m.new_bool_var("")
            sizes = [b for _, b, t in self.it.after[s] if t == task]
            least, most = (self._copying(link, b) for b in (min(sizes), max(sizes)))
            busy = m.new_int_var(least, most, "")
            self._sender[sender] = present, busy
            m.add_implication(present, ends[0])
            if most:
                free = m.new_int_var(0, self.horizon + most, "")
                interval = m.new_optional_interval_var(begin, busy, free, present, "")
                self.copies.setdefault(link.name, []).append(interval)
        present, busy = self._sender[sender]
        m.add_bool_or([present, *(end.negated() for end in ends)])
        m.add(busy >= self._copying(link, size)).only_enforce_if(ends)

    def _copying(self, link: Link, size: float) -> int:
        """Return the ticks for which a message keeps a link."""
        return self.ticks(link.per_message_s + size / link.bytes_per_s)

    @cached_property
    def _least_bytes(self) -> dict[str, float]:
        """Return the smallest message of each task, to this iteration or the next."""
        x = self.it.space.expansion
        calls = {t: x.graph.repetition[t] if len(u) > 1 else 1 for u in x.units for t in u}
        found: dict[str, float] = {}
        for e in x.graph.edges:
            size = calls[e.src] * e.bytes
            found[e.src] = min(size, found.get(e.src, size))
        return found

    def _lanes(self) -> None:
        """Add no-overlap on each lane, and load rows with the least time before and after a lane's
        firings, which the search does not derive."""
        it, m = self.it, self.model
        p = it.space
        head, tail = self._ways()
        for (device, _), users in self.intervals.items():
            lanes = p.lanes[device]
            if self.by_lane[device] or lanes == 1:
                m.add_no_overlap([i for _, _, i, _ in users])
                lanes = 1
            else:
                m.add_cumulative([i for _, _, i, _ in users], [1] * len(users), lanes)
            before = min(head[v] for v, _, _, _ in users)
            behind = min(tail[v] for v, _, _, _ in users)
            load = sum(busy * x for _, busy, _, x in users)
            m.add(load <= lanes * (self.span - before - behind))
        for copies in self.copies.values():
            m.add_no_overlap(copies)
        used = []
        for d in p.costs.platform.devices:
            if not self.by_lane[d.name]:
                continue
            mine = [
                (k, options[o].width, x)
                for row, options in zip(self.x, p.options, strict=True)
                for (o, k), x in row.items()
                if options[o].device == d.name
            ]
            widths = []
            for lane in sorted({k for k, _, _ in mine}):
                width, open_ = m.new_int_var(0, d.width, ""), m.new_bool_var("")
                widths.append(width)
                used.append(open_)
                for k, least, x in mine:
                    if k == lane:
                        m.add(width >= least).only_enforce_if(x)
                        m.add_implication(x, open_)
            m.add(sum(widths) <= d.width)
        if p.max_lanes < math.inf:
            m.add(sum(used) <= int(p.max_lanes))

    def _ways(self) -> tuple[list[int], list[int]]:
        """Return the least ticks before each firing, and after its lane is free again."""
        it = self.it
        quick = [
            (min(t for t, _ in row.values()), min(o for _, o in row.values()))
            for row in fastest(it.space)
        ]
        n = len(it.order)
        head, behind = [0] * n, [0] * n
        for v in it.order:
            for s, _, _ in it.before[v]:
                head[v] = max(head[v], head[s] + self.ticks(quick[it.unit[s]][0]))
        for v in reversed(it.order):
            for d, _, _ in it.after[v]:
                behind[v] = max(behind[v], behind[d] + self.ticks(quick[it.unit[d]][0]))
        # the lane may be free before the result exists: the time after it counts from the result
        return head, behind

    def _hint(self, best: Candidate) -> None:
        m = self.model
        a = best.assignment
        timed = build_timed_graph(a)
        start = start_times_s(timed, best.ordered.orders)
        for u, mode in enumerate(a.modes):
            o = self.it.space.options[u].index(mode)
            lane = a.lanes[u] if self.by_lane[mode.device] else 0
            for key, x in self.x[u].items():
                if all(x is not literal for literal in self.on[u].values()):
                    m.add_hint(x, int(key == (o, lane)))
        done = set()
        for u, on in enumerate(self.on):
            if id(on) in done:
                continue
            done.add(id(on))
            for d, x in on.items():
                m.add_hint(x, int(a.modes[u].device == d))
        for v, u in enumerate(self.it.unit):
            m.add_hint(self.start[v], round(start[v] * self.scale))
            m.add_hint(self.end[v], round((start[v] + a.latency_s(u)) * self.scale))
        m.add_hint(self.span, self.horizon)

    def found(self, solver: Any) -> Candidate | None:
        """Return the schedule in a solver of `model`."""
        it = self.it
        p = it.space
        modes, lanes = [], []
        option = []
        for row in self.x:
            o, k = next(key for key, x in row.items() if solver.boolean_value(x))
            option.append(o)
            lanes.append(k)
        modes = [p.options[u][o] for u, o in enumerate(option)]
        start = [solver.value(s) / self.scale for s in self.start]
        free_at: dict[str, list[float]] = {}
        for v in sorted(range(len(start)), key=lambda v: (start[v], it.place[v])):
            u = it.unit[v]
            device = modes[u].device
            if not self.by_lane[device] and p.lanes[device] > 1:
                line = free_at.setdefault(device, [0.0] * p.lanes[device])
                k = min(range(len(line)), key=lambda k: (line[k] > start[v] + 1e-9, -line[k]))
                lanes[u] = k
                line[k] = start[v] + modes[u].estimate.occupancy_s
        a = Assignment(p.expansion, p.costs, tuple(modes), tuple(lanes))
        if p.violates_coupling(a):
            return None
        keys = [
            (start[v], start[v] + a.occupancy_s(u), float(it.place[v]))
            for v, u in enumerate(it.unit)
        ]
        copies = {}
        for (task, f, e), var in self.sent.items():
            v = p.expansion.node[task, f]
            begin = solver.value(var) / self.scale
            copies[f"{task}>{e}", f] = (begin, begin, it.place[v] + 0.5)
        return order_by_times(a, keys, copies)
