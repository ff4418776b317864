"""Remote lane groups, and the arrays that must be sent between them and the local host.

A remote lane group is a set of lanes of another host that share arrays. It has copies of the arrays
that its tasks use, and counts of all tasks. A message brings the counts of some tasks to the other
host. For each new firing, it brings the arrays that the firing wrote and a task on the other host
uses. It brings only the slot of that firing and, for a split task, only the rows of the replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pearl.runtime.protocol import channels
from pearl.runtime.protocol.control_block import WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule, Firing
from pearl_devices import Buffers
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.record import matches


@dataclass(frozen=True)
class MessageArray:
    """An array that is sent with the firings of a task.

    name: name among the arrays of the run, without slot and group.
    slotted: whether the array has the slots of the task's message.
    grouped: whether every group of environments has such an array.
    rows: index of the part that is sent; None: the whole array.
    """

    name: str
    slotted: bool
    grouped: bool
    rows: tuple[slice, ...] | None


class TaskMessages:
    """The firings of a task as they are sent to the tasks `readers`.

    firings_per_iteration: number of firings of the task in an iteration.
    parts: arrays that are sent with a firing.
    """

    def __init__(self, protocol: ExecutionSchedule, task: str, readers: Iterable[str]) -> None:
        self.task, self._protocol = task, protocol
        self.firings_per_iteration = protocol.graph.repetition[task]
        lane = next(k for k in protocol.lanes if task in k.tasks)
        self._firings = [f for f in lane.firings if task in f.tasks]
        others = list(readers)
        self.parts = tuple(
            _part(protocol, task, name, others)
            for name in _written(protocol, task)
            if any(_crosses(protocol, task, name, reader) for reader in others)
        )
        copies = protocol.graph.task(task).copies and not protocol.is_single_lane
        self._version = channels.version_array_name(task) if copies else None

    def _firing(self, number: int) -> tuple[Firing, int] | None:
        """Return entry and round of firing `number`; None unless it is the last of a fused call."""
        iteration, index = divmod(number, self.firings_per_iteration)
        f = self._firings[0]
        if len(f.tasks) > 1:
            return (f, iteration - f.offset) if index == self.firings_per_iteration - 1 else None
        f = self._firings[index]
        return f, iteration - f.offset

    def views(self, arrays: Buffers, first: int, end: int) -> list[Any]:
        """Return the arrays that are sent with firings `first` … `end` − 1, in their order."""
        found = []
        for number in range(first, end):
            at = self._firing(number)
            if at is None:
                continue
            firing, turn = at
            slot = firing.slots[self.task].at(turn) if self.task in firing.slots else 0
            for part in self.parts:
                name = f"{part.name}@{slot}" if part.slotted and slot else part.name
                group = firing.group.at(turn)
                array = arrays[f"{name}@{group}" if part.grouped and group else name]
                found.append(array[part.rows] if part.rows else array)
        return found

    def required_counts(self, number: int) -> dict[str, int]:
        """Return the counts that the lane of the task waited for before firing `number`."""
        at = self._firing(number)
        if at is None:
            return {}
        firing, turn = at
        return {w.task: w.base + turn * w.step for w in firing.waits}

    def stamp_versions(
        self, arrays: Buffers, first: int, end: int, span: WorkRange, warm: bool
    ) -> None:
        """Write the versions of the parameters that firings `first` … `end` − 1 have brought."""
        if self._version is None or self._version not in arrays:
            return
        for number in range(first, end):
            at = self._firing(number)
            if at is None:
                continue
            firing, turn = at
            if firing.work_iteration(turn) >= max(
                span.learning_starts if warm else 0, span.drained_until
            ):
                slot = firing.slots[self.task].at(turn) if self.task in firing.slots else 0
                arrays[self._version][slot] = number + 1


def _arrays(protocol: ExecutionSchedule, task: str) -> Iterable[str]:
    kernel = protocol.graph.task(task).kernel
    return kind_of(kernel).arrays(kernel)


def _written(protocol: ExecutionSchedule, task: str) -> list[str]:
    kernel = protocol.graph.task(task).kernel
    kind = kind_of(kernel)
    names = kind.arrays(kernel)
    return [n for n in names if n in kind.written(names)]


def _part(
    protocol: ExecutionSchedule, task: str, name: str, readers: Iterable[str]
) -> MessageArray:
    of = protocol.graph.task(task)
    slotted = channels.is_sent(name, protocol, task) if task in protocol.sent else False
    grouped = matches(name, kind_of(of.kernel).per_group)
    own, rows = channels.array_name(protocol, task, name), _rows(protocol, task, name)
    if rows is not None:
        return MessageArray(own, slotted, grouped, (slice(*rows),))
    return MessageArray(own, slotted, grouped, _rows_read(protocol, task, name, readers))


def _rows_read(
    protocol: ExecutionSchedule, writer: str, name: str, readers: Iterable[str]
) -> tuple[slice, ...] | None:
    """Return an index that covers the rows of an array that some tasks read (`KernelKind.rows`);
    None: all rows."""
    found: list[tuple[int, int, int]] = []
    for reader in readers:
        if _crosses(protocol, writer, name, reader):
            kernel = protocol.graph.task(reader).kernel
            part = kind_of(kernel).rows(kernel).get(name)
            if part is None:
                return None
            found.append(part)
    axes = {axis for axis, _, _ in found}
    if len(axes) != 1:
        return None
    rows = slice(min(first for _, first, _ in found), max(end for _, _, end in found))
    return (*(slice(None) for _ in range(axes.pop())), rows)


def _rows(protocol: ExecutionSchedule, task: str, name: str) -> tuple[int, int] | None:
    """Return the first row and the end of the rows that a replica of a task sees; None: all."""
    of = protocol.graph.task(task)
    if of.part is None or channels.array_name(protocol, task, name) != name:
        return None
    mine, whole = of.part.shares[of.part.replica], sum(of.part.shares)
    shape = kind_of(of.kernel).arrays(of.kernel)[name][0]
    first = sum(of.part.shares[: of.part.replica])
    return (first, first + mine) if shape and shape[0] == mine != whole else None


def _meets(protocol: ExecutionSchedule, writer: str, name: str, reader: str) -> bool:
    """Whether a task uses rows of an array that another task writes."""
    own = channels.array_name(protocol, writer, name)
    for other in _arrays(protocol, reader):
        if channels.array_name(protocol, reader, other) == own:
            a, b = _rows(protocol, writer, name), _rows(protocol, reader, other)
            return a is None or b is None or (a[0] < b[1] and b[0] < a[1])
    return False


def _crosses(protocol: ExecutionSchedule, writer: str, name: str, reader: str) -> bool:
    """Whether a task gets an array from a task that writes it. It does not if an edge brings the
    array from another task, which writes it later."""
    if not _meets(protocol, writer, name, reader):
        return False
    carrying = {e.src for e in protocol.graph.edges if e.dst == reader and e.bytes}
    own = channels.array_name(protocol, writer, name)
    return writer in carrying or not any(
        own in {channels.array_name(protocol, other, n) for n in _written(protocol, other)}
        for other in carrying
    )


def _sends_to(protocol: ExecutionSchedule, writer: str, reader: str) -> bool:
    """Whether a task gets any array from another task."""
    return any(_crosses(protocol, writer, name, reader) for name in _written(protocol, writer))


@dataclass(frozen=True)
class LaneGroup:
    """Lanes of another host that share arrays.

    number: number of the group, from 0.
    host: name of the host.
    lanes: numbers of the lanes in the schedule.
    tasks: tasks of the lanes.
    """

    number: int
    host: str
    lanes: tuple[int, ...]
    tasks: tuple[str, ...]

    def inbound_tasks(self, protocol: ExecutionSchedule) -> tuple[str, ...]:
        """Return the tasks of other lanes whose firings the group needs."""
        mine = set(self.tasks)
        firings = [f for n in self.lanes for f in protocol.lanes[n].firings]
        waited = {w.task for f in firings for w in f.waits} - mine
        waited |= {
            t.name
            for t in protocol.graph.tasks
            if t.name not in mine and any(_sends_to(protocol, t.name, m) for m in mine)
        }
        return tuple(t.name for t in protocol.graph.tasks if t.name in waited)

    def outbound_tasks(self, protocol: ExecutionSchedule) -> tuple[str, ...]:
        """Return the tasks of the group whose firings other lanes need."""
        mine = set(self.tasks)
        others = [k for n, k in enumerate(protocol.lanes) if n not in self.lanes]
        waited = {w.task for k in others for f in k.firings for w in f.waits} & mine
        waited |= {
            t for t in mine if any(_sends_to(protocol, t, o) for k in others for o in k.tasks)
        }
        return tuple(t for t in self.tasks if t in waited)

    def arrays(self, protocol: ExecutionSchedule, arrays: Buffers) -> list[str]:
        """Return the names of the arrays that the group's tasks use, with those of all slots."""
        touched = {
            channels.array_name(protocol, t, n) for t in self.tasks for n in _arrays(protocol, t)
        }
        kept = {t: protocol.graph.task(t).copies for t in protocol.graph.repetition}
        versions = {channels.version_array_name(t) for t, copies in kept.items() if copies}
        return [n for n in arrays if n.partition("@")[0] in touched or n in versions]

    def state(self, protocol: ExecutionSchedule, arrays: Buffers) -> list[Any]:
        """Return the arrays that the group's tasks write: only their rows, if replicas share the
        array."""
        rows: dict[str, set[tuple[int, int] | None]] = {}
        for task in self.tasks:
            rows.setdefault(channels.version_array_name(task), set()).add(None)
            for name in _written(protocol, task):
                own = channels.array_name(protocol, task, name)
                rows.setdefault(own, set()).add(_rows(protocol, task, name))
        return [
            arrays[name] if part is None else arrays[name][slice(*part)]
            for name in arrays
            for part in _wholly(rows.get(name, rows.get(name.partition("@")[0], set())))
        ]


