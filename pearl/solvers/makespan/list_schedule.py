"""Schedules of one iteration, built firing by firing, each firing at its earliest time.

List schedulers share this code. A firing may be put into a gap between others (insertion). A
transfer takes its links in their first common gap, after Sinnen and Sousa 2005, "Communication
contention in task scheduling". A unit gets its mode and lane with its first firing.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pearl.planning.costs import Mode
from pearl.planning.timing import Assignment
from pearl.solvers.model.dag_instance import DagInstance, Key, order_by_times
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import look

Place = tuple[int, int]
"""Index of an option of a unit, and of a lane of that option's device."""


def build_assignment(p: SearchSpace, places: Sequence[Place]) -> Assignment:
    """Return the assignment with these places of the units."""
    modes = tuple(p.options[u][o] for u, (o, _) in enumerate(places))
    return Assignment(p.expansion, p.costs, modes, tuple(lane for _, lane in places))


def places_of(p: SearchSpace, a: Assignment) -> list[Place]:
    """Return the places of the units, with consecutive lane numbers from 0 on every device."""
    numbers: dict[str, dict[int, int]] = {}
    places = []
    for u, (m, lane) in enumerate(zip(a.modes, a.lanes, strict=True)):
        here = numbers.setdefault(m.device, {})
        places.append((p.options[u].index(m), here.setdefault(lane, len(here))))
    return places


