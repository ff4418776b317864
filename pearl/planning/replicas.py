"""Replicas: an acting task runs as several copies, each with a share of the environments.

A choice of replicas is a separate graph. A split task has one copy per share, named `task#0`,
`task#1`, …. Copy i of one split task communicates with copy i of another, and every copy with each
whole task. A copy produces its share of the bytes. A whole task sends its whole output to every
device with a copy. A state that a split task writes is divided among the copies; a state that the
copies only read exists once per copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Replica, Task, TaskGraph
from pearl_devices import Kernel
from pearl_devices.kernels import kernel, kind_of

V = TypeVar("V")

GRAINS = 8
"""Shares are counted in eighths of the environments, and in whole environments (assumed: finer
shares gain less than their search costs)."""


@dataclass(frozen=True)
class ReplicaSplit:
    """The tasks that run as copies, and the environments of each copy, largest first. No tasks:
    none is split.

    shares: environments of each replica.
    """

    tasks: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()


def split_of(graph: TaskGraph) -> ReplicaSplit:
    """Return the choice of replicas from which a graph was made."""
    parts = [t.part for t in graph.tasks if t.part]
    return ReplicaSplit(
        tuple(dict.fromkeys(p.task for p in parts)), parts[0].shares if parts else ()
    )


def share_choices(environments: int, most: int) -> list[tuple[int, ...]]:
    """Return the ways to divide environments among 2 to `most` copies, largest share first: every
    multiple of an eighth of them (of 1 up to 8), and as evenly as possible."""
    unit = -(-environments // GRAINS)
    choices: dict[tuple[int, ...], None] = {}
    for copies in range(2, min(most, environments) + 1):
        even, rest = divmod(environments, copies)
        choices[(even + 1,) * rest + (even,) * (copies - rest)] = None
        for counted in _partitions(environments // unit, copies, environments):
            shares = [n * unit for n in counted]
            shares[0] += environments % unit
            choices[tuple(shares)] = None
    return list(choices)


def _partitions(total: int, parts: int, most: int) -> Iterator[tuple[int, ...]]:
    """Ways to write `total` as `parts` positive numbers of at most `most`, in falling order."""
    if parts == 1:
        if 0 < total <= most:
            yield (total,)
        return
    for first in range(min(total - parts + 1, most), 0, -1):
        for rest in _partitions(total - first, parts - 1, first):
            yield (first, *rest)


def enumerate_splits(graph: TaskGraph, limits: Limits) -> list[ReplicaSplit]:
    """Return every choice of replicas within the limits, first the one without splits. Tasks that
    are split together have the same shares.

    Raises:
        SpecError: a limit above 1 is on a task that cannot be split; the text lists the others.
    """
    wanted = {t: n for t, n in limits.replicas.items() if n > 1}
    able = {t.name: t.environments for t in graph.tasks if t.environments}
    problems = [
        f"limits.replicas: task {t!r} cannot be split into replicas; tasks that can be split are "
        f"{list(able) or 'none'}"
        for t in wanted
        if t not in able
    ]
    if problems:
        raise SpecError(*problems)
    choices = [ReplicaSplit()]
    for size in range(1, len(wanted) + 1):
        for tasks in itertools.combinations(wanted, size):
            sizes = {able[t] for t in tasks}
            if len(sizes) == 1:
                most = min(wanted[t] for t in tasks)
                choices += [
                    ReplicaSplit(tasks, shares) for shares in share_choices(sizes.pop(), most)
                ]
    return choices


def copy_name(task: str, replica: int) -> str:
    """Name of one copy of a split task, or of its state."""
    return f"{task}#{replica}"


def resize_kernel(of: Kernel, share: int, environments: int) -> Kernel:
    """Return a kernel for `share` of its environments: counted again if its kind is known, else in
    proportion."""
    if kind_of(of).structure != "unknown" and "envs" in of.dims:
        dims = {**of.dims, "envs": share}
        return kernel(of.kind, dims, program=of.program, args=of.args, modules=of.modules)
    part = share / environments
    scaled = ("flops", "bytes_in", "bytes_out", "resident_bytes")
    return replace(of, **{name: getattr(of, name) * part for name in scaled})


def split_graph(graph: TaskGraph, split: ReplicaSplit) -> TaskGraph:
    """Return the graph in which the tasks of `split` run as copies, without fusions of split
    tasks."""
    if not split.tasks:
        return graph
    copies = range(len(split.shares))
    whole = sum(split.shares)
    part = [share / whole for share in split.shares]
    torn = {
        s: any(s in t.writes for t in graph.tasks if t.name in split.tasks)
        for s in graph.states
        if any(s in t.reads + t.writes for t in graph.tasks if t.name in split.tasks)
    }
    states: dict[str, float] = {}
    for s, size in graph.states.items():
        if s in torn:
            states |= {copy_name(s, i): size * (part[i] if torn[s] else 1.0) for i in copies}
        else:
            states[s] = size
    grouped = {
        g: all(t.name in split.tasks for t in graph.tasks if t.group == g)
        for g in {t.group for t in graph.tasks if t.group}
    }

    def touched(names: tuple[str, ...], replica: int | None) -> tuple[str, ...]:
        which = copies if replica is None else (replica,)
        return tuple(
            n for s in names for n in ([copy_name(s, i) for i in which] if s in torn else [s])
        )

    tasks: list[Task] = []
    for t in graph.tasks:
        if t.name not in split.tasks:
            tasks.append(replace(t, reads=touched(t.reads, None), writes=touched(t.writes, None)))
            continue
        for i in copies:
            group = copy_name(t.group, i) if t.group and grouped[t.group] else t.group
            tasks.append(
                replace(
                    t,
                    name=copy_name(t.name, i),
                    kernel=resize_kernel(t.kernel, split.shares[i], whole),
                    reads=touched(t.reads, i),
                    writes=touched(t.writes, i),
                    group=group,
                    part=Replica(t.name, i, split.shares),
                )
            )
    edges: list[Edge] = []
    for e in graph.edges:
        if e.src in split.tasks:
            for i in copies:
                dst = copy_name(e.dst, i) if e.dst in split.tasks else e.dst
                edges.append(replace(e, src=copy_name(e.src, i), dst=dst, bytes=e.bytes * part[i]))
        elif e.dst in split.tasks:
            edges += [replace(e, dst=copy_name(e.dst, i)) for i in copies]
        else:
            edges.append(e)
    fusions = tuple(f for f in graph.fusions if not set(f.tasks) & set(split.tasks))
    return replace(graph, tasks=tuple(tasks), edges=tuple(edges), states=states, fusions=fusions)


def split_limits(limits: Limits, split: ReplicaSplit) -> Limits:
    """Return the limits of the copies: a limit of a task applies to each of its copies. Of two
    tasks that must be together and are both split, copy i is with copy i."""
    if not split.tasks:
        return limits
    copies = range(len(split.shares))

    def names(task: str) -> list[str]:
        return [copy_name(task, i) for i in copies] if task in split.tasks else [task]

    def each(by_task: Mapping[str, V]) -> dict[str, V]:
        return {n: v for t, v in by_task.items() for n in names(t)}

    together: list[tuple[str, str]] = []
    for a, b in limits.together:
        if a in split.tasks and b in split.tasks:
            together += zip(names(a), names(b), strict=True)
        else:
            together += itertools.product(names(a), names(b))
    return replace(
        limits,
        devices=each(limits.devices),
        variants=each(limits.variants),
        pin=each(limits.pin),
        together=tuple(together),
        apart=tuple(p for a, b in limits.apart for p in itertools.product(names(a), names(b))),
        replicas={},
    )
