"""Tasks of the user's own in a graph: between two tasks of an algorithm, on what one sends."""

from __future__ import annotations

from dataclasses import replace

from pearl.errors import SpecError
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.record import nbytes


def inserted(graph: TaskGraph, task: Task, *, after: str, before: str) -> TaskGraph:
    """`graph` with `task` on its edge from `after` to `before`: it fires as often as they do, when
    the one has fired and before the other does, and may revise what is sent between them.

    States that `task` names and `graph` has not hold the arrays that its kernel alone touches.
    Fused calls of both tasks are gone, since they leave no room between the two.

    Raises:
        SpecError: no such edge, or its ends fire at different rates.
    """
    edges = [e for e in graph.edges if (e.src, e.dst) == (after, before) and e.bytes]
    if not edges or edges[0].production != edges[0].consumption or edges[0].tokens_seq:
        pairs = [
            f"{e.src} → {e.dst}"
            for e in graph.edges
            if e.is_channel and e.production == e.consumption and not e.tokens_seq
        ]
        raise SpecError(
            f"graph {graph.name!r}: {task.name} cannot be put between {after} and {before}; one "
            f"firing of the first must send to one of the second, as in {', '.join(pairs)}"
        )
    kind = kind_of(task.kernel)
    arrays = kind.arrays(task.kernel)
    read = {n for t in graph.tasks for n in kind_of(t.kernel).arrays(t.kernel)}
    passed = float(sum(nbytes(arrays[n]) for n in kind.written(arrays) if n in read))
    own = float(sum(nbytes(spec) for name, spec in arrays.items() if name not in read))
    place = [t.name for t in graph.tasks].index(before)
    states = dict.fromkeys((s for s in task.writes if s not in graph.states), own)
    return replace(
        graph,
        tasks=(*graph.tasks[:place], task, *graph.tasks[place:]),
        edges=(
            *graph.edges,
            Edge(after, task.name, bytes=edges[0].bytes),
            Edge(task.name, before, bytes=passed),
            Edge(task.name, task.name, tokens_seq=1),
        ),
        states={**graph.states, **states},
        fusions=tuple(f for f in graph.fusions if not {after, before} <= set(f.tasks)),
    )
