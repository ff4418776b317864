"""Loads of lanes and links in seconds per iteration, updated move by move.

Local search on large graphs minimises loads instead of the exact period, which is at least the
largest load. Loads exclude pair terms.
"""

from __future__ import annotations

from collections.abc import Sequence

from pearl.solvers.model.list_schedule import Place
from pearl.solvers.model.search_space import SearchSpace

POWER = 12
"""Power of the loads in their sum: the largest load counts most, and the others still count."""

Line = tuple[str, int]
"""A device and the number of a lane, or a link and −1."""


class LaneLoads:
    """The loads of an assignment.

    seconds: lane or link → busy seconds per iteration. joules: energy of modes and transfers.
    size: the power sum of the loads over `unit_s`.
    """

    def __init__(self, p: SearchSpace, places: Sequence[Place], unit_s: float) -> None:
        self.p, self.places, self.unit_s = p, list(places), unit_s
        x = p.expansion
        unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
        self.consumers: list[dict[str, dict[int, float]]] = [{} for _ in x.units]
        self.feeds: list[set[int]] = [set() for _ in x.units]
        self.messages: list[int] = [
            x.graph.repetition[tasks[0]] if len(tasks) == 1 else 1 for tasks in x.units
        ]
        for e in x.graph.edges:
            i, j = unit[e.src], unit[e.dst]
            if i != j:
                size = e.bytes * (1 if len(x.units[i]) == 1 else x.graph.repetition[e.src])
                row = self.consumers[i].setdefault(e.src, {})
                row[j] = max(size, row.get(j, 0.0))
                self.feeds[j].add(i)
        self.seconds: dict[Line, float] = {}
        self.joules, self.size = 0.0, 0.0
        self.sent: list[list[tuple[Line, float, float]]] = [[] for _ in x.units]
        for u in range(len(x.units)):
            self._work(u, 1)
        for u in range(len(x.units)):
            self._send(u)

    def soft_s(self) -> float:
        """An upper approximation of the largest load, in seconds."""
        return float(self.unit_s * max(0.0, self.size) ** (1 / POWER))

    def largest_s(self) -> float:
        return max(self.seconds.values(), default=0.0)

    def move(self, units: Sequence[int], places: Sequence[Place]) -> list[Place]:
        """Move units; return their places before, with which a second call undoes the move."""
        old = [self.places[u] for u in units]
        touched = dict.fromkeys(w for u in units for w in (u, *sorted(self.feeds[u])))
        for w in touched:
            for line, seconds, joules in self.sent[w]:
                self._add(line, -seconds)
                self.joules -= joules
        for u, place in zip(units, places, strict=True):
            self._work(u, -1)
            self.places[u] = place
            self._work(u, 1)
        for w in touched:
            self._send(w)
        return old

    def _add(self, line: Line, seconds: float) -> None:
        old = self.seconds.get(line, 0.0)
        new = self.seconds[line] = max(0.0, old + seconds)
        self.size += (new / self.unit_s) ** POWER - (old / self.unit_s) ** POWER

    def _work(self, u: int, sign: int) -> None:
        option, lane = self.places[u]
        m = self.p.options[u][option]
        firings = self.p.expansion.firings(u)
        self._add((m.device, lane), sign * firings * m.estimate.occupancy_s)
        self.joules += sign * firings * m.estimate.energy_j

    def _send(self, u: int) -> None:
        """Add the copies of a unit's results: one for each device that reads them, and one to the
        host."""
        platform = self.p.costs.platform
        option, lane = self.places[u]
        source = self.p.options[u][option].device
        copies: list[tuple[Line, float, float]] = []
        for row in self.consumers[u].values():
            stops: dict[str, tuple[float, int]] = {}  # device → largest message, first consumer
            for j, size in row.items():
                there = self.p.options[j][self.places[j][0]].device
                if there == source:
                    continue
                largest, first = stops.get(there, (0.0, j))
                stops[there] = max(largest, size), min(first, j)
            hops: dict[str, float] = {}
            for there, (size, first) in stops.items():
                route = platform.route(source, there)
                way = [there] if len(route) == 1 else [platform.host, there]
                for link, to in zip(route, way, strict=True):
                    before = hops.get(to, -1.0)
                    if size <= before:
                        continue
                    hops[to] = size
                    n = self.messages[u]
                    busy = n * (link.per_message_s + size / link.bytes_per_s)
                    joules = n * size * link.energy_j_per_byte
                    if before >= 0:  # a larger message replaces the smaller one
                        busy -= n * (link.per_message_s + before / link.bytes_per_s)
                        joules -= n * before * link.energy_j_per_byte
                    line: Line = (link.name, -1)
                    if link.paid_by == "lane":
                        line = source, lane
                        if source == platform.host or to != way[0]:
                            line = there, self.places[first][1]
                    copies.append((line, 0.0 if link.paid_by == "nobody" else busy, joules))
        self.sent[u] = copies
        for line, seconds, joules in copies:
            self._add(line, seconds)
            self.joules += joules
