"""Number of rows of a rollout's arrays that are live at a time, from the reaches of edges.

Firing t of its writer writes row t of an array. The row is dead after firing t of its last reader,
because a window looks ahead and never back. A reader that waits for row t + n, by its own reach or
by that of a task before it, keeps n + 1 rows alive. A reader that waits for a whole rollout keeps
all rows alive (Tempo, Silvestre and others 2025, arXiv 2501.05408).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pearl.graph.task_graph import Edge, TaskGraph
from pearl_devices.buffers import specs
from pearl_devices.kernels.record import size_bytes

ROLLOUT = "rollout."

Storage = Literal["whole", "window", "none"]


def live_rows(edges: Sequence[Edge], writer: str, readers: Iterable[str], steps: int) -> int:
    """Rows of an array of a rollout of `steps` that must be kept: 1 to `steps`."""
    ahead = {writer: 0}
    for _ in range(len(edges)):
        for e in edges:
            if e.src in ahead and e.dst != e.src and not e.tokens:
                whole = e.reach is None or e.production != e.consumption
                found = steps if whole else min(ahead[e.src] + (e.reach or 0), steps)
                ahead[e.dst] = max(found, ahead.get(e.dst, 0))
    return min(1 + max((ahead.get(r, 0) for r in readers), default=0), steps)


@dataclass(frozen=True)
class StoredArray:
    """An array of a rollout in a plan.

    array: its name.
    storage: `whole` rollout, circular `window` of it, or `none`: one vector step, read at once.
    rows: vector steps that it holds.
    bytes: that it takes.
    """

    array: str
    storage: Storage
    rows: int
    bytes: int


def stored_arrays(graph: TaskGraph) -> tuple[StoredArray, ...]:
    """Return the arrays of a graph's rollout without counters; empty if it has no rollout."""
    found: dict[str, StoredArray] = {}
    steps = 0
    for task in graph.tasks if "rollout" in graph.states else ():
        for name, spec in specs(task.kernel).items():
            if name.startswith(ROLLOUT) and len(spec[0]) > 1:
                rows, steps = spec[0][0], steps or graph.repetition[task.name]
                storage: Storage = "whole" if rows == steps else "none" if rows == 1 else "window"
                found[name] = StoredArray(name, storage, rows, size_bytes(spec))
    return tuple(found.values())
