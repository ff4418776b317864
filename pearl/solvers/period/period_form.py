"""The period form of `docs/search.md` as a mixed-integer linear program for HiGHS."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pearl.graph.limits import Call
from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, delay_s
from pearl.solvers.model.linear import Linear, Terms
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, longest_s, select_undominated
from pearl.solvers.period.lane_rules import Place, extra_terms, lane_rules, window_rows
from pearl.solvers.period.longest_period import longest_optimum_s
from pearl.solvers.period.symmetry import find_orbits
from pearl.solvers.period.transfers import Transfers
from pearl.time_limit import watched

SCALE = 100.0
"""Size of a known plan's period and energy in the program's units: the solver's tolerance of 1e-6
is then a relative 1e-8."""

LIFTED = 1_000
"""Combinations of ways that are tried before a way joins an exclusion (assumed)."""


class PeriodForm:
    """The program of one choice of fusions and slack, to which cuts are added.

    The program omits, without loss: modes that another mode of the device beats in every respect
    that counts; arcs that lie on no cycle, which a schedule can always satisfy; and all but one of
    the assignments that differ only by an exchange of interchangeable devices. With rules of limits
    in force, only the arcs are omitted.

    parts: whether fused modes are parts of calls (`fusion_space`), whose times pass between the
    firings of their members. Windows leave these out.
    """

    parts = False

    def __init__(self, space: SearchSpace, problem: Problem, known: Candidate | None) -> None:
        self.space, self.objective, limits = space, problem.objective, problem.limits
        known_s = known.period_s if known else space.serial_s
        platform = space.costs.platform
        known_j = (
            known.assignment.energy_j(known.period_s)
            if known
            else sum(d.waiting_power_w for d in platform.devices) * space.serial_s
            + sum(
                space.expansion.firings(u) * max(m.estimate.energy_j for m in modes)
                for u, modes in enumerate(space.options)
            )
        )
        self.per_s = SCALE / known_s if known_s > 0 else 1.0
        self.per_j = SCALE / known_j if known_j > 0 else 1.0
        self.linear = Linear()
        longest = longest_s(space.expansion.graph, limits) * self.per_s
        self.period = self.linear.variable(high=longest)
        self.frugal = self.objective == "power_efficiency" or limits.power_w is not None
        self.x: dict[tuple[int, int, int], int] = {}
        self._assign()
        self.extra = extra_terms(space, self.linear, self.x, self._places)
        self.transfers = Transfers(space, self.linear, self._places, self._used)
        self.potential: dict[int, int] = {}
        self._arcs()
        potential = self.potential, self.component
        window_rows(space, self.linear, *potential, self._seconds_at, self._places)
        self._loads()
        self._memory()
        lane_rules(space, self.linear, self.x, self._places)
        for rule in space.rules:
            if rule.limit.rows is not None:
                rule.limit.rows(rule.value, PeriodRows(self))
        self.energy = self._energy(self.transfers.joules, problem, known)
        if self.objective == "power_efficiency":
            self.objective_terms = self.energy
        else:
            self.objective_terms = [(self.period, 1.0)]

    def on(self, unit: int, device: str, sign: float = 1.0) -> Terms:
        """Return the terms that are `sign` if a unit is on a device, else 0."""
        return [(v, sign * c) for v, c in self._used.get((unit, device), ())]

    def _assign(self) -> None:
        """Add rows: one mode and lane per unit, one device per class, lanes within counts,
        widths."""
        p, linear = self.space, self.linear
        platform = p.costs.platform
        widest = {d.name: [0] * len(p.options) for d in platform.devices}
        for u, modes in enumerate(p.options):
            for m in modes:
                widest[m.device][u] = max(widest[m.device][u], m.width)
        self.own = {  # devices with enough lanes for every unit
            d.name: sum(w > 0 for w in widest[d.name]) <= p.lanes[d.name]
            and sum(widest[d.name]) <= d.width
            and p.max_lanes == math.inf
            and not p.rules
            for d in platform.devices
        }
        kept = [self._undominated(u) for u in range(len(p.options))]
        # _places: (unit, device, lane) → its variables
        # _used: (unit, device) → terms with the value 1 if the unit is on the device
        self._places: dict[tuple[int, str, int], Terms] = {}
        self._used: dict[tuple[int, str], Terms] = {}
        self._by_unit: list[dict[tuple[int, int], int]] = [{} for _ in p.options]
        for members in p.classes:
            devices = {m.device for u in members for m in p.options[u]}
            whole = {}
            for device in [d.name for d in platform.devices if d.name in devices]:
                if len(members) > 1:
                    whole[device] = linear.variable(1.0, integer=True)
                for u in members:
                    self._ways(u, device, kept[u], whole.get(device))
            if whole:
                linear.add([(v, 1.0) for v in whole.values()], 1.0, 1.0)
            else:
                linear.add([t for d in sorted(devices) for t in self.on(members[0], d)], 1.0, 1.0)
        for orbit in () if p.rules else find_orbits(p, kept):
            self._in_turn(orbit)
        open_lanes: Terms = []
        for d in platform.devices:
            if not self.own[d.name] and (p.lanes[d.name] > 1 or p.max_lanes < math.inf):
                open_lanes += self._lanes(d.name, float(d.width))
        if open_lanes and p.max_lanes < math.inf:
            linear.add(open_lanes, 0.0, float(p.max_lanes))

    def _undominated(self, u: int) -> list[int]:
        """Return the options of a unit that no other option of the device beats in time, and in
        energy, width and memory of a unit if these count. Options with a pair term stay."""
        p = self.space
        if p.rules:
            return list(range(len(p.options[u])))

        def rank(m: Mode) -> tuple[float, ...]:
            e = m.estimate
            wide = p.lanes[m.device] > 1 and not self.own[m.device]
            joules = e.energy_j if self.frugal else 0.0
            kept = m.unit_bytes if p.unit_capacity_bytes[m.device] < math.inf else 0.0
            return e.latency_s, e.occupancy_s, joules, m.width if wide else 0, kept

        return select_undominated(p.options[u], rank, p.costs)

    def _ways(self, u: int, device: str, kept: list[int], whole: int | None) -> None:
        """Add the variables of a unit on a device, one for each option and lane.

        whole: the variable of "its class is on this device", used for the unit if it has only one
        option and lane there.
        """
        p = self.space
        options = [o for o in kept if p.options[u][o].device == device]
        lanes = [u] if self.own[device] else range(min(p.lanes[device], len(p.options)))
        ways = list(itertools.product(options, lanes))
        single = whole is not None and len(ways) == 1
        for o, lane in ways:
            v = whole if whole is not None and single else self.linear.variable(1.0, integer=True)
            self.x[u, o, lane] = self._by_unit[u][o, lane] = v
            self._places.setdefault((u, device, lane), []).append((v, 1.0))
        mine = [(self.x[u, o, lane], 1.0) for o, lane in ways]
        if whole is None:
            self._used[u, device] = mine
        else:
            self._used[u, device] = [(whole, 1.0)]
            if not single:
                self.linear.add([*mine, (whole, -1.0)], 0.0, 0.0)

    def _in_turn(self, orbit: list[str]) -> None:
        """Add rows: interchangeable devices are used in the order of their first classes."""
        p = self.space
        for before, device in itertools.pairwise(orbit):
            earlier: Terms = []
            for members in p.classes:
                here = self.on(members[0], device, -1.0)
                if here:
                    self.linear.add([*earlier, *here], 0.0, math.inf)
                earlier = [*earlier, *self.on(members[0], before)]

    def _lanes(self, device: str, total_width: float) -> Terms:
        """Add the lanes of a device within its width, numbered by their first unit; return the
        terms of the open lanes."""
        p, linear = self.space, self.linear
        widths: Terms = []
        opened: Terms = []
        own_terms = sorted({(lane, u) for u, d, lane in self._places if d == device})
        for lane in sorted({lane for lane, _ in own_terms}):
            width, used = linear.variable(total_width), linear.variable(1.0)
            widths.append((width, 1.0))
            opened.append((used, 1.0))
            earlier: Terms = []
            for u in [u for k, u in own_terms if k == lane]:
                row = [
                    (v, -float(p.options[u][o].width))
                    for (o, k), v in self._by_unit[u].items()
                    if k == lane and p.options[u][o].device == device
                ]
                terms_here = [(v, -1.0) for v, _ in row]
                linear.add([(width, 1.0), *row], 0.0, math.inf)
                linear.add([(used, 1.0), *terms_here], 0.0, math.inf)
                if lane > 0:
                    linear.add([*earlier, *terms_here], 0.0, math.inf)
                    earlier = [*earlier, *self._places.get((u, device, lane - 1), ())]
        if widths:
            linear.add(widths, 0.0, total_width)
        return opened

    def _arcs(self) -> None:
        """Add the rows of the arcs that lie on cycles, in strongly connected components."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        p, per_s = self.space, self.per_s
        x, linear = p.expansion, self.linear
        ends = np.array([(s, d) for s, d, _, _ in x.arcs], dtype=int).reshape(-1, 2)
        shape = (len(x.nodes), len(x.nodes))
        adjacent = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=shape)
        _, component = connected_components(adjacent, connection="strong")
        self.component = component
        heaviest: dict[tuple[int, int, int], float] = {}
        for src, dst, tokens, e in watched(x.arcs):
            if component[src] != component[dst]:
                continue
            edge = x.graph.edges[e]
            i = x.nodes[src][0]
            q = x.graph.repetition[edge.src] if len(x.units[i]) > 1 else 1
            key = (src, dst, tokens)
            heaviest[key] = max(edge.bytes * q, heaviest.get(key, 0.0))
        latency: dict[int, Terms] = {}
        potential = self.potential
        fixed: set[int] = set()
        for (src, dst, tokens), size in heaviest.items():
            i, j = x.nodes[src][0], x.nodes[dst][0]
            if i not in latency:
                latency[i] = self._latency(i)
            terms = list(latency[i])
            if i != j:
                for (name, _), used in self.transfers.crossing(i, j).items():
                    wait = delay_s(self.transfers.links[name], size)
                    if wait:
                        terms += [(v, -c * wait * per_s) for v, c in used]
            if tokens:
                terms.append((self.period, float(tokens)))
            if src != dst:
                for node in (src, dst):
                    if node not in potential:
                        still = component[node] not in fixed
                        fixed.add(component[node])
                        reach = 0.0 if still else math.inf
                        potential[node] = linear.variable(reach, -reach)
                terms += [(potential[dst], 1.0), (potential[src], -1.0)]
            linear.add(terms, 0.0, math.inf)

    def _latency(self, u: int) -> Terms:
        modes = self.space.options[u]
        terms = [
            (v, -modes[o].estimate.latency_s * self.per_s) for (o, _), v in self._by_unit[u].items()
        ]
        for (k, _, _), extras in self.extra.items():
            if k == u:
                terms += [(v, -extra * self.per_s) for v, extra in extras]
        return terms

    def _seconds_at(self, place: Place) -> tuple[Terms, Terms]:
        """Return occupancy and latency of a unit at a place, in the program's units of time."""
        u, device, lane = place
        occupancy = [(v, s * self.per_s) for v, s in self.extra.get(place, ())]
        latency = list(occupancy)
        for (o, k), v in self._by_unit[u].items():
            mode = self.space.options[u][o]
            if (mode.device, k) == (device, lane) and not (self.parts and mode.fused):
                occupancy.append((v, mode.estimate.occupancy_s * self.per_s))
                latency.append((v, mode.estimate.latency_s * self.per_s))
        return occupancy, latency

    def _loads(self) -> None:
        p = self.space
        lanes: dict[tuple[str, int], Terms] = {}
        for (u, o, lane), v in self.x.items():
            mode, q = p.options[u][o], p.expansion.firings(u)
            lanes.setdefault((mode.device, lane), []).append((v, q * mode.estimate.occupancy_s))
        for (u, device, lane), extras in self.extra.items():
            q = p.expansion.firings(u)
            lanes[device, lane] += [(v, q * extra) for v, extra in extras]
        for place, terms in self.transfers.lane_load.items():
            lanes.setdefault(place, []).extend(terms)
        for terms in [*lanes.values(), *self.transfers.link_load.values()]:
            row = [(self.period, 1.0), *((v, -s * self.per_s) for v, s in terms if s)]
            self.linear.add(row, 0.0, math.inf)

    def _memory(self) -> None:
        p = self.space
        for device, capacity in p.capacity_bytes.items():
            if capacity < math.inf:
                terms: Terms = []
                for members, size in zip(p.classes, p.memory_bytes, strict=True):
                    terms += self.on(members[0], device, size / capacity)
                if terms:
                    self.linear.add(terms, 0.0, 1.0)

    def _energy(self, joules: Terms, problem: Problem, known: Candidate | None) -> Terms:
        """Return the energy of an iteration over the known plan's; a power cap limits it to cap ·
        P."""
        p, platform, cap_w = self.space, self.space.costs.platform, problem.limits.power_w
        if self.objective == "throughput" and cap_w is None:
            return []
        off = platform.idle_w()
        on_w = sum(off.values())
        to_joule = self.per_j / self.per_s
        terms = [(self.period, on_w * to_joule)]
        terms += [(v, j * self.per_j) for v, j in joules]
        for (u, o, _), v in self.x.items():
            energy = p.expansion.firings(u) * p.options[u][o].estimate.energy_j
            terms.append((v, energy * self.per_j))
        longest = longest_optimum_s(p, problem, known, on_w, joules) * self.per_s
        self.linear.upper[self.period] = min(self.linear.upper[self.period], longest * (1 + 1e-6))
        for device in platform.devices:
            more_w = device.waiting_power_w - off[device.name]  # additional power if used
            if more_w <= 0:
                continue
            on, z = self.linear.variable(1.0), self.linear.variable()
            for u in range(len(p.options)):
                uses = self.on(u, device.name, -1.0)
                if uses:
                    self.linear.add([(on, 1.0), *uses], 0.0, math.inf)
            # z ≥ more · (P − longest · (1 − on)); z is in program time to keep the numbers near 1
            self.linear.add([(z, 1.0), (self.period, -1.0), (on, -longest)], -longest, math.inf)
            terms.append((z, more_w * to_joule))
        if cap_w is not None:
            self.linear.add([*terms, (self.period, -cap_w * to_joule)], -math.inf, 0.0)
        return terms

    def cut(self, a: Assignment) -> None:
        """Exclude this assignment."""
        self._exclude({u: [self._way(a, u)] for u in range(len(a.modes))})

    def _way(self, a: Assignment, u: int) -> tuple[int, int]:
        mode = a.modes[u]
        return self.space.options[u].index(mode), u if self.own[mode.device] else a.lanes[u]

    def _exclude(self, ways: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Exclude all assignments in which each of these units has one of its ways."""
        terms = [(self.x[u, *way], 1.0) for u, some in ways.items() for way in some]
        self.linear.add(terms, 0.0, len(ways) - 1.0)

    def _exclude_broken(self, a: Assignment) -> bool:
        """Return whether an assignment breaks a rule of a limit, and exclude it with all that have
        the same fault: fewest units, each with as many ways as break the rule together."""
        p = self.space
        if not p.breaks_rule(p.calls(a)):
            return False

        def breaks(choice: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
            return all(
                p.breaks_rule(
                    [p.call(u, p.options[u][o], k) for u, (o, k) in zip(choice, ways, strict=True)]
                )
                for ways in itertools.product(*choice.values())
            )

        broken = {u: [self._way(a, u)] for u in range(len(a.modes))}
        for u in list(broken):
            fewer = {v: ways for v, ways in broken.items() if v != u}
            broken = fewer if breaks(fewer) else broken
        for u in broken:
            for way in self._by_unit[u]:
                combinations = math.prod(len(ways) for v, ways in broken.items() if v != u)
                new = way not in broken[u] and combinations <= LIFTED
                if new and breaks(broken | {u: [way]}):
                    broken[u].append(way)
        self._exclude(broken)
        return True

    @property
    def _unit(self) -> float:
        return self.per_s if self.objective == "throughput" else self.per_j

    def run(self, below: float, seconds: float) -> tuple[float, Assignment | None, bool]:
        """Return (proven lower bound of the cost, assignment, whether the solver finished).

        The assignment is the best one that is not cut off, breaks no rule and costs at most
        `below`. If there is none, the assignment is None and the bound infinite.
        """
        most, until = below * self._unit, time.monotonic() + seconds
        while True:
            dual, x, finished = self.linear.minimise(self.objective_terms, most, seconds)
            if self.objective == "throughput" and dual < math.inf:  # cuts never decrease this bound
                floor = self.linear.lower[self.period]
                self.linear.lower[self.period] = max(floor, min(dual * (1 - 1e-7), most))
            found = None if x is None else self._read(x)
            if found is None or not self._exclude_broken(found):
                return dual / self._unit, found, finished
            seconds = until - time.monotonic()
            if seconds <= 0:
                return dual / self._unit, None, False

    def _read(self, x: NDArray[np.float64]) -> Assignment:
        p = self.space
        modes: list[Mode] = []
        lanes: list[int] = []
        for u, ways in enumerate(self._by_unit):
            o, lane = max(ways, key=lambda way: x[ways[way]])
            modes.append(p.options[u][o])
            lanes.append(lane)
        return Assignment(p.expansion, p.costs, tuple(modes), tuple(lanes))


class PeriodRows:
    """A period form as a limit's `rows` see it (`pearl.graph.limits.LimitProgram`)."""

    def __init__(self, form: PeriodForm) -> None:
        p, self.linear = form.space, form.linear
        self.ways: list[tuple[Call, int]] = [
            (p.call(u, p.options[u][o], lane), v) for (u, o, lane), v in form.x.items()
        ]

    def variable(self) -> int:
        return self.linear.variable(1.0)

    def at_most(self, terms: Sequence[tuple[int, int]], most: int) -> None:
        self.linear.add([(v, float(n)) for v, n in terms], -math.inf, float(most))
