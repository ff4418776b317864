"""The rows of a run's arrays that a checkpoint holds, and how they are restored.

The filled rows of a replay are its first ones. Only these are written, and only the leaves of the
tree of priorities. Native kernels do not check their indices. Therefore every number by which a
kernel indexes, counts or loops is checked here before any array is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl.errors import SpecError
from pearl.graph.liveness import ROLLOUT
from pearl.graph.task_graph import TaskGraph
from pearl.runtime.protocol.single_lane import STOP, is_interruptible
from pearl.spec.system import System
from pearl.training.checkpoints.checkpoint import CheckpointFile
from pearl_devices import Buffers, Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.kernels.replay import tree_levels

Array = npt.NDArray[Any]

REPLAY = "replay."
EVALUATED = "judged."
"""Beginning of the names of the arrays of a policy that a worker evaluates."""
CURSOR, CLOCK, TREE = "replay.cursor", "replay.clock", "replay.tree"
ROWS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
HUGE = 2**62
"""Counts of a run stay far below this number."""
FAR = 1e6
"""Numbers in the state of a native environment stay far below this; a far larger one never
wraps."""


def checkpoint_views(arrays: Buffers, graph: TaskGraph, *, replay: bool = True) -> Buffers:
    """Return the arrays as a checkpoint holds them: views of their filled rows.

    replay: include the replay; without it, a resumed run begins with an empty replay.
    """
    if STOP in arrays:  # a stop request of this moment is not part of the run's state
        arrays = {**arrays, STOP: arrays[STOP] * (0, 1)}
    if not replay or CURSOR not in arrays:
        return {n: a for n, a in arrays.items() if not n.startswith(REPLAY)}
    rows = _count_filled_rows(arrays, arrays[CURSOR], arrays.get(CLOCK))
    found = dict(arrays)
    if TREE in found:
        found[TREE] = _leaves(found[TREE], graph)
    return {n: a[: rows[n]] if n in rows else a for n, a in found.items()}


def restore(
    stored: CheckpointFile, into: Buffers, graph: TaskGraph, *, without: tuple[str, ...] = ()
) -> None:
    """Copy the arrays of a checkpoint, which `check` has checked, into those of a session.

    without: beginnings of the names of arrays that are not copied.
    """
    for name in stored.places:
        if name.startswith(without):
            continue
        out, rows = into[name], stored.places[name].shape
        if name == TREE:
            out[:] = 0
            out = _leaves(out, graph)
        if rows:
            out[rows[0] :] = 0
            out = out[: rows[0]]
        if _is_packed(name, stored, into):
            _pack_into(stored, name, graph, out)
        else:
            stored.read_into(name, out)
        if name == TREE and rows[0]:
            _rebuild_sum_tree(into[TREE], graph, rows[0])


def check(
    stored: CheckpointFile, into: Buffers, graph: TaskGraph, system: System, inserted: int
) -> None:
    """Check that a checkpoint fits these arrays, before any of them is changed.

    inserted: rows that enter the replay at once.

    Raises:
        SpecError: a sentence for every array that does not fit.
    """
    places, names = stored.places, set(into)
    if CURSOR not in places:  # the replay was not kept
        names = {n for n in into if not n.startswith(REPLAY)}
    if STOP not in places:  # an earlier version, which wrote none in the middle of an iteration
        names -= {STOP}
    if not any(n.startswith(EVALUATED) for n in places):  # no policy was being judged
        names = {n for n in names if not n.startswith(EVALUATED)}
    rows, why = _read_counts(stored, into, inserted)
    if why:
        raise SpecError(f"{stored.path}: {why}")
    shapes = {n: into[n].shape for n in names}
    shapes |= {n: (count, *into[n].shape[1:]) for n, count in rows.items()}
    wrong = []
    for name in sorted(names | set(places)):
        wanted = f"{into[name].dtype}{list(shapes[name])}" if name in names else "none"
        found = f"{places[name].dtype}{list(places[name].shape)}" if name in places else "none"
        if name in names and name in places and _is_packed(name, stored, into):
            found = found.replace("float32", "uint8")
        if wanted != found:
            wrong.append(
                f"does not fit this spec and plan: {name}: checkpoint {found}, here {wanted}"
            )
    if not wrong:
        wrong = [
            line for n in sorted(names) for line in _find_bad_values(stored, n, into, graph, system)
        ]
    if wrong:
        raise SpecError(*(f"{stored.path}: {line}" for line in wrong))


def _is_packed(name: str, stored: CheckpointFile, into: Buffers) -> bool:
    """Whether an earlier version stored the uint8 of observations as float32."""
    seen = name.startswith((REPLAY, ROLLOUT)) and name.endswith((".obs", ".next_obs"))
    return seen and into[name].dtype == np.uint8 and stored.places[name].dtype == np.float32


def _pack_into(stored: CheckpointFile, name: str, graph: TaskGraph, out: Array) -> None:
    first, units = 0, next(t.kernel.dim("units") for t in graph.tasks if "units" in t.kernel.dims)
    for piece in stored.pieces(name):
        out[first : first + len(piece)] = np.rint(piece * np.float32(units)).clip(0, 255)
        first += len(piece)


def _find_bad_values(
    stored: CheckpointFile, name: str, into: Buffers, graph: TaskGraph, system: System
) -> Iterator[str]:
    """Yield a sentence if an array has a value that no kernel may see."""
    limits = value_bounds(name, into, graph, system)
    if limits is None:
        return
    low, high = limits
    for piece in stored.pieces(name):
        outside = ~((piece >= low) & (piece <= high))  # so NaN is outside
        if outside.any():
            given = piece[outside].flat[0]
            yield f"{name} has {given:g}; from {low:g} to {high:g} is allowed"
            return


COUNTS = ("episode.count", "episode.lengths", "env.elapsed", "learner.", "version.", "any_order.")
ACTIONS = ("act.action", "step.action", "batch.action", "replay.action", "rollout.action")
STATES = ("env.obs", "step.obs", "step.next_obs")


def value_bounds(
    name: str, into: Buffers, graph: TaskGraph, system: System
) -> tuple[float, float] | None:
    """Return the least and the largest value that an array may hold; None: any value is allowed."""
    base, array = name.partition("@")[0].partition("#")[0], into[name]
    whole = array.dtype.kind in "iu"
    if base in ACTIONS and whole:
        return 0, system.env.actions - 1
    if base == "batch.index":
        return 0, len(into["replay.reward"]) - 1
    if base == "rollout.at":
        return 0, len(into["rollout.reward"]) - 1
    if base == "loop.more":
        return 0, 0
    if base == STOP:  # gradient steps done in an interrupted firing; a fused call has several
        calls = [*(t.kernel for t in graph.tasks), *(f.kernel for f in graph.fusions)]
        return 0, max(k.dim("steps") for k in calls if is_interruptible(k)) - 1
    if base.endswith(".terminated"):
        return 0, 1
    if base.endswith(".truncated"):
        return 0, 1 | ANEW
    if base == "replay.depth":
        return 0, _sampling_kernel(graph).dim("stack") - 1
    if base == "replay.last_row" or (base.startswith(COUNTS) and whole):
        return 0, HUGE
    if base in STATES and "learner.q.visits" in into:  # a table, with a row a state
        return 0, len(into["policy.q"]) - 1
    if base == "env.state":
        return -FAR, FAR
    if base == TREE:
        return 0, float(np.finfo(np.float32).max)
    return None


def _sampling_kernel(graph: TaskGraph) -> Kernel:
    """The kernel that samples from the replay."""
    return next(t.kernel for t in graph.tasks if kind_of(t.kernel).structure == "sample")


def _tree_shape(graph: TaskGraph) -> tuple[tuple[int, ...], int]:
    """Widths of the tree's levels, and its fanout."""
    kernel = _sampling_kernel(graph)
    fanout = kernel.dim("fanout")
    return tree_levels(kernel.dim("capacity"), fanout), fanout


