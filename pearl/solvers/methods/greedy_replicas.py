"""A first assignment with the copies of a task in parallel, by a greedy rule."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pearl.planning.timing import Assignment, delay_s
from pearl.solvers.model.search_space import SearchSpace
from pearl.solvers.model.tables import Ints, Places, to_places
from pearl.time_limit import look

Way = tuple[int, ...]
"""Class of a copy → its lane."""


def place_replicas(space: SearchSpace) -> Iterator[Assignment]:
    """Yield assignments of the copies, one after another: each copy on one lane, or on its quickest
    lanes of one host. Classes without a copy are placed before or after the copies.

    A copy goes where the longest of these times is shortest: the load of its lanes so far, and its
    own load with the messages within it. Among equal choices, the messages to other classes decide.
    No assignment is yielded if no task is split, or if a class has no lane.
    """
    number = {t.name: t.part.replica for t in space.expansion.graph.tasks if t.part}
    if not number:
        return
    whole: list[list[int]] = []
    copies: dict[int, list[int]] = {}
    for c, members in enumerate(space.classes):
        tasks = [t for u in members for t in space.expansion.units[u]]
        which = {number.get(t, -1) for t in tasks}
        if len(which) > 1 or -1 in which:
            whole.append([c])
        else:
            copies.setdefault(which.pop(), []).append(c)
    problem, split = to_places(space, even=True), [classes for _, classes in sorted(copies.items())]
    for order in ([*whole, *split], [*split, *whole]):
        greedy = _Greedy(problem)
        for classes in order:
            greedy.put(classes)
        if (greedy.place >= 0).all():
            yield problem.assignment(greedy.place)


class _Greedy:
    """Lanes and their loads so far. place: class → its lane; -1: none so far."""

    def __init__(self, problem: Places) -> None:
        self.seconds, self._lanes = problem.t.seconds, problem.lanes
        space = problem.space
        self.platform, x = space.costs.platform, space.expansion
        self.load = np.zeros(self.seconds.shape[1])
        self.place: Ints = np.full(len(space.classes), -1, np.int64)
        hosts: dict[str, list[int]] = {}
        for k, (device, _) in enumerate(problem.lanes):
            hosts.setdefault(self.platform.device(device).host, []).append(k)
        self._hosts = [np.array(lanes) for lanes in hosts.values()]
        unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
        of = {u: c for c, members in enumerate(space.classes) for u in members}
        # class → neighbouring classes, bytes of a message, messages per iteration
        self._near: list[list[tuple[int, float, int]]] = [[] for _ in space.classes]
        for e in x.graph.edges:
            i, j = of[unit[e.src]], of[unit[e.dst]]
            if i != j:
                self._near[i].append((j, e.bytes, x.graph.repetition[e.src]))
                self._near[j].append((i, e.bytes, x.graph.repetition[e.src]))
        self._delays: dict[tuple[str, str, float], float] = {}

    def put(self, classes: list[int]) -> None:
        """Put classes where they are complete first."""
        look()
        ways = [(self._done_s(classes, way), way) for way in self._ways(classes)]
        soonest = min((seconds for seconds, _ in ways), default=math.inf)
        if soonest == math.inf:
            return
        equal = [way for seconds, way in ways if seconds <= soonest * (1 + 1e-9)]
        best = min(equal, key=lambda way: self._outside_s(classes, way))
        for c, k in zip(classes, best, strict=True):
            self.place[c] = k
            self.load[k] += self.seconds[c, k]

    def _ways(self, classes: list[int]) -> Iterator[Way]:
        for k in range(len(self.load)):
            yield (k,) * len(classes)
        for lanes in self._hosts if len(classes) > 1 else ():
            times = self.seconds[classes][:, lanes]
            quickest = [np.lexsort((self.load[lanes], row))[0] for row in times]
            if len(set(quickest)) > 1:
                yield tuple(int(lanes[k]) for k in quickest)

    def _done_s(self, classes: list[int], way: Way) -> float:
        after = {k: float(self.load[k]) for k in way}
        own = 0.0
        for c, k in zip(classes, way, strict=True):
            after[k] += self.seconds[c, k]
            own += float(self.seconds[c, k])
        if own == math.inf:
            return math.inf
        lane = dict(zip(classes, way, strict=True))
        within = sum(self._message_s(c, lane[c], lane) for c in classes) / 2  # counted at both ends
        return max(own + within, *after.values())

    def _outside_s(self, classes: list[int], way: Way) -> float:
        others = {c: int(k) for c, k in enumerate(self.place) if k >= 0}
        return sum(self._message_s(c, k, others) for c, k in zip(classes, way, strict=True))

    def _message_s(self, c: int, k: int, lanes: dict[int, int]) -> float:
        """Return the seconds of the messages between a class on lane k and the placed classes."""
        return math.fsum(
            messages * self._delay_s(k, lanes[j], size)
            for j, size, messages in self._near[c]
            if j in lanes
        )

    def _delay_s(self, k: int, j: int, size_bytes: float) -> float:
        key = self._lanes[k][0], self._lanes[j][0], size_bytes
        if key not in self._delays:
            route = self.platform.route(key[0], key[1])
            self._delays[key] = math.fsum(delay_s(link, size_bytes) for link in route)
        return self._delays[key]
