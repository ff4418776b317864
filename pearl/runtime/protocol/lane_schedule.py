"""Schedule of each lane of a plan: its firings in order, the counts that each firing waits for, and
the slots of the messages that it reads and writes.

`docs/protocol.md` derives the counts and slots. Firing n of a task is its n-th since the
start, empty ones included. Firing n does work number n − delay. The delay is the slack of the edges
without initial tokens before the task (prefetch, deferred priorities, insertion lag). So many
firings are empty at the start, and as many more follow at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pearl.errors import SpecError
from pearl.graph.parallel_edges import EdgeKey, key_edges
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.plans import Entry, Plan
from pearl.planning.replicas import split_of
from pearl_devices.kernels import kind_of


@dataclass(frozen=True)
class Wait:
    """A wait for a task's count.

    task: the task.
    base, step: the count must be at least base + round · step.
    """

    task: str
    base: int
    step: int


@dataclass(frozen=True)
class Slots:
    """The slot of a message that a call touches: (first + round · step) modulo count.

    count: number of slots of the message.
    first: slot of round 0.
    step: slots by which a round advances.
    """

    count: int
    first: int
    step: int

    def at(self, number: int) -> int:
        return (self.first + number * self.step) % self.count


@dataclass(frozen=True)
class Firing:
    """One call of a lane's round: a task's firing, or all firings of a fused unit.

    tasks: the task, or the members of a fused unit.
    offset: iterations that the call runs ahead.
    index: number of the firing in the iteration.
    waits: waits for tasks of other lanes and for asynchronous tasks.
    done: task → count after the call in round 0; it grows by the task's firings an iteration.
    slots: task that sends → slot that the call uses.
    versions_due: task that sends → version that the call would use without slack.
    group: number of the group of environments.
    asynchronous: whether the call returns before the firing is complete.
    delay: firings by which the work of the call lags.
    per_round: firings of the task in an iteration.
    """

    tasks: tuple[str, ...]
    offset: int
    index: int
    waits: tuple[Wait, ...]
    done: Mapping[str, int]
    slots: Mapping[str, Slots]
    versions_due: Mapping[str, Slots]
    group: Slots
    asynchronous: bool
    delay: int
    per_round: int

    def work_iteration(self, number: int) -> int:
        """Return the iteration whose work the call of round `number` does."""
        return (
            ((number + self.offset) * self.per_round) + self.index - self.delay
        ) // self.per_round


@dataclass(frozen=True)
class LaneSchedule:
    """The round of a lane: the firings that it repeats."""

    name: str
    firings: tuple[Firing, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t for f in self.firings for t in f.tasks))


class ExecutionSchedule:
    """The schedules of all lanes of a plan on a graph.

    lanes: in the plan's order, links left out.
    home: number of the lane that updates.
    drain: iterations after the last in which delayed work is done.

    Raises:
        SpecError: the plan has slack or fused calls that the lanes cannot run.
    """

    def __init__(self, plan: Plan, graph: TaskGraph) -> None:
        """plan, graph: with each copy as a task (`unfold_replicas`)."""
        self.plan, self.split = plan, split_of(graph)
        channels = key_edges(self.plan.edges)
        graph = graph.with_slack({key: c.slack for key, c in channels.items()})
        strictest = _strictest(graph)
        self.graph = replace(graph, edges=tuple(strictest.values()))
        self.capacity = {k[:2]: channels[k].capacity for k in strictest if k in channels}
        self.lane_of = {t.task: t.lane for t in self.plan.tasks}
        self.delay = _delays(self.graph)
        self.groups = _groups(self.graph)
        self.asynchronous = {
            t.task for t in self.plan.tasks if t.occupancy_s < (1 - 1e-9) * t.seconds
        } - {t for p in self.plan.tasks if p.fused_with for t in (p.task, *p.fused_with)}
        self.unit = {
            t.task: tuple(n.name for n in self.graph.tasks if n.name in (t.task, *t.fused_with))
            for t in self.plan.tasks
        }
        lanes = [k for k in self.plan.lanes if k.width > 0]
        q = self.graph.repetition
        self.drain = max(-(-d // q[t]) for t, d in self.delay.items())
        self.slots = self._counts()
        self.lanes = tuple(LaneSchedule(k.lane, tuple(self._round(k.lane, k.order))) for k in lanes)
        updating = [i for i, k in enumerate(self.lanes) if "learn" in k.tasks]
        self.home = updating[0] if updating else 0

    @property
    def is_single_lane(self) -> bool:
        """Whether one lane does everything in order: no waits, no slots, no delays."""
        return (
            len(self.lanes) == 1
            and not self.asynchronous
            and not any(self.delay.values())
            and all(n == 1 for n in (*self.slots.values(), *self.groups.values()))
        )

    @cached_property
    def sent(self) -> dict[str, tuple[str, ...]]:
        """Task that sends a message → the arrays of that message."""
        found = {t.name: kind_of(t.kernel).sent(t.kernel) for t in self.graph.tasks}
        return {task: arrays for task, arrays in found.items() if arrays}

    @cached_property
    def _senders(self) -> dict[str, tuple[str, ...]]:
        """Task that sends a message → the tasks that read it."""
        return {
            sender: tuple(t.name for t in self.graph.tasks if _reads(self.graph, sender, t.name))
            for sender in self.sent
        }

    def _edge(self, src: str, dst: str) -> Edge:
        return next(e for e in self.graph.edges if (e.src, e.dst) == (src, dst))

    def _read(self, sender: str, reader: str) -> tuple[int, int, int]:
        """(p, c, m): work w of the reader reads the result of work ⌈((w + 1)c − m)/p⌉ − 1 of the
        sender; −1 means the result from before the start."""
        e = self._edge(sender, reader)
        tokens = e.tokens if e.tokens_seq else 0
        return e.production, e.consumption, tokens

    def _counts(self) -> dict[str, int]:
        """Map each task that sends a message to the slots of that message.

        Replicas of a task write rows of the same arrays, and a task that is not split reads the
        rows of all replicas at once. So replicas have equally many slots, whatever the capacities
        of their channels are.
        """
        own = {t: self._count(t) for t in self._senders}
        most: dict[str, int] = {}
        for task, count in own.items():
            origin = self.graph.origin(task)[0]
            most[origin] = max(count, most.get(origin, 1))
        return {t: most[self.graph.origin(t)[0]] for t in own}

    def _count(self, sender: str) -> int:
        """Return the slots of a message: one, and one for each message that may be under way."""
        one = len([k for k in self.plan.lanes if k.width > 0]) == 1
        if one and not (
            self.asynchronous
            or any(e.slack for e in self.graph.edges)
            or any(g > 1 for g in self.groups.values())
        ):
            return 1
        count = 1
        back = {(e.src, e.dst) for e in self.graph.edges}
        for reader in self._senders[sender]:
            e = self._edge(sender, reader)
            if self.unit[reader] == self.unit[sender]:
                continue
            if (reader, sender) in back:
                reverse = self._edge(reader, sender)
                total = e.tokens + -(-reverse.tokens * e.consumption // reverse.production)
                count = max(count, -(-total // e.production))
            else:
                room = self.capacity.get((sender, reader))
                count = max(count, -(-(room or 1) // e.production))
            lag = self.delay[reader] - self.delay[sender]
            if not e.tokens_seq and e.production == e.consumption:
                count = max(count, 1 + lag)
        return count

    def _round(self, lane: str, order: tuple[Entry, ...]) -> Iterable[Firing]:
        seen: dict[str, int] = {}
        begun: set[tuple[str, ...]] = set()
        for entry in order:
            task, offset = entry.task, entry.offset
            index = seen.get(task, 0)
            seen[task] = index + 1
            unit = self.unit[task]
            if len(unit) > 1:
                if unit in begun:
                    continue
                begun.add(unit)
                yield self._firing(lane, unit, offset, None)
            else:
                yield self._firing(lane, unit, offset, index)

    def _firing(self, lane: str, unit: tuple[str, ...], offset: int, index: int | None) -> Firing:
        """index: None for a fused unit, which does all firings of its tasks in an iteration."""
        q = self.graph.repetition
        waits: dict[str, Wait] = {}
        done: dict[str, int] = {}
        slots: dict[str, Slots] = {}
        due: dict[str, Slots] = {}
        delays = {self.delay[t] for t in unit}
        if index is None and delays != {0}:
            raise SpecError(
                f"plan: {'+'.join(unit)} run as one call, and slack asks some of them to lag "
                "behind; leave that slack at 0"
            )
        for task in unit:
            numbers = range(q[task]) if index is None else [index]
            done[task] = offset * q[task] + numbers[-1] + 1
            for n in numbers:
                n += offset * q[task]
                for wait in self._needs(lane, unit, task, n):
                    old = waits.get(wait.task)
                    if old is None or wait.base > old.base:
                        waits[wait.task] = wait
                for sender, at in self._touched(unit, task, n).items():
                    if index is None and sender in slots and slots[sender] != at:
                        raise SpecError(
                            f"plan: {'+'.join(unit)} run as one call, but its firings use several "
                            f"versions of what {sender} sends; leave slack on that edge at 0"
                        )
                    slots[sender] = at
                due |= self._due(task, n)
        first, at_first = unit[0], offset * q[unit[0]] + (index or 0)
        return Firing(
            unit,
            offset,
            0 if index is None else index,
            tuple(waits.values()),
            done,
            slots,
            due,
            Slots(self.groups.get(first, 1), at_first, q[first]),
            first in self.asynchronous,
            max(delays),
            1 if index is None else q[first],
        )

    def _needs(self, lane: str, unit: tuple[str, ...], task: str, n: int) -> Iterable[Wait]:
        """Yield the waits of firing n of a task in round 0."""
        q = self.graph.repetition
        for e in self.graph.edges:
            if e.dst == task and e.src not in unit and self._apart(e.src, lane):
                need = -(-(e.tokens_needed(n, q[task]) - e.tokens) // e.production)
                yield Wait(e.src, need, q[e.src])
        if task in self._senders:
            work = n - self.delay[task]
            for reader in self._senders[task]:
                if reader in unit or not self._apart(reader, lane):
                    continue
                p, c, m = self._read(task, reader)
                read = ((work - self.slots[task] + 1) * p + m) // c
                yield Wait(reader, read + self.delay[reader], q[reader])

    def _apart(self, task: str, lane: str) -> bool:
        """Whether a lane must read a task's count before it relies on the task's firings."""
        return self.lane_of[task] != lane or task in self.asynchronous

    def _due(self, task: str, n: int) -> dict[str, Slots]:
        """Return the versions of parameters that firing n in round 0 would read without slack."""
        found: dict[str, Slots] = {}
        for e in self.graph.edges:
            if e.dst == task and self.graph.task(e.src).copies:
                at = -(-((n + 1) * e.consumption - e.tokens_seq) // e.production) - 1
                found[e.src] = Slots(1, at, self.graph.repetition[e.src])
        return found

    def _touched(self, unit: tuple[str, ...], task: str, n: int) -> dict[str, Slots]:
        """Map each sender, whose message has several slots, to the slot that firing n of a task
        uses in round 0."""
        q = self.graph.repetition
        work = n - self.delay[task]
        found: dict[str, Slots] = {}
        if task in self._senders:
            found[task] = Slots(self.slots[task], work, q[task])
        for sender, readers in self._senders.items():
            if task in readers and sender not in unit:
                p, c, m = self._read(sender, task)
                at = -(-((work + 1) * c - m) // p) - 1
                found[sender] = Slots(self.slots[sender], at, q[sender])
        return {sender: at for sender, at in found.items() if at.count > 1}


def _strictest(graph: TaskGraph) -> dict[EdgeKey, Edge]:
    """Return the edges; of parallel edges, only the edge with the fewest tokens. A task that waits
    for this edge waits for the others too."""
    edges = key_edges(graph.edges)
    least: dict[tuple[str, str], EdgeKey] = {}
    for key, e in edges.items():
        other = edges[least.setdefault(key[:2], key)]
        if e.tokens * other.production < other.tokens * e.production:
            least[key[:2]] = key
    return {key: edges[key] for key in least.values()}


def _groups(graph: TaskGraph) -> dict[str, int]:
    """Map each acting task to the number of groups of its environments. Each firing steps the next
    group; the sequential program has one token a group on the edge from step to act."""
    found: dict[str, int] = {}
    for e in graph.edges:
        ends = [kind_of(graph.task(n).kernel).structure for n in (e.src, e.dst)]
        if ends == ["environment", "network"] and e.tokens_seq > 1:
            found |= {e.src: e.tokens_seq, e.dst: e.tokens_seq}
    return found


def _delays(graph: TaskGraph) -> dict[str, int]:
    """Map each task to the firings by which its work lags behind its firings."""
    delay = dict.fromkeys((t.name for t in graph.tasks), 0)
    late = [e for e in graph.edges if e.slack and not e.tokens_seq]
    for e in late:
        if not e.limit or not _reads(graph, e.src, e.dst):
            raise SpecError(
                f"plan: slack {e.slack} on {e.src} → {e.dst} would be empty firings of {e.dst}, "
                "and this version cannot delay its work; leave it at 0"
            )
        if e.production != e.consumption:
            raise SpecError(
                f"plan: slack on {e.src} → {e.dst}, whose rates are {e.production} → "
                f"{e.consumption}, cannot be run; leave it at 0"
            )
    for _ in graph.tasks:
        for e in graph.edges:
            same = e.production == e.consumption and not e.tokens_seq and e.src != e.dst
            if same and _reads(graph, e.src, e.dst):
                delay[e.dst] = max(delay[e.dst], delay[e.src] + e.slack)
    return delay


def _reads(graph: TaskGraph, sender: str, reader: str) -> bool:
    """Whether an edge leads from a task to a task that reads the message of the first."""
    if sender == reader or not any((e.src, e.dst) == (sender, reader) for e in graph.edges):
        return False
    src, dst = graph.task(sender).kernel, graph.task(reader).kernel
    return not kind_of(dst).arrays(dst).keys().isdisjoint(kind_of(src).sent(src))
