"""LSHS, load-simulated scheduling: keep the highest loads of memory and network low.

Elibol and others 2022, "NumS: Scalable Array Programming for the Cloud", arXiv 2206.14276. The
loads of a choice of device are simulated: bytes that each device stores, receives and sends. The
choice with the least sum of the highest loads over the devices is taken. A firing may go to the
devices that hold data it reads, and to any device if it reads none. The method works on the
token-free arcs of one iteration. For throughput, the plan is evaluated like any other plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pearl.planning.problem import Problem
from pearl.solvers.makespan.list_outcome import best_of, listed_outcome
from pearl.solvers.makespan.list_schedule import Schedule
from pearl.solvers.model.dag_instance import DagInstance
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.time_limit import look

OBJECTIVES = ("throughput", "makespan")
"""The objectives of the method, which looks at time alone."""

Message = tuple[tuple[str, int], str, float]
"""Task and firing that made an array, device of that firing, and bytes."""


def solve(problem: Problem, search: Search) -> Outcome:
    """Return LSHS's schedule, with a bound from a relaxation. `seed` has no effect.

    Raises:
        InfeasibleError: no plan is within the limits, or LSHS's plan is not.
    """
    return listed_outcome(schedule, problem, search)


def schedule(it: DagInstance) -> Candidate | None:
    """Return LSHS's schedule of one iteration of a search space; None if a firing finds no
    place."""
    return best_of(lambda lanes: made[0] if (made := simulate(it, lanes)) else None)


@dataclass
class ByteLoads:
    """Loads of devices from the firings placed so far, in bytes; nothing is freed.

    kept: device → bytes of outputs made there, and of copies of others' outputs.
    received, sent: device → bytes over the network. A device receives an array once.
    copies: arrays that a device received, by task and firing.
    """

    kept: dict[str, float]
    received: dict[str, float]
    sent: dict[str, float]
    copies: dict[str, set[tuple[str, int]]]

    @classmethod
    def of(cls, devices: Iterable[str]) -> ByteLoads:
        none = dict.fromkeys(devices, 0.0)
        return cls(dict(none), dict(none), none, {device: set() for device in none})

    def cost_bytes(self, device: str, made_bytes: float, messages: Iterable[Message]) -> float:
        """Return the sum of the highest loads if a firing with these inputs ran on `device`."""
        arriving, leaving = 0.0, dict[str, float]()
        for _, source, size in self._missing(device, messages):
            arriving += size
            leaving[source] = leaving.get(source, 0.0) + size
        kept = self.kept[device] + made_bytes + arriving
        sent = max(size + leaving.get(d, 0.0) for d, size in self.sent.items())
        return (
            max(kept, *self.kept.values())
            + max(self.received[device] + arriving, *self.received.values())
            + sent
        )

    def place(self, device: str, made_bytes: float, messages: Iterable[Message]) -> None:
        """Add the loads of a firing on `device`."""
        for array, source, size in self._missing(device, messages):
            self.copies[device].add(array)
            self.received[device] += size
            self.sent[source] += size
            self.kept[device] += size
        self.kept[device] += made_bytes

    def _missing(self, device: str, messages: Iterable[Message]) -> Iterable[Message]:
        here = self.copies[device]
        return [m for m in messages if m[1] != device and m[0] not in here]


def simulate(it: DagInstance, most_lanes: float = math.inf) -> tuple[Schedule, ByteLoads] | None:
    """Place firings in topological order, each on the device of least cost; None if one finds no
    place.

    A firing that reads nothing is placed with the first reader of its output, because in the paper
    blocks of arrays that are used together are stored together.
    """
    made = Schedule(it, most_lanes)
    loads = ByteLoads.of(d.name for d in it.space.costs.platform.devices)
    waiting: set[int] = set()
    for v in it.order:
        look()
        alone = it.turn[v] < 0 and v not in made.turn_before
        if alone and it.after[v] and not it.before[v]:
            waiting.add(v)
            continue
        sources = [s for s in dict.fromkeys(s for s, _, _ in it.before[v]) if s in waiting]
        waiting.difference_update(sources)
        if not _place(made, loads, v, sources):
            return None
    return made, loads


def _place(made: Schedule, loads: ByteLoads, v: int, sources: list[int]) -> bool:
    """Place a firing and the `sources` that it reads on one device, each in the lane where it ends
    first; a source that the device cannot run goes where it ends first. Return False if a firing
    finds no place."""
    able = _devices(made, v)
    able = [d for d in able if all(d in _devices(made, s) for s in sources)] or able
    messages = _messages(made, v, sources)
    holders = {source for _, source, _ in messages}
    near = [] if sources else [d for d in able if d in holders]
    if not able:
        return False
    made_bytes = sum(_made_bytes(made, w) for w in (v, *sources))

    def cost(device: str) -> tuple[float, float, float]:
        modes = made.it.space.options[made.it.unit[v]]
        quickest_s = min(m.estimate.latency_s for m in modes if m.device == device)
        return loads.cost_bytes(device, made_bytes, messages), loads.kept[device], quickest_s

    device = min(near or able, key=cost)
    for w in (*sources, v):
        places = list(made.places(w))
        here = [p for p in places if made.mode(made.it.unit[w], p[0]).device == device]
        if not places:
            return False
        place = min(here or places, key=lambda p: (made.at(w, p)[1], p))
        there = made.mode(made.it.unit[w], place[0]).device
        loads.place(there, _made_bytes(made, w), _messages(made, w))
        made.put(w, place)
    return True


def _devices(made: Schedule, v: int) -> list[str]:
    """Return the devices that can run a firing."""
    u = made.it.unit[v]
    return list(dict.fromkeys(made.mode(u, o).device for o, _ in made.places(v)))


def _made_bytes(made: Schedule, v: int) -> float:
    """Return the bytes of a firing's outputs."""
    return sum(made.largest[task] for task in {task for _, _, task in made.it.after[v]})


def _messages(made: Schedule, v: int, absent: Sequence[int] = ()) -> list[Message]:
    """Return the messages that a firing reads from others; firings of `absent` are not placed
    yet."""
    it, messages = made.it, list[Message]()
    for s, _, task in it.before[v]:
        if s not in absent:
            place = made.taken[it.unit[s]]
            assert place is not None
            device = made.mode(it.unit[s], place[0]).device
            array = task, it.space.expansion.nodes[s][1]
            messages.append((array, device, made.largest[task]))
    return messages
