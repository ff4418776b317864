"""Copies between devices as terms of a linear program: bytes on links, and seconds of the payer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pearl.solvers.model.linear import Linear, Terms
from pearl.solvers.model.search_space import SearchSpace

Hop = tuple[str, str]
"""A link and the device that it leads to."""


class Transfers:
    """The transfers of a program.

    lane_load, link_load: seconds per iteration of copies on a lane (device, number) or a link.
    joules: energy of the copies.

    If all devices communicate through the host, one variable for each (edge, device) tells whether
    both ends are there. Otherwise there is one variable for each pair of devices, in flow form.
    """

    def __init__(
        self,
        space: SearchSpace,
        linear: Linear,
        places: Mapping[tuple[int, str, int], Terms],
        used: Mapping[tuple[int, str], Terms],
    ) -> None:
        self.space, self.linear = space, linear
        self.places, self.used = places, used
        self.links = {link.name: link for link in space.costs.platform.links}
        self._pairs: dict[tuple[int, int], dict[Hop, Terms]] = {}
        self._homes: dict[int, list[str]] = {}
        for u, device in used:
            self._homes.setdefault(u, []).append(device)
        self._lanes: dict[tuple[int, str], list[int]] = {}
        for u, device, lane in places:
            self._lanes.setdefault((u, device), []).append(lane)
        host = space.costs.platform.host
        self._direct = [(k.a, k.b) for k in space.costs.platform.links if host not in (k.a, k.b)]
        self.lane_load: dict[tuple[str, int], Terms] = {}
        self.link_load: dict[str, Terms] = {}
        self.joules: Terms = []
        self._class = {u: c for c, members in enumerate(space.classes) for u in members}
        self._charge()

    def crossing(self, i: int, j: int) -> dict[Hop, Terms]:
        """Return for each hop the terms that are 1 if a message from unit i to unit j takes it."""
        if self._class[i] == self._class[j]:
            return {}
        if (i, j) not in self._pairs:
            way = self._flow if self._joined(i, j) else self._through_host
            self._pairs[i, j] = way(i, j)
        return self._pairs[i, j]

    def _joined(self, i: int, j: int) -> bool:
        """Return whether some devices of units i and j have a direct link."""
        homes = self._homes[i], self._homes[j]
        return any(
            (a in homes[0] and b in homes[1]) or (b in homes[0] and a in homes[1])
            for a, b in self._direct
        )

    def _least(self, i: int, j: int) -> dict[Hop, Terms]:
        """Return for each hop a lower bound on `crossing`, without further variables.

        Loads and energy need no more, because a solution minimises them.
        """
        if self._class[i] == self._class[j]:
            return {}
        if self._joined(i, j):
            return self.crossing(i, j)
        platform = self.space.costs.platform
        found: dict[Hop, Terms] = {}
        for device in dict.fromkeys([*self._homes[i], *self._homes[j]]):
            if device == platform.host:
                continue
            (link,) = platform.route(device, platform.host)
            here, there = self.used.get((i, device), []), self.used.get((j, device), [])
            if here:
                found[link.name, platform.host] = [*here, *((v, -c) for v, c in there)]
            if there:
                found[link.name, device] = [*there, *((v, -c) for v, c in here)]
        return found

    def _through_host(self, i: int, j: int) -> dict[Hop, Terms]:
        platform = self.space.costs.platform
        found: dict[Hop, Terms] = {}
        for device in dict.fromkeys([*self._homes[i], *self._homes[j]]):
            if device == platform.host:
                continue
            (link,) = platform.route(device, platform.host)
            here, there = self.used.get((i, device)), self.used.get((j, device))
            both: Terms = []
            if here and there:
                stays = self.linear.variable(1.0)
                both = [(stays, -1.0)]
                self.linear.add([*here, *both], 0.0, math.inf)
                self.linear.add([*there, *both], 0.0, math.inf)
            if here:
                found[link.name, platform.host] = [*here, *both]
            if there:
                found[link.name, device] = [*there, *both]
        return found

    def _flow(self, i: int, j: int) -> dict[Hop, Terms]:
        """Add w[d, e] for i on d and j on e, with Σ_e w = (i on d) and Σ_d w = (j on e)."""
        platform, hops = self.space.costs.platform, dict[Hop, Terms]()
        sides = self._homes[i], self._homes[j]
        w = {(d, e): self.linear.variable(1.0) for d in sides[0] for e in sides[1]}
        for d in sides[0]:
            row = [(w[d, e], -1.0) for e in sides[1]]
            self.linear.add([*row, *self.used[i, d]], 0.0, 0.0)
        for e in sides[1]:
            row = [(w[d, e], -1.0) for d in sides[0]]
            self.linear.add([*row, *self.used[j, e]], 0.0, 0.0)
        for (d, e), v in w.items():
            route = platform.route(d, e)
            stops = [e] if len(route) == 1 else [platform.host, e]
            for link, to in zip(route, stops, strict=False):
                hops.setdefault((link.name, to), []).append((v, 1.0))
        return hops

    def _charge(self) -> None:
        """Add loads and energy of every copy. Consumers on one device share a copy with the largest
        of their sizes."""
        x = self.space.expansion
        unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
        users: dict[tuple[str, Hop], list[tuple[Terms, float, int]]] = {}
        for edge in x.graph.edges:
            i, j = unit[edge.src], unit[edge.dst]
            q = x.graph.repetition[edge.src]
            size = edge.bytes if len(x.units[i]) == 1 else edge.bytes * q
            for hop, terms in self._least(i, j).items():
                users.setdefault((edge.src, hop), []).append((terms, size, j))
        for (task, (name, to)), sharers in users.items():
            link, i = self.links[name], unit[task]
            messages = x.graph.repetition[task] if len(x.units[i]) == 1 else 1
            largest = max(size for _, size, _ in sharers)
            fixed = messages * link.per_message_s
            moving = messages * largest / link.bytes_per_s
            some, much = self._shared(sharers, largest)
            seconds = [(v, c * fixed) for v, c in some if fixed]
            seconds += [(v, c * moving) for v, c in much if moving]
            energy = messages * largest * link.energy_j_per_byte
            self.joules += [(v, c * energy) for v, c in much if energy]
            if link.paid_by == "link" and seconds:
                self.link_load.setdefault(name, []).extend(seconds)
            elif link.paid_by == "lane" and seconds:
                consumers = sorted({j for _, _, j in sharers})
                self._on_a_lane(i, consumers, name, to, seconds, fixed + moving)

    def _shared(
        self, sharers: list[tuple[Terms, float, int]], largest: float
    ) -> tuple[Terms, Terms]:
        """Return the terms of "a copy is sent", and of its share of the largest size."""
        if len({id(terms) for terms, _, _ in sharers}) == 1 and all(
            c > 0 for _, c in sharers[0][0]
        ):  # one consumer
            return sharers[0][0], sharers[0][0] if largest else []
        some = much = self.linear.variable(1.0)
        uneven = any(size != largest for _, size, _ in sharers)
        if uneven and largest:
            much = self.linear.variable(1.0)
        for terms, size, _ in sharers:
            self.linear.add([(some, 1.0), *((v, -c) for v, c in terms)], 0.0, math.inf)
            if much != some and size:
                share = size / largest
                row = [(much, 1.0), *((v, -c * share) for v, c in terms)]
                self.linear.add(row, 0.0, math.inf)
        return [(some, 1.0)], [(much, 1.0)] if largest else []

    def _on_a_lane(
        self, i: int, consumers: list[int], name: str, to: str, seconds: Terms, most: float
    ) -> None:
        """Add a copy that a lane pays for: the lane of unit i if the copy leaves the device; the
        lane of the first consumer there if the copy enters from the host."""
        host = self.space.costs.platform.host
        link = self.links[name]
        enters = host in (link.a, link.b) and to != host
        device = to if enters else link.a if link.b == to else link.b
        payers = [(j, device) for j in consumers if (j, device) in self._lanes]
        if not enters:
            payers = [(i, device)]
        lanes = sorted({lane for payer in payers for lane in self._lanes[payer]})
        if len(lanes) == 1:
            self.lane_load.setdefault((device, lanes[0]), []).extend(seconds)
            return
        for lane in lanes:
            charge = self.linear.variable()
            self.lane_load.setdefault((device, lane), []).append((charge, 1.0))
            earlier: Terms = []
            for u, _ in payers:
                at_payer = self.places.get((u, device, lane), [])
                row = [(charge, 1.0), *((v, -s) for v, s in seconds)]
                row += [(v, -most * c) for v, c in at_payer]
                if at_payer:
                    self.linear.add([*row, *earlier], -most, math.inf)
                earlier = [*earlier, *((v, most * c) for v, c in self.used[u, device])]