def _leaves(tree: Array, graph: TaskGraph) -> Array:
    return tree[tree.size - _tree_shape(graph)[0][-1] :]


def _rebuild_sum_tree(tree: Array, graph: TaskGraph, rows: int) -> None:
    """Sum the nodes above the first `rows` leaves, as the kernels sum them."""
    from pearl_devices.primitives.replay.sum_tree import raise_range

    levels, fanout = _tree_shape(graph)
    raise_range(tree, np.array(levels, np.int64), fanout, 0, rows - 1)


def _count_filled_rows(
    arrays: Mapping[str, Array], cursor: Array, clock: Array | None
) -> dict[str, int]:
    """The number of filled rows of each array of a replay, by name."""
    rows = [f"{REPLAY}{n}" for n in ROWS] + [TREE]
    found = dict.fromkeys((n for n in rows if n in arrays), int(cursor[1]))
    if clock is not None:
        stored, cut = (int(n) for n in clock)
        for count, names in ((stored, ("frame", "depth")), (cut, ("last", "last_row"))):
            for name in (f"{REPLAY}{n}" for n in names):
                found[name] = min(count, len(arrays[name]))
    return found


def _read_counts(
    stored: CheckpointFile, into: Buffers, inserted: int
) -> tuple[dict[str, int], str | None]:
    """The filled rows of a replay's arrays by the checkpoint's cursor and clock, or an error text.

    Cursors of another shape or type are ignored; `check` reports them.
    """
    found = {
        n: stored.read(n)
        for n, p in stored.places.items()
        if n in (CURSOR, CLOCK) and n in into and p.shape == (2,) and p.dtype == np.dtype(np.int64)
    }
    if CURSOR not in found:
        return {}, None
    capacity = len(into["replay.reward"])
    row, rows = (int(n) for n in found[CURSOR])
    sound = 0 <= row < capacity and 0 <= rows <= capacity and row % inserted == 0
    if not sound or (rows < capacity and row != rows):
        return {}, (
            f"{CURSOR} is [{row}, {rows}]; the next row to write of {capacity} and how many are "
            f"filled are needed, {inserted} at a time"
        )
    if CLOCK in found:
        number, cut = (int(n) for n in found[CLOCK])
        counted = number % capacity == row and min(number, capacity) == rows
        if not (counted and 0 <= cut <= number < HUGE):
            return {}, f"{CLOCK} is [{number}, {cut}], where {CURSOR} is [{row}, {rows}]"
    return _count_filled_rows(into, found[CURSOR], found.get(CLOCK)), None
