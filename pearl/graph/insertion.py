"""User-defined tasks in a graph: between two tasks of an algorithm, on the arrays that one
sends."""

from __future__ import annotations

from dataclasses import replace

from pearl.errors import SpecError
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl_devices import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.record import size_bytes

GROUPS = (
    "limits.env_groups is {}, each group has its own observations, and the task would get only the "
    "observations of the first group; leave env_groups at 1"
)


def inserted(graph: TaskGraph, task: Task, *, after: str, before: str) -> TaskGraph:
    """Return `graph` with `task` on its edge from `after` to `before`. The task fires as often as
    they do, after `after` and before `before`, and may change the arrays sent between them.

    Every other task that `after` has an edge to, and that reads arrays which `task` writes, waits
    for the task too. Initial tokens stay in front of the readers: between step and act
    they are the first observations, which pass `KernelKind.in_evaluation` before the first firing.

    States that `task` names and `graph` lacks hold the arrays that only its kernel touches. Fused
    calls of both tasks are removed, because they leave no room between the two.

    Raises:
        SpecError: there is no such edge, its ends fire at different rates, its initial tokens would
            not pass the task, or a task already there has no defined order with this one.
    """
    edge = next((e for e in graph.edges if (e.src, e.dst) == (after, before) and e.bytes), None)
    obstacle = (
        _obstacle(graph, task, edge) if edge else f"no edge carries data from {after} to {before}"
    )
    if edge is None or obstacle:
        places = [e for e in graph.edges if e.is_channel and not _obstacle(graph, task, e)]
        named = ", ".join(dict.fromkeys(f"{e.src} → {e.dst}" for e in places))
        raise SpecError(
            f"graph {graph.name!r}: {task.name} cannot be put between {after} and {before}: "
            f"{obstacle}; "
            + (
                f"one firing of the first must send to one of the second, as in {named}"
                if named
                else "no other place fits either"
            )
        )
    kind, names = kind_of(task.kernel), [t.name for t in graph.tasks]
    arrays = kind.arrays(task.kernel)
    read = {n for t in graph.tasks for n in _arrays(t.kernel)}
    own = float(sum(size_bytes(spec) for name, spec in arrays.items() if name not in read))
    place = names.index(after) + 1 if edge.tokens_seq else names.index(before)
    states = dict.fromkeys((s for s in task.writes if s not in graph.states), own)
    read_too = [
        replace(e, src=task.name, bytes=bytes_read, slack=0, limit=None)
        for e in graph.edges
        if e.src == after and e.dst not in (after, before)
        if (bytes_read := _bytes_between(task, graph.task(e.dst)))
    ]
    cut = [{after, e.dst} for e in (edge, *read_too)]
    return replace(
        graph,
        tasks=(*graph.tasks[:place], task, *graph.tasks[place:]),
        edges=(
            *graph.edges,
            Edge(after, task.name, bytes=edge.bytes),
            Edge(
                task.name,
                before,
                tokens_seq=edge.tokens_seq,
                bytes=float(sum(size_bytes(arrays[n]) for n in kind.written(arrays) if n in read)),
            ),
            *{e.dst: e for e in read_too}.values(),
            Edge(task.name, task.name, tokens_seq=1),
        ),
        states={**graph.states, **states},
        fusions=tuple(f for f in graph.fusions if not any(ends <= set(f.tasks) for ends in cut)),
    )


def _arrays(kernel: Kernel) -> set[str]:
    return set(kind_of(kernel).arrays(kernel))


def _bytes_between(task: Task, reader: Task) -> float:
    """Bytes of the arrays that one task writes and another reads."""
    kind, read = kind_of(task.kernel), _arrays(reader.kernel)
    arrays = kind.arrays(task.kernel)
    return float(sum(size_bytes(arrays[n]) for n in kind.written(arrays) if n in read))


def _obstacle(graph: TaskGraph, task: Task, edge: Edge) -> str:
    """Return why a task cannot be put on an edge; empty if it can."""
    if edge.production != edge.consumption:
        return f"the edge has the rates {edge.production} → {edge.consumption}"
    ends = [kind_of(graph.task(n).kernel).structure for n in (edge.src, edge.dst)]
    carries_observations = ends[0] in ("environment", "own") and ends[1] in ("network", "own")
    if edge.tokens_seq > 1 and carries_observations:
        return GROUPS.format(edge.tokens_seq)
    if edge.tokens_seq and not carries_observations:
        tokens = "an initial token" if edge.tokens_seq == 1 else f"{edge.tokens_seq} initial tokens"
        return (
            f"the edge has {tokens}: {edge.dst} begins with data from before the first firing of "
            f"{edge.src}, which would not pass the task"
        )
    return _rival(graph, task, edge.src, edge.dst) or _apart(graph, task)


def _apart(graph: TaskGraph, task: Task) -> str:
    """Return why a task must not use arrays that each group of environments has separately."""
    groups = [
        e.tokens_seq
        for e in graph.edges
        if kind_of(graph.task(e.src).kernel).structure == "environment"
        and kind_of(graph.task(e.dst).kernel).structure == "network"
    ]
    if max(groups, default=1) > 1 and any(n.startswith("env.") for n in _arrays(task.kernel)):
        return GROUPS.format(max(groups))
    return ""


def _rival(graph: TaskGraph, task: Task, after: str, before: str) -> str:
    """Return why a task must not be between the same two tasks as another; empty if it may."""
    ends = {(e.src, e.dst) for e in graph.edges}
    for other in graph.tasks:
        own = kind_of(other.kernel).structure == "own" and other.name not in (after, before)
        if not own or not {(after, other.name), (other.name, before)} <= ends:
            continue
        if _bytes_between(task, other) or _bytes_between(other, task):
            return (
                f"{other.name} is on this edge, and one of the two tasks reads what the other "
                f"writes: put {task.name} after or before {other.name}"
            )
    return ""
