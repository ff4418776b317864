"""Lower bound of the period from loads only: a linear program that stays small for many tasks.

For a producer q, a consumer j and a device d, a copy of q leaves d if q is on d and j is not:
L[q, d] ≥ x[q, d] − x[j, d]. A copy enters d if j is on d and q is not: E[q, d] ≥ x[j, d] − x[q, d].
Consumers share both. This is the relaxation of the period form without cycles, with the variables
of edges projected out and all lanes of a device as one lane: it has half the size and takes a third
of the time. Copies over links between two devices other than the host are omitted, which decreases
the bound.
"""

from __future__ import annotations

import math
import time

from pearl.solvers.model.linear import Linear, Terms
from pearl.solvers.model.search_space import SearchSpace
from pearl_devices import Link


class LoadProgram:
    """The relaxation of one search space. period, on: its variables. copying: whether a copy takes
    time of a lane or link."""

    def __init__(self, space: SearchSpace, known_s: float) -> None:
        self.space, self.linear = space, Linear()
        self.per_s = 100.0 / known_s if known_s > 0 else 1.0
        self.period = self.linear.variable()
        platform = space.costs.platform
        self.devices = [d.name for d in platform.devices]
        self.loads: dict[str, Terms] = {}
        self.on: list[dict[str, int]] = []
        self._place()
        self.copying = False
        neighbours: dict[str, list[str]] = {d: [d] for d in self.devices}
        self._up: dict[str, Link] = {}
        for link in platform.links:
            if platform.host in (link.a, link.b):
                self._up[link.a if link.b == platform.host else link.b] = link
            else:
                neighbours[link.a].append(link.b)
                neighbours[link.b].append(link.a)
        self._near = neighbours
        self._copy()
        for name, terms in self.loads.items():
            lanes = space.lanes.get(name, 1)
            row = [(self.period, 1.0), *((v, -s * self.per_s / lanes) for v, s in terms)]
            self.linear.add(row, 0.0, math.inf)

    def _place(self) -> None:
        p, x = self.space, self.space.expansion
        memory: dict[str, Terms] = {}
        for members, size in zip(p.classes, p.memory_bytes, strict=True):
            places: dict[str, int] = {}
            for d in self.devices:
                seconds = 0.0
                for u in members:
                    some = [m.estimate.occupancy_s for m in p.on_device[u].get(d, ())]
                    seconds += x.firings(u) * min(some, default=math.inf)
                if seconds == math.inf:
                    continue
                v = places[d] = self.linear.variable(1.0)
                self.loads.setdefault(d, []).append((v, seconds))
                if size and p.capacity_bytes[d] < math.inf:
                    memory.setdefault(d, []).append((v, size / p.capacity_bytes[d]))
            self.on.append(places)
            self.linear.add([(v, 1.0) for v in places.values()], 1.0, 1.0)
        for terms in memory.values():
            self.linear.add(terms, 0.0, 1.0)

    def _copy(self) -> None:
        p, x = self.space, self.space.expansion
        unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
        item = {u: c for c, members in enumerate(p.classes) for u in members}
        users: dict[str, dict[int, float]] = {}
        for e in x.graph.edges:
            i, j = item[unit[e.src]], item[unit[e.dst]]
            if i != j:
                single = len(x.units[unit[e.src]]) == 1
                size = e.bytes if single else e.bytes * x.graph.repetition[e.src]
                row = users.setdefault(e.src, {})
                row[j] = max(size, row.get(j, 0.0))
        for task, row in users.items():
            i = item[unit[task]]
            single = len(x.units[unit[task]]) == 1
            messages = x.graph.repetition[task] if single else 1
            for device, link in self._up.items():
                payer = {"lane": device, "link": link.name}.get(link.paid_by)
                if payer is None:
                    continue
                seconds = {
                    j: messages * (link.per_message_s + size / link.bytes_per_s)
                    for j, size in row.items()
                }
                self._hops(i, seconds, device, payer)

    def _hops(self, i: int, seconds: dict[int, float], device: str, payer: str) -> None:
        """Add the transfers that leave and enter a device over its link to the host."""
        most = max(seconds.values())
        there = [j for j in seconds if device in self.on[j]]
        if most <= 0:
            return
        near = self._near[device]
        load = self.loads.setdefault(payer, [])
        if device in self.on[i]:
            leaves = self.linear.variable(1.0)
            load.append((leaves, most))
            for j, s in seconds.items():
                self._at_least(leaves, s / most, (i, [device]), (j, near))
            self.copying = True
        if len(seconds) == 1 and device in self.on[i] and near == [device]:
            # entering copy = leaving copy − (producer on the device) + (consumer on the device)
            load.append((leaves, most))
            load.append((self.on[i][device], -most))
            load += [(self.on[j][device], most) for j in there]
        elif there:
            enters = self.linear.variable(1.0)
            load.append((enters, most))
            for j in there:
                self._at_least(enters, seconds[j] / most, (j, [device]), (i, near))
            self.copying = True

    def _at_least(
        self, v: int, share: float, here: tuple[int, list[str]], away: tuple[int, list[str]]
    ) -> None:
        """Add v ≥ share · (`here` is on one of its devices, and `away` is on none of its own)."""
        row = [(v, 1.0)]
        row += [(self.on[here[0]][d], -share) for d in here[1] if d in self.on[here[0]]]
        row += [(self.on[away[0]][d], share) for d in away[1] if d in self.on[away[0]]]
        self.linear.add(row, 0.0, math.inf)

    def solve(self, deadline: float) -> float:
        """Return a lower bound on the period in seconds; 0 if the time was too short, or if pair
        terms may make modes quicker than alone. deadline: `time.monotonic()` seconds."""
        left = deadline - time.monotonic()
        if left <= 0 or any(s < 0 for s in self.space.costs.pair_extra_s.values()):
            return 0.0
        return self.linear.relax([(self.period, 1.0)], left, "ipm") / self.per_s