@dataclass
class _Line:
    """Busy intervals of a lane or link, in order, without overlap."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def gap(self, ready: float, seconds: float) -> float:
        """Return the first time from `ready` on at which the line is free for `seconds`."""
        k = bisect_right(self.ends, ready)
        while k < len(self.starts) and self.starts[k] < ready + seconds:
            ready = max(ready, self.ends[k])
            k += 1
        return ready

    def take(self, start: float, seconds: float) -> None:
        k = bisect_left(self.starts, start)
        while k < len(self.starts) and self.starts[k] == start and self.ends[k] == start:
            k += 1
        self.starts.insert(k, start)
        self.ends.insert(k, start + seconds)

    def give_back(self, start: float, seconds: float) -> None:
        k = bisect_left(self.starts, start)
        while self.starts[k] != start or self.ends[k] != start + seconds:
            k += 1
        del self.starts[k], self.ends[k]


class Schedule:
    """A partial schedule.

    most_lanes: largest number of lanes of one device, in addition to the search space's limit.
    """

    def __init__(self, it: DagInstance, most_lanes: float = math.inf) -> None:
        self.it, self.most_lanes = it, most_lanes
        p = it.space
        self.taken: list[Place | None] = [None] * len(p.options)
        self.start = [math.nan] * len(it.order)
        self.lines: dict[tuple[str, int], _Line] = {}
        self.widths: dict[str, list[int]] = {d.name: [] for d in p.costs.platform.devices}
        self.links = {link.name: _Line() for link in p.costs.platform.links}
        self.sent: dict[tuple[str, int, str], tuple[float, float]] = {}  # copy → start, free again
        self.largest: dict[str, float] = {}
        for row in it.after:
            for _, size, task in row:
                self.largest[task] = max(size, self.largest.get(task, 0.0))
        self.kept: dict[tuple[str, int], float] = {}  # lane → bytes stored on each of its units
        self.apart: dict[int, list[int]] = {}
        for u, w in p.apart:
            self.apart.setdefault(u, []).append(w)
            self.apart.setdefault(w, []).append(u)
        self.by_lane: dict[int, list[tuple[int, float, bool]]] = {}
        for u, w, extra, shared in p.lane_terms:
            self.by_lane.setdefault(u, []).append((w, extra, shared))
        self.where: list[str | None] = [None] * len(p.classes)
        self.group = {u: c for c, members in enumerate(p.classes) for u in members}
        self.room = dict(p.capacity_bytes)
        self.tight = any(
            sum(
                size
                for members, size in zip(p.classes, p.memory_bytes, strict=True)
                if any(m.device == d for m in p.options[members[0]])
            )
            > room
            for d, room in self.room.items()
        )
        self.common = [
            set.intersection(*({m.device for m in p.options[u]} for u in members))
            for members in p.classes
        ]
        self.turn_before = {v: u for u, v in enumerate(it.turn) if v >= 0}
        self.paired: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
        for u, o, w, other, extra in p.pair_terms:
            self.paired.setdefault((u, o), []).append((w, other, extra))

    def mode(self, unit: int, option: int) -> Mode:
        return self.it.space.options[unit][option]

    def times(self, unit: int, place: Place) -> tuple[float, float]:
        """Return latency and occupancy at a place, with the pair and lane terms so far."""
        option, lane = place
        e = self.mode(unit, option).estimate
        latency, occupancy = e.latency_s, e.occupancy_s
        for other, o, extra in self.paired.get((unit, option), ()):
            other_place = self.taken[other]
            if other_place and other_place[0] == o:
                latency, occupancy = max(0.0, latency + extra), max(0.0, occupancy + extra)
        here = self.mode(unit, option).device, lane
        for other, extra, shared in self.by_lane.get(unit, ()):
            where = self.taken[other]
            if where and (here == (self.mode(other, where[0]).device, where[1])) == shared:
                latency, occupancy = latency + extra, occupancy + extra
        return latency, occupancy

    def _may_share(self, unit: int, mode: Mode, lane: int) -> bool:
        """Return whether a lane has memory left for a mode, and no unit that must be apart."""
        p, here = self.it.space, (mode.device, lane)
        room = p.unit_capacity_bytes[mode.device] * (1 + 1e-12)
        return self.kept.get(here, 0.0) + p.bytes_on_unit(unit, mode) <= room and all(
            place is None or (self.mode(w, place[0]).device, place[1]) != here
            for w in self.apart.get(unit, ())
            for place in [self.taken[w]]
        )

    def places(self, v: int) -> Iterator[Place]:
        """Yield the places of a firing: the place of its unit, or each option and lane after which
        the other units still have a place, as far as this schedule can tell."""
        u = self.it.unit[v]
        if self.taken[u] is not None:
            yield self.taken[u]  # type: ignore[misc]
            return
        p = self.it.space
        calls = [
            p.call(w, self.mode(w, taken[0]), taken[1])
            for w, taken in enumerate(self.taken if p.rules else ())
            if taken
        ]
        for o, lane in self._free_places(u):
            if not p.breaks_rule([*calls, p.call(u, p.options[u][o], lane)]):
                yield o, lane

    def _free_places(self, u: int) -> Iterator[Place]:
        """Yield the places of a unit without one, before the rules of further limits."""
        p = self.it.space
        c = self.group[u]
        for o, m in enumerate(p.options[u]):
            if m.device not in self.common[c] or self.where[c] not in (None, m.device):
                continue
            if self.tight and self.where[c] is None and not self._leaves_room(c, m.device):
                continue
            widths = self.widths[m.device]
            whole = p.costs.platform.device(m.device).width
            for lane, width in enumerate(widths):
                fits = sum(widths) - width + max(width, m.width) <= whole
                if fits and self._may_share(u, m, lane):
                    yield o, lane
            if (
                len(widths) < min(p.lanes[m.device], self.most_lanes)
                and sum(widths) + m.width <= whole
                and self._leaves_lanes(u, m.device)
            ):
                yield o, len(widths)

    def _leaves_lanes(self, unit: int, device: str) -> bool:
        """Return whether a lane may be opened on a device such that every unit keeps a device."""
        p = self.it.space
        used = {d for d, w in self.widths.items() if w} | {device}
        left = p.max_lanes - sum(len(w) for w in self.widths.values()) - 1
        if left >= len(self.widths):
            return left >= 0
        if left > 0:
            return True
        return left == 0 and all(
            place is not None or u == unit or any(m.device in used for m in p.options[u])
            for u, place in enumerate(self.taken)
        )

    def _leaves_room(self, c: int, device: str) -> bool:
        """Return whether a class fits on a device and the other classes can be packed, largest
        first."""
        p = self.it.space
        room = {**self.room, device: self.room[device] - p.memory_bytes[c]}
        if room[device] < -1e-12 * p.capacity_bytes[device]:
            return False
        rest = [k for k, d in enumerate(self.where) if d is None and k != c]
        for k in sorted(rest, key=lambda k: (len(self.common[k]), -p.memory_bytes[k])):
            best = max(self.common[k], key=lambda d: (room[d], d), default=None)
            if best is None or p.memory_bytes[k] > room[best]:
                return False
            room[best] -= p.memory_bytes[k]
        return True

    def at(self, v: int, place: Place) -> tuple[float, float]:
        """Return the start and the end of a firing at a place."""
        undo: list[tuple[_Line, float, float]] = []
        begin, _, _ = self._begin(v, place, undo, {})
        for line, start, seconds in reversed(undo):
            line.give_back(start, seconds)
        return begin, begin + self.times(self.it.unit[v], place)[0]

    def put(self, v: int, place: Place) -> float:
        """Start a firing at a place as early as possible; return its end."""
        u, (option, lane) = self.it.unit[v], place
        m = self.mode(u, option)
        if self.taken[u] is None:
            self.taken[u] = place
            c = self.group[u]
            if self.where[c] is None:
                self.where[c] = m.device
                self.room[m.device] -= self.it.space.memory_bytes[c]
            widths = self.widths[m.device]
            while lane >= len(widths):
                self.lines[m.device, len(widths)] = _Line()
                widths.append(0)
            widths[lane] = max(widths[lane], m.width)
            kept = self.it.space.bytes_on_unit(u, m)
            self.kept[m.device, lane] = self.kept.get((m.device, lane), 0.0) + kept
        begin, _, occupancy = self._begin(v, place, [], self.sent)
        self.start[v] = begin
        self.lines[m.device, lane].take(begin, occupancy)
        return begin + self.times(u, place)[0]

    def _begin(
        self,
        v: int,
        place: Place,
        undo: list[tuple[_Line, float, float]],
        new: dict[tuple[str, int, str], tuple[float, float]],
    ) -> tuple[float, str, float]:
        u, (option, lane) = self.it.unit[v], place
        device = self.mode(u, option).device
        ready = 0.0
        for s, size, task in self.it.before[v]:
            ready = max(ready, self._arrival(s, size, task, device, undo, new))
        occupancy = self.times(u, place)[1]
        if v in self.turn_before:
            ready = max(ready, self.start[self.turn_before[v]] + occupancy)
        line = self.lines.get((device, lane))
        return (line.gap(ready, occupancy) if line else ready), device, occupancy

    def _arrival(
        self,
        s: int,
        size: float,
        task: str,
        device: str,
        undo: list[tuple[_Line, float, float]],
        new: dict[tuple[str, int, str], tuple[float, float]],
    ) -> float:
        w = self.it.unit[s]
        taken = self.taken[w]
        assert taken is not None
        source = self.mode(w, taken[0]).device
        end = self.start[s] + self.times(w, taken)[0]
        if source == device:
            return end
        platform = self.it.space.costs.platform
        route = platform.route(source, device)
        if all(k.paid_by != "link" for k in route):
            return end + self.it.delay_s(source, device, size)
        f = self.it.space.expansion.nodes[s][1]
        stops = [device] if len(route) == 1 else [platform.host, device]
        ready, arrived = end, end
        for link, stop in zip(route, stops, strict=True):
            begin = ready
            if link.paid_by == "link":
                key = (task, f, stop)
                sent = self.sent.get(key) or new.get(key)
                if sent is None:
                    seconds = link.per_message_s + self.largest[task] / link.bytes_per_s
                    line = self.links[link.name]
                    begin = line.gap(ready, seconds)
                    line.take(begin, seconds)
                    undo.append((line, begin, seconds))
                    new[key] = begin, begin + seconds
                else:
                    begin = sent[0]
            arrived = begin + link.latency_s + size / link.bytes_per_s
            ready = arrived
        return arrived

    def end_s(self) -> float:
        """The end of the last firing."""
        latency = [self.times(u, place)[0] for u, place in enumerate(self.taken) if place]
        return max(t + latency[u] for t, u in zip(self.start, self.it.unit, strict=True))

    def to_candidate(self) -> Candidate | None:
        """Return the finished schedule, evaluated exactly; None if it breaks a coupling rule."""
        p = self.it.space
        places = [place for place in self.taken if place is not None]
        a = build_assignment(p, places)
        if p.violates_coupling(a):
            return None
        keys: list[Key] = []
        for v, u in enumerate(self.it.unit):
            free = self.start[v] + self.times(u, places[u])[1]
            keys.append((self.start[v], free, float(self.it.place[v])))
        copies: dict[tuple[str, int], Key] = {}
        x = p.expansion
        for (task, f, stop), (begin, free) in self.sent.items():
            v = x.node[task, f]
            copies[f"{task}>{stop}", f] = (begin, free, self.it.place[v] + 0.5)
        return order_by_times(a, keys, copies)


Choose = Callable[[Schedule, int], Place | None]
"""From a partial schedule and a firing to the place of the firing, or None."""


def soonest(made: Schedule, v: int) -> Place | None:
    """Return the place at which a firing ends first; None if it has no place."""
    return min(made.places(v), key=lambda place: (made.at(v, place)[1], place), default=None)


def list_schedule(
    it: DagInstance, rank: Sequence[float], choose: Choose, most_lanes: float = math.inf
) -> Schedule | None:
    """Build a schedule: among the firings with placed predecessors, the one of highest rank goes
    next, as early as possible at the chosen place; None if a firing gets no place."""
    made, waits = Schedule(it, most_lanes), list(it.waits)
    ready = [(-rank[v], it.place[v], v) for v in it.order if waits[v] == 0]
    heapq.heapify(ready)
    while ready:
        look()
        v = heapq.heappop(ready)[2]
        place = choose(made, v)
        if place is None:
            return None
        made.put(v, place)
        for d in it.nexts[v]:
            waits[d] -= 1
            if waits[d] == 0:
                heapq.heappush(ready, (-rank[d], it.place[d], d))
    return made


def build_schedule(it: DagInstance, priority: Sequence[float], places: Sequence[Place]) -> Schedule:
    """Build the schedule of given places, the firing of least priority first."""
    made = list_schedule(it, [-p for p in priority], lambda _, v: places[it.unit[v]])
    assert made is not None
    return made
