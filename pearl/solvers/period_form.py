"""The period form of `docs/theory.md` as a mixed-integer linear program for HiGHS."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pearl.assignment import Assignment, delay_s
from pearl.costs import Mode
from pearl.limits import Limits
from pearl.solvers.choices import Program, longest_s
from pearl.solvers.outcome import Found

SCALE = 100.0
"""A known plan's period and energy in the program's units: the solver's tolerance of 1e-6 is then
1e-8 of them."""


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing reaches standard output: HiGHS 1.12 prints a line of its own debugging there, past
    its switch for output, and a plan's JSON may be going to it."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C still buffers goes nowhere too
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@dataclass
class _Rows:
    """Linear rows low ≤ Σ coefficient · variable ≤ high, gathered term by term."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        for column, value in terms:
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)


class PeriodForm:
    """The program of one choice of fusions and slack, to which cuts are added."""

    def __init__(
        self, program: Program, objective: str, limits: Limits, known: Found | None
    ) -> None:
        self.program, self.objective = program, objective
        known_s = known.period_s if known else program.serial_s
        platform = program.costs.platform
        known_j = (
            known.assignment.energy_j(known.period_s)
            if known
            else sum(d.idle_power_w for d in platform.devices) * program.serial_s
            + sum(
                program.expansion.firings(u) * max(m.estimate.energy_j for m in modes)
                for u, modes in enumerate(program.options)
            )
        )
        self.per_s = SCALE / known_s if known_s > 0 else 1.0
        self.per_j = SCALE / known_j if known_j > 0 else 1.0
        self.r = _Rows()
        self.integer: list[bool] = []
        self.upper: list[float] = []
        self.lower: list[float] = []
        self.period = self._variable(high=longest_s(program.expansion.graph, limits) * self.per_s)
        self.x: dict[tuple[int, int, int], int] = {}
        self._assign()
        self.pair: dict[tuple[int, int], list[tuple[tuple[int, int], int, float]]] = {}
        self._pair_terms()
        self.w: dict[tuple[int, int], dict[tuple[str, str], int]] = {}
        joules = self._transfers()
        self._arcs()
        self._loads()
        self._memory()
        self.energy = self._energy(joules, limits, known)
        if objective == "power_efficiency":
            self.objective_terms = self.energy
        else:
            self.objective_terms = [(self.period, 1.0)]

    def _variable(self, high: float = math.inf, low: float = 0.0, integer: bool = False) -> int:
        self.lower.append(low)
        self.upper.append(high)
        self.integer.append(integer)
        return len(self.upper) - 1

    def _on(self, unit: int, device: str, sign: float = 1.0) -> list[tuple[int, float]]:
        """Σ x of a unit over its modes and lanes on a device."""
        return [
            (v, sign)
            for (u, o, _), v in self.x.items()
            if u == unit and self.program.options[u][o].device == device
        ]

    def _of(self, unit: int, option: int | None = None) -> list[tuple[int, float]]:
        return [(v, 1.0) for (u, o, _), v in self.x.items() if u == unit and option in (None, o)]

    def _assign(self) -> None:
        """One mode and lane a unit; classes on one device; lanes within counts and widths."""
        p = self.program
        platform = p.costs.platform
        self.own: dict[str, bool] = {}  # devices where every unit may have a lane of its own
        for device in platform.devices:
            widest = [
                max((m.width for m in modes if m.device == device.name), default=0)
                for modes in p.options
            ]
            users = sum(w > 0 for w in widest)
            self.own[device.name] = (
                users <= p.lanes[device.name]
                and sum(widest) <= device.width
                and p.max_lanes == math.inf
            )
        for u, modes in enumerate(p.options):
            for o, mode in enumerate(modes):
                shared = not self.own[mode.device]
                lanes = range(min(p.lanes[mode.device], len(p.options))) if shared else (u,)
                for lane in lanes:
                    self.x[u, o, lane] = self._variable(1.0, integer=True)
        for u in range(len(p.options)):
            self.r.add(self._of(u), 1.0, 1.0)
        for members in p.classes:
            for device in platform.devices:
                for u in members[1:]:
                    terms = self._on(u, device.name) + self._on(members[0], device.name, -1.0)
                    if terms:
                        self.r.add(terms, 0.0, 0.0)
        open_lanes: list[tuple[int, float]] = []
        for device in platform.devices:
            if self.own[device.name]:
                continue
            widths: list[tuple[int, float]] = []
            mine = [
                (u, o, lane, v)
                for (u, o, lane), v in self.x.items()
                if p.options[u][o].device == device.name
            ]
            for lane in sorted({lane for _, _, lane, _ in mine}):
                here = [(u, o, v) for u, o, k, v in mine if k == lane]
                width = self._variable(float(device.width))
                used = self._variable(1.0)
                widths.append((width, 1.0))
                open_lanes.append((used, 1.0))
                for u in sorted({u for u, _, _ in here}):
                    row = [(v, o) for w, o, v in here if w == u]
                    self.r.add(
                        [(width, 1.0), *((v, -float(p.options[u][o].width)) for v, o in row)],
                        0.0,
                        math.inf,
                    )
                    self.r.add([(used, 1.0), *((v, -1.0) for v, _ in row)], 0.0, math.inf)
                    if lane > 0:  # lanes are interchangeable: number them by their first unit
                        earlier = [(v, 1.0) for w, _, k, v in mine if w < u and k == lane - 1]
                        self.r.add([*earlier, *((v, -1.0) for v, _ in row)], 0.0, math.inf)
            if widths:
                self.r.add(widths, 0.0, float(device.width))
        if open_lanes and p.max_lanes < math.inf:
            self.r.add(open_lanes, 0.0, float(p.max_lanes))

    def _pair_terms(self) -> None:
        """v = 1 where both modes of a pair term hold, by lane of the first."""
        p = self.program
        unit = {tasks[0]: u for u, tasks in enumerate(p.expansion.units) if len(tasks) == 1}
        for ((a, a_key), (b, b_key)), extra in p.costs.pair_extra_s.items():
            if a not in unit or b not in unit or extra == 0:
                continue
            first = [o for o, m in enumerate(p.options[unit[a]]) if m.key == a_key]
            second = [o for o, m in enumerate(p.options[unit[b]]) if m.key == b_key]
            if not first or not second:
                continue
            (o,), (o2,) = first, second
            both = self._of(unit[b], o2)
            total: list[tuple[int, float]] = []
            for (u, k, lane), x in list(self.x.items()):
                if (u, k) == (unit[a], o):
                    v = self._variable(1.0)
                    total.append((v, 1.0))
                    self.r.add([(v, -1.0), (x, 1.0)], 0.0, math.inf)
                    self.pair.setdefault((unit[a], lane), []).append(((unit[a], o), v, extra))
            self.r.add([*((v, -1.0) for v, _ in total), *both], 0.0, math.inf)
            ones = [(v, -1.0) for v, _ in [*self._of(unit[a], o), *both]]
            self.r.add([*total, *ones], -1.0, math.inf)

    def _transfers(self) -> list[tuple[int, float]]:
        """Pair variables w in flow form, link loads, and the links' energy."""
        p = self.program
        x, platform = p.expansion, p.costs.platform
        unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
        together = {u: c for c, members in enumerate(p.classes) for u in members}
        hops: dict[tuple[str, str, str], list[tuple[list[int], float, int]]] = {}
        for edge in x.graph.edges:
            i, j = unit[edge.src], unit[edge.dst]
            if together[i] == together[j]:
                continue
            if (i, j) not in self.w:
                self.w[i, j] = self._flow(i, j)
            q = x.graph.repetition[edge.src]
            size, messages = (edge.bytes, q) if len(x.units[i]) == 1 else (edge.bytes * q, 1)
            over: dict[tuple[str, str, str], list[int]] = {}
            for (d, e), v in self.w[i, j].items():
                route = platform.route(d, e)
                stops = [e] if len(route) == 1 else [platform.host, e]
                for link, to in zip(route, stops, strict=False):
                    over.setdefault((edge.src, link.name, to), []).append(v)
            for key, variables in over.items():
                hops.setdefault(key, []).append((variables, size, messages))
        links = {link.name: link for link in platform.links}
        self.link_load: dict[str, list[tuple[int, float]]] = {}
        joules: list[tuple[int, float]] = []
        for (_, name, _), users in hops.items():
            link, messages = links[name], users[0][2]
            largest = max(size for _, size, _ in users)
            if len(users) == 1:
                sent = [(v, 1.0) for v in users[0][0]]
                volume = [(v, largest) for v in users[0][0]]
            else:  # shared: present if any consumer needs it, as large as the largest
                some, much = self._variable(1.0), self._variable(1.0)
                sent, volume = [(some, 1.0)], [(much, largest)]
                for variables, size, _ in users:
                    self.r.add([(some, 1.0), *((v, -1.0) for v in variables)], 0.0, math.inf)
                    if size:
                        share = size / largest
                        self.r.add([(much, 1.0), *((v, -share) for v in variables)], 0.0, math.inf)
            load = self.link_load.setdefault(name, [])
            load += [(v, messages * link.per_message_s * c) for v, c in sent]
            load += [(v, messages * b / link.bytes_per_s) for v, b in volume]
            joules += [(v, messages * b * link.energy_j_per_byte) for v, b in volume]
        return joules

    def _flow(self, i: int, j: int) -> dict[tuple[str, str], int]:
        """w[d, e] for units i on d and j on e: Σ_e w = x_id, Σ_d w = x_je."""
        sides = [sorted({m.device for m in self.program.options[u]}) for u in (i, j)]
        w = {(d, e): self._variable(1.0) for d, e in itertools.product(*sides)}
        for d in sides[0]:
            row = [(v, 1.0) for (a, _), v in w.items() if a == d]
            self.r.add(row + self._on(i, d, -1.0), 0.0, 0.0)
        for e in sides[1]:
            row = [(v, 1.0) for (_, b), v in w.items() if b == e]
            self.r.add(row + self._on(j, e, -1.0), 0.0, 0.0)
        return w

    def _arcs(self) -> None:
        p, per_s = self.program, self.per_s
        x, platform = p.expansion, p.costs.platform
        latency: list[list[tuple[int, float]]] = []
        for u, modes in enumerate(p.options):
            terms = [
                (v, -modes[o].estimate.latency_s * per_s)
                for (k, o, _), v in self.x.items()
                if k == u
            ]
            for (k, _), extras in self.pair.items():
                if k == u:
                    terms += [(v, -extra * per_s) for _, v, extra in extras]
            latency.append(terms)
        potential = [self._variable(low=-math.inf) for _ in x.nodes]
        self.lower[potential[0]] = self.upper[potential[0]] = 0.0
        heaviest: dict[tuple[int, int, int], float] = {}
        for src, dst, tokens, e in x.arcs:
            edge = x.graph.edges[e]
            i = x.nodes[src][0]
            q = x.graph.repetition[edge.src] if len(x.units[i]) > 1 else 1
            key = (src, dst, tokens)
            heaviest[key] = max(edge.bytes * q, heaviest.get(key, 0.0))
        for (src, dst, tokens), size in heaviest.items():
            i, j = x.nodes[src][0], x.nodes[dst][0]
            terms = list(latency[i])
            for (here, there), v in self.w.get((i, j), {}).items():
                wait = math.fsum(delay_s(k, size) for k in platform.route(here, there))
                if wait:
                    terms.append((v, -wait * per_s))
            if tokens:
                terms.append((self.period, float(tokens)))
            if src != dst:
                terms += [(potential[dst], 1.0), (potential[src], -1.0)]
            self.r.add(terms, 0.0, math.inf)

    def _loads(self) -> None:
        p = self.program
        lanes: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for (u, o, lane), v in self.x.items():
            mode, q = p.options[u][o], p.expansion.firings(u)
            lanes.setdefault((mode.device, lane), []).append(
                (v, -q * mode.estimate.occupancy_s * self.per_s)
            )
        for (u, lane), extras in self.pair.items():
            for (_, o), v, extra in extras:
                device = p.options[u][o].device
                lanes[device, lane].append((v, -p.expansion.firings(u) * extra * self.per_s))
        for terms in lanes.values():
            self.r.add([(self.period, 1.0), *terms], 0.0, math.inf)
        for terms in self.link_load.values():
            self.r.add(
                [(self.period, 1.0), *((v, -s * self.per_s) for v, s in terms)], 0.0, math.inf
            )

    def _memory(self) -> None:
        p = self.program
        for device, capacity in p.capacity_bytes.items():
            if capacity < math.inf:
                terms: list[tuple[int, float]] = []
                for members, size in zip(p.classes, p.memory_bytes, strict=True):
                    terms += self._on(members[0], device, size / capacity)
                if terms:
                    self.r.add(terms, 0.0, 1.0)

    def _energy(
        self, joules: list[tuple[int, float]], limits: Limits, known: Found | None
    ) -> list[tuple[int, float]]:
        """Energy of an iteration over the known plan's; with a power cap, at most cap · P."""
        p, platform = self.program, self.program.costs.platform
        if self.objective == "throughput" and limits.power_w is None:
            return []
        always = {
            d.name for d in platform.devices if d.name == platform.host or d.when_unused == "idle"
        }
        on_w = sum(d.idle_power_w for d in platform.devices if d.name in always)
        to_joule = self.per_j / self.per_s
        terms = [(self.period, on_w * to_joule)]
        terms += [(v, j * self.per_j) for v, j in joules]
        for (u, o, _), v in self.x.items():
            energy = p.expansion.firings(u) * p.options[u][o].estimate.energy_j
            terms.append((v, energy * self.per_j))
        longest = self._longest(limits, known, on_w, joules) * self.per_s
        self.upper[self.period] = min(self.upper[self.period], longest * (1 + 1e-6))
        for device in platform.devices:
            if device.name in always or device.idle_power_w == 0:
                continue
            on, z = self._variable(1.0), self._variable()
            for u in range(len(p.options)):
                uses = self._on(u, device.name, -1.0)
                if uses:
                    self.r.add([(on, 1.0), *uses], 0.0, math.inf)
            # z ≥ idle · (P − longest · (1 − on)), z in program time so that the numbers stay near 1
            self.r.add([(z, 1.0), (self.period, -1.0), (on, -longest)], -longest, math.inf)
            terms.append((z, device.idle_power_w * to_joule))
        if limits.power_w is not None:
            self.r.add([*terms, (self.period, -limits.power_w * to_joule)], -math.inf, 0.0)
        return terms

    def _longest(
        self,
        limits: Limits,
        known: Found | None,
        on_w: float,
        joules: list[tuple[int, float]],
    ) -> float:
        """An upper bound on the period of an optimum, the big constant of the energy rows."""
        p = self.program
        cap = limits.power_w
        if known and self.objective == "throughput":
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
            extra = [
                d.idle_power_w
                for d in p.costs.platform.devices
                if d.when_unused == "off" and d.name != p.costs.platform.host
            ]
            spare = [
                cap - on_w - sum(some)
                for size in range(len(extra) + 1)
                for some in itertools.combinations(extra, size)
            ]
            least = min((s for s in spare if s > 0), default=math.inf)
            bounds.append(max(p.serial_s, dynamic / least))
        return min(bounds)

    def cut(self, a: Assignment) -> None:
        """Leave this assignment out from now on."""
        chosen = []
        for u, mode in enumerate(a.modes):
            o = self.program.options[u].index(mode)
            chosen.append((self.x[u, o, u if self.own[mode.device] else a.lanes[u]], 1.0))
        self.r.add(chosen, 0.0, len(chosen) - 1.0)

    def run(self, below: float, seconds: float) -> tuple[float, Assignment | None, bool]:
        """The best assignment not cut off that costs at most `below`: (proven lower bound of the
        cost, assignment, whether the solver finished); no assignment and an infinite bound if
        there is none."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        unit = self.per_s if self.objective == "throughput" else self.per_j
        n = len(self.upper)
        objective = np.zeros(n)
        for v, c in self.objective_terms:
            objective[v] += c
        r = self.r
        matrix = csr_array((r.values, (r.rows, r.columns)), shape=(len(r.low), n))
        rows = [LinearConstraint(matrix, r.low, r.high)]
        if below < math.inf:
            rows.append(LinearConstraint(objective[None, :], -np.inf, below * unit))
        with _silent():
            result = milp(
                objective,
                integrality=np.array(self.integer, dtype=int),
                bounds=Bounds(np.array(self.lower), np.array(self.upper)),
                constraints=rows,
                options={"time_limit": max(seconds, 0.01), "mip_rel_gap": 1e-9},
            )
        if result.status == 2:
            return math.inf, None, True
        dual = result.mip_dual_bound
        dual = 0.0 if dual is None or not math.isfinite(dual) else max(0.0, dual) / unit
        if result.x is None:
            return dual, None, False
        return dual, self._read(result.x), result.status == 0

    def _read(self, x: NDArray[np.float64]) -> Assignment:
        p = self.program
        modes: list[Mode | None] = [None] * len(p.options)
        lanes = [0] * len(p.options)
        for (u, o, lane), v in self.x.items():
            if x[v] > 0.5:
                modes[u], lanes[u] = p.options[u][o], lane
        return Assignment(
            p.expansion, p.costs, tuple(m for m in modes if m is not None), tuple(lanes)
        )
