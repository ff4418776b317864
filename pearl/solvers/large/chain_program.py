"""The priced assignments of a search space, evaluated along chains and rings of its classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.graph.cycle_ratio import Arc, howard
from pearl.solvers.large.chains import chains_of
from pearl.solvers.model.dag_instance import fastest
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import watched

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CYCLES = 8
"""Largest number of cycles with a price (assumed)."""


@dataclass(frozen=True)
class Prices:
    """Prices of a chain program.

    cycles: λ of each cycle. resources: μ of each device, then of each link. memory: ν of each
    device, in seconds for its whole memory.
    """

    cycles: Floats
    resources: Floats
    memory: Floats


@dataclass
class Cycle:
    """A cycle of the expansion as costs of the rows of chains, one entry per chain.

    alone: (rows, devices). same: (rows, devices, 2), additional cost of neighbours on one device.
    Messages and bytes between neighbours, in both directions, are as in `Chain`.
    """

    tokens: int
    alone: list[Floats]
    same: list[Floats]
    count_to: list[Floats]
    bytes_to: list[Floats]
    count_from: list[Floats]
    bytes_from: list[Floats]


class ChainProgram:
    """The priced assignments of a search space.

    priced: devices, then links, that may have a price. tight: devices whose memory may have a
        price.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space, platform = space, space.costs.platform
        self.names = [d.name for d in platform.devices]
        number = {name: k for k, name in enumerate(self.names)}
        n, d = len(space.classes), len(self.names)
        self.class_of = np.zeros(len(space.options), np.int64)
        for c, members in enumerate(space.classes):
            self.class_of[list(members)] = c
        self.latency = np.full((len(space.options), d), math.inf)
        self.occupancy = np.full((len(space.options), d), math.inf)
        for u, row in enumerate(fastest(space)):
            for name, (latency, occupancy) in row.items():
                self.latency[u, number[name]] = latency
                self.occupancy[u, number[name]] = occupancy
        x = space.expansion
        self.firings = np.array([x.firings(u) for u in range(len(x.units))], float)
        self.work = np.zeros((n, d))
        np.add.at(self.work, self.class_of, self.occupancy * self.firings[:, None])
        self.lanes = np.array([space.lanes[name] for name in self.names], float)
        capacity = np.array([space.capacity_bytes[name] for name in self.names])
        need = np.array(space.memory_bytes)
        self.tight = np.isfinite(capacity) & (capacity > 0) & (need.sum() > capacity)
        self.memory = np.where(self.tight, need[:, None] / np.where(self.tight, capacity, 1.0), 0.0)
        for k in np.flatnonzero(capacity <= 0):
            self.work[need > 0, k] = math.inf
        self.able = np.isfinite(self.work).any(axis=0)
        self.seconds = np.where(np.isfinite(self.work), self.work, 0.0)
        self._routes()
        self.priced = np.concatenate([self.able, self.taking[d:].any(axis=(1, 2))])
        self.chains = chains_of(space, self.class_of, self.latency.min(axis=1))
        self.row = {
            int(c): (k, r)
            for k, chain in enumerate(self.chains)
            for r, c in enumerate(chain.classes)
        }
        self._messages()
        self.cycles: list[Cycle] = []
        self._seen: set[tuple[int, ...]] = set()

    def _routes(self) -> None:
        """Compute the linear cost of a message between two devices: delay = wait + bytes ·
        per_byte; seconds of each device and link = messages · taking + bytes · taking_per_byte."""
        platform, d = self.space.costs.platform, len(self.names)
        resources = d + len(platform.links)
        links = {link.name: d + k for k, link in enumerate(platform.links)}
        self.wait, self.per_byte = np.zeros((d, d)), np.zeros((d, d))
        self.taking = np.zeros((resources, d, d))
        self.taking_per_byte = np.zeros((resources, d, d))
        used = np.flatnonzero(self.able)
        for a in used:
            for b in used:
                route = platform.route(self.names[a], self.names[b])
                for hop, link in enumerate(route):
                    self.wait[a, b] += link.latency_s
                    self.per_byte[a, b] += 1 / link.bytes_per_s
                    if link.paid_by == "nobody":
                        continue
                    from_host = hop > 0 or self.names[a] == platform.host
                    payer = links[link.name] if link.paid_by == "link" else b if from_host else a
                    self.taking[payer, a, b] += link.per_message_s
                    self.taking_per_byte[payer, a, b] += 1 / link.bytes_per_s

    def _payload(self, task: str, size: float) -> tuple[float, int]:
        """Return the bytes of a task's message, and its messages per iteration
        (`Assignment.payload`)."""
        x = self.space.expansion
        q = x.graph.repetition[task]
        return (size, q) if len(x.units[self.unit[task]]) == 1 else (size * q, 1)

    def _messages(self) -> None:
        """Add the messages between neighbours. A task that sends to both neighbours may share its
        copy, so each side gets half of the cost."""
        x = self.space.expansion
        self.unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
        self.readers: dict[str, dict[int, float]] = {}
        for e in watched(x.graph.edges):
            row = self.readers.setdefault(e.src, {})
            reader = self.unit[e.dst]
            row[reader] = max(e.bytes, row.get(reader, 0.0))
        self.senders: list[list[str]] = [[] for _ in self.space.classes]
        for task, readers in watched(self.readers.items()):
            here = int(self.class_of[self.unit[task]])
            self.senders[here].append(task)
            sizes: dict[tuple[int, int, bool], float] = {}
            for reader, size in readers.items():
                pair = self._pair(here, int(self.class_of[reader]))
                if pair is not None:
                    sizes[pair] = max(size, sizes.get(pair, 0.0))
            for (k, r, forth), size in sizes.items():
                size, messages = self._payload(task, size)
                chain, share = self.chains[k], messages / len(sizes)
                if forth:
                    chain.count_to[r] += share
                    chain.bytes_to[r] += share * size
                else:
                    chain.count_from[r] += share
                    chain.bytes_from[r] += share * size

    def _pair(self, a: int, b: int) -> tuple[int, int, bool] | None:
        """Return the chain and row of two neighbouring classes, and whether b is the later one."""
        (k, r), (other, s) = self.row[a], self.row[b]
        if a == b or k != other:
            return None
        chain = self.chains[k]
        n = len(chain.classes)
        if s == r + 1 or (chain.ring and s == (r + 1) % n):
            return k, r, True
        if r == s + 1 or (chain.ring and r == (s + 1) % n):
            return k, s, False
        return None

    def _entering(self, unit: int) -> Floats:
        """Return for each device the least seconds by which the copy from the row before lengthens
        each firing of a unit there; 0 if another unit may pay for the copy."""
        none = np.zeros(len(self.names))
        c = int(self.class_of[unit])
        k, r = self.row[c]
        chain = self.chains[k]
        if len(self.space.classes[c]) > 1 or (r == 0 and not chain.ring):
            return none
        before = chain.classes[r - 1]
        amount = none.copy()
        sources = np.flatnonzero(np.isfinite(self.work[before]))
        for task in self.senders[int(before)]:
            if [*self.readers[task]] == [unit]:
                size, messages = self._payload(task, self.readers[task][unit])
                for b in range(len(self.names)):
                    a = sources[sources != b]
                    took = self.taking[b, a, b] + size * self.taking_per_byte[b, a, b]
                    amount[b] += messages * took.min(initial=math.inf) if len(a) else 0.0
        seconds: Floats = amount / self.firings[unit]
        return seconds

    def arcs(self, devices: Ints | None) -> list[Arc]:
        """Return the arcs of the expansion with the seconds of an assignment, or the least ones."""
        x = self.space.expansion
        if devices is None:
            least = self.latency.min(axis=1)
            return [(s, d, float(least[x.nodes[s][0]]), m) for s, d, m, _ in watched(x.arcs)]
        arcs: list[Arc] = []
        for s, d, m, e in watched(x.arcs):
            u, v = x.nodes[s][0], x.nodes[d][0]
            a, b = devices[self.class_of[u]], devices[self.class_of[v]]
            seconds = self.latency[u, a]
            if a != b:
                size, _ = self._payload(x.graph.edges[e].src, x.graph.edges[e].bytes)
                seconds += self.wait[a, b] + size * self.per_byte[a, b]
            arcs.append((s, d, float(seconds), m))
        return arcs

    def ratio_s(self, devices: Ints | None) -> float:
        """Return the maximum cycle ratio with these devices (None: with the least latencies), in
        seconds. The cycle gets a price if it has none yet."""
        ratio, numbers = self._critical(self.arcs(devices))
        if numbers and len(self.cycles) < CYCLES:
            chosen = tuple(sorted(numbers))
            if chosen not in self._seen:
                self._seen.add(chosen)
                self.cycles.append(self._cycle(chosen))
        return ratio

    def _critical(self, arcs: Sequence[Arc]) -> tuple[float, list[int]]:
        """Return the maximum cycle ratio in seconds, and the arcs of a cycle with this ratio, in
        order."""
        ratio, nodes = howard(len(self.space.expansion.nodes), arcs)
        following = dict(zip(nodes, [*nodes[1:], *nodes[:1]], strict=True))
        most: dict[int, tuple[float, int]] = {}
        for number, (s, d, w, m) in enumerate(arcs):
            if following.get(s) == d and (s not in most or w - ratio * m > most[s][0]):
                most[s] = w - ratio * m, number
        return ratio, [most[s][1] for s in nodes]

    def crossing_s(self) -> float:
        """Return a lower bound on every period, in seconds, from the critical cycle of least
        latencies.

        The classes of the cycle lie on k devices, for some k. The lanes of k devices share their
        work, and the cycle crosses between devices at least k times, or k - 1 times in each part
        of it that visits every class.
        """
        x, arcs = self.space.expansion, self.arcs(None)
        _, numbers = self._critical(arcs)
        if not numbers:
            return 0.0
        classes = [int(self.class_of[x.nodes[arcs[number][0]][0]]) for number in numbers]
        parts, met = 0, set[int]()
        for c in classes:
            met.add(c)
            if len(met) == len(set(classes)):
                parts, met = parts + 1, set[int]()
        used = np.flatnonzero(self.able)
        apart = ~np.eye(len(used), dtype=bool)
        wait = self.wait[np.ix_(used, used)][apart]
        per_byte = self.per_byte[np.ix_(used, used)][apart]
        crossing = []
        for number, c, other in zip(numbers, classes, [*classes[1:], classes[0]], strict=True):
            if c != other:
                edge = x.graph.edges[x.arcs[number][3]]
                size, _ = self._payload(edge.src, edge.bytes)
                crossing.append(float((wait + size * per_byte).min(initial=math.inf)))
        crossing.sort()
        latency = sum(arcs[number][2] for number in numbers)
        tokens = sum(arcs[number][3] for number in numbers)
        work = float(self.work[sorted(set(classes))].min(axis=1).sum())
        lanes = np.sort(self.lanes[used])[::-1].cumsum()
        least = math.inf
        for k in range(1, 1 + min(len(used), len(set(classes)))):
            times = max(k, parts * (k - 1)) if k > 1 else 0
            around = (latency + sum(crossing[:times])) / tokens
            least = min(least, max(work / lanes[k - 1], around))
        return least

    def _cycle(self, numbers: Sequence[int]) -> Cycle:
        x, d = self.space.expansion, len(self.names)
        sizes = [len(chain.classes) for chain in self.chains]
        cycle = Cycle(
            0,
            [np.zeros((n, d)) for n in sizes],
            [np.zeros((n, d, 2)) for n in sizes],
            *([np.zeros(n) for n in sizes] for _ in range(4)),
        )
        single = self.lanes == 1
        for number in numbers:
            s, t, tokens, e = x.arcs[number]
            cycle.tokens += tokens
            u, v = x.nodes[s][0], x.nodes[t][0]
            here, there = int(self.class_of[u]), int(self.class_of[v])
            k, r = self.row[here]
            finite = np.isfinite(self.latency[u])
            latency = np.where(finite, self.latency[u], 0.0)
            cycle.alone[k][r] += latency
            pair = self._pair(here, there)
            if pair is None:
                continue
            k, r, forth = pair
            edge = x.graph.edges[e]
            size, _ = self._payload(edge.src, edge.bytes)
            if forth:
                cycle.count_to[k][r] += 1
                cycle.bytes_to[k][r] += size
                # On a device with one lane, the next firing starts after this one and the copy that
                # its lane pays for.
                longer = self.occupancy[u] + self._entering(u) - latency
                cycle.same[k][r, :, 1] += np.where(single & finite, np.maximum(0.0, longer), 0.0)
            else:
                cycle.count_from[k][r] += 1
                cycle.bytes_from[k][r] += size
        return cycle

    def cheapest(self, prices: Prices) -> tuple[float, Ints]:
        """Return the least priced value of any assignment, and the device of each class in it."""
        from pearl.solvers.large.chain_paths import cheapest

        d = len(self.names)
        devices = np.zeros(len(self.space.classes), np.int64)
        load_price = prices.resources[:d] / self.lanes
        unit = np.concatenate([load_price, prices.resources[d:]])
        a_message = np.tensordot(unit, self.taking, 1)
        a_byte = np.tensordot(unit, self.taking_per_byte, 1)
        value = -float(prices.memory[self.tight].sum())
        for k, chain in enumerate(self.chains):
            alone = self.seconds[chain.classes] * load_price
            alone += self.memory[chain.classes] * prices.memory
            alone[np.isinf(self.work[chain.classes])] = math.inf
            same = np.zeros((len(chain.classes), d, 2))
            to_fixed, to_bytes = np.zeros((2, len(chain.classes)))
            from_fixed, from_bytes = np.zeros((2, len(chain.classes)))
            for price, cycle in zip(prices.cycles, self.cycles, strict=True):
                rate = price / cycle.tokens
                alone += rate * cycle.alone[k]
                same += rate * cycle.same[k]
                to_fixed += rate * cycle.count_to[k]
                to_bytes += rate * cycle.bytes_to[k]
                from_fixed += rate * cycle.count_from[k]
                from_bytes += rate * cycle.bytes_from[k]
            cross = (
                np.multiply.outer(chain.count_to, a_message)
                + np.multiply.outer(chain.bytes_to, a_byte)
                + np.multiply.outer(chain.count_from, a_message.T)
                + np.multiply.outer(chain.bytes_from, a_byte.T)
                + np.multiply.outer(to_fixed, self.wait)
                + np.multiply.outer(to_bytes, self.per_byte)
                + np.multiply.outer(from_fixed, self.wait.T)
                + np.multiply.outer(from_bytes, self.per_byte.T)
            )
            place = np.zeros(len(chain.classes), np.int64)
            value += float(cheapest(alone, same, cross, chain.ring, place))
            devices[chain.classes] = place
        return value, devices

    def uses(self, devices: Ints) -> tuple[Floats, Floats, Floats]:
        """Return the quantities of an assignment that the bound prices: the ratio of each cycle and
        the load of each device (per lane) and link in seconds, and the share of each device's
        memory."""
        d = len(self.names)
        ratios = np.zeros(len(self.cycles))
        loads = np.zeros(len(self.taking))
        np.add.at(loads, devices, self.work[np.arange(len(devices)), devices])
        memory = np.zeros(d)
        np.add.at(memory, devices, self.memory[np.arange(len(devices)), devices])
        for k, chain in enumerate(self.chains):
            at = devices[chain.classes]
            then = np.roll(at, -1)
            parted = at != then
            entered = np.roll(parted, 1).astype(np.int64)
            if not chain.ring:
                parted[-1], entered[0] = False, 0
            rows = np.arange(len(at))
            out, into = at[parted], then[parted]
            loads += self.taking[:, out, into] @ chain.count_to[parted]
            loads += self.taking_per_byte[:, out, into] @ chain.bytes_to[parted]
            loads += self.taking[:, into, out] @ chain.count_from[parted]
            loads += self.taking_per_byte[:, into, out] @ chain.bytes_from[parted]
            for c, cycle in enumerate(self.cycles):
                seconds = cycle.alone[k][rows, at].sum()
                seconds += cycle.same[k][rows, at, entered][~parted].sum()
                seconds += cycle.count_to[k][parted] @ self.wait[out, into]
                seconds += cycle.bytes_to[k][parted] @ self.per_byte[out, into]
                seconds += cycle.count_from[k][parted] @ self.wait[into, out]
                seconds += cycle.bytes_from[k][parted] @ self.per_byte[into, out]
                ratios[c] += seconds / cycle.tokens
        loads[:d] /= self.lanes
        return ratios, loads, memory