def _wholly(rows: set[tuple[int, int] | None]) -> list[tuple[int, int] | None]:
    parts = sorted(r for r in rows if r)
    return [None] if None in rows else [*parts]


def lane_groups(protocol: ExecutionSchedule, host_of: Mapping[str, str]) -> tuple[LaneGroup, ...]:
    """Return the remote lane groups of a plan. Lanes of one host are in one group if they share
    arrays that no message carries.

    host_of: device → the name of its host.
    """
    devices = {k.lane: k.device for k in protocol.plan.lanes}
    hosts = [host_of[devices[k.name]] for k in protocol.lanes]
    home = hosts[protocol.home]
    if set(hosts) == {home}:
        return ()
    import networkx as nx  # on use: plans on one host need none

    sharing = nx.Graph()
    sharing.add_nodes_from(n for n, host in enumerate(hosts) if host != home)
    for a in sharing:
        for b in sharing:
            if a < b and hosts[a] == hosts[b] and _share(protocol, a, b):
                sharing.add_edge(a, b)
    found = sorted(tuple(sorted(c)) for c in nx.connected_components(sharing))
    return tuple(
        LaneGroup(
            i, hosts[lanes[0]], lanes, tuple(t for n in lanes for t in protocol.lanes[n].tasks)
        )
        for i, lanes in enumerate(found)
    )


def _share(protocol: ExecutionSchedule, a: int, b: int) -> bool:
    """Whether two lanes share an array that no edge carries from one to the other."""
    carried = {(e.src, e.dst) for e in protocol.graph.edges if e.bytes}
    return any(
        _sends_to(protocol, writer, reader) and (writer, reader) not in carried
        for one, other in ((a, b), (b, a))
        for writer in protocol.lanes[one].tasks
        for reader in protocol.lanes[other].tasks
    )
