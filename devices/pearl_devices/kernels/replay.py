"""The replay: a ring of transitions, with a K-ary sum tree of priorities if it is prioritised.

Sizes: envs, obs, act, capacity, prioritised (0 or 1), fanout; for frames
(`primitives.replay.frames`) also stack, apart (environments of all groups) and ends; for
observations that are stored as uint8 (`primitives.replay.observations`) units, the stored numbers
per 1.0.
"""

from __future__ import annotations

import math

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import flags, step, stored, transition
from pearl_devices.kernels.counting import F32, action_bytes, obs_bytes
from pearl_devices.kernels.record import KernelKind, Spec, Variant, Work, primitive


def row_bytes(k: Kernel) -> int:
    """Bytes of one stored transition: two observations, action, reward, two flags. For frames: one
    frame and the depth of its stack instead of the observations."""
    stack = k.dims.get("stack", 0)
    seen = k.dim("obs") // k.dim("stack") + 1 if stack else 2 * obs_bytes(k)
    return seen + F32 + action_bytes(k) + 2


def tree_depth(k: Kernel) -> int:
    """Levels of the sum tree below its root: decisions of one draw."""
    capacity, fanout, levels = k.dim("capacity"), k.dim("fanout"), 1
    while capacity > fanout:
        capacity, levels = -(-capacity // fanout), levels + 1
    return levels


def tree_levels(capacity: int, fanout: int) -> tuple[int, ...]:
    """Widths of the sum tree's levels, root first; the leaves are rounded up to whole nodes."""
    widths = [-(-capacity // fanout) * fanout]
    while widths[0] > 1:
        above = widths[0] // fanout
        widths.insert(0, above if above == 1 else -(-above // fanout) * fanout)
    return tuple(widths)


def is_prioritised(k: Kernel) -> bool:
    """Whether a kernel of the replay uses the sum tree: by its size `prioritised`; a kernel that
    writes priorities has no such size and always does."""
    return bool(k.dims.get("prioritised", 1))


def _insert_work(k: Kernel) -> Work:
    n, row = k.dim("envs"), row_bytes(k)
    tree = n * tree_depth(k) * k.dim("fanout") if k.dim("prioritised") else 0
    nodes = n * (tree_depth(k) + 1) if k.dim("prioritised") else 0
    return float(tree), float(n * row + F32 * tree), float(n * row + F32 * nodes), 0.0


def _sample_work(k: Kernel) -> Work:
    draws = k.dim("batch") * k.dim("steps")
    row = row_bytes(k) + 6 * (k.dim("n_step") - 1)  # reward and flags of the following rows
    whole = F32 * (2 * k.dim("obs") + 1) + action_bytes(k) + 2
    if k.dims.get("stack"):  # the frames of its stack, and one more
        row += k.dim("obs")
    tree = draws * tree_depth(k) * k.dim("fanout") if k.dim("prioritised") else 0
    return (
        float(tree + 4 * draws),
        float(draws * row + F32 * tree),
        float(draws * (whole + 14)),  # discount, weight and index instead of the flags
        0.0,
    )


def _update_work(k: Kernel) -> Work:
    draws = k.dim("batch") * k.dim("steps")
    tree = draws * tree_depth(k) * k.dim("fanout")
    nodes = draws * (tree_depth(k) + 1)
    # About 30 flops for the power of a priority; an index of eight bytes and a TD error each.
    return float(tree + 30 * draws), float(F32 * tree + 12 * draws), float(F32 * nodes), 0.0


def _decisions(k: Kernel) -> float:
    """Decisions of one draw from the tree or one write to it, for any fanout."""
    return math.log2(k.dim("capacity")) if is_prioritised(k) else 0.0


def _tree(k: Kernel) -> dict[str, Spec]:
    return {
        "replay.tree": ((sum(tree_levels(k.dim("capacity"), k.dim("fanout"))),), "float32"),
        "replay.priority": ((3,), "float64"),
    }


def _frames(k: Kernel) -> dict[str, Spec]:
    stack, envs, ends = k.dim("stack"), k.dim("apart"), k.dim("ends")
    size, places = k.dim("obs") // stack, k.dim("capacity") + (stack - 1) * envs
    return {
        "replay.frame": ((places, size), "uint8"),
        "replay.depth": ((places,), "uint8"),
        "replay.ahead": ((envs, size), "uint8"),
        "replay.last": ((ends, size), "uint8"),
        "replay.last_row": ((ends,), "int64"),
        "replay.clock": ((2,), "int64"),
    }


def _ring(k: Kernel) -> dict[str, Spec]:
    rows = k.dim("capacity")
    found = stored("replay", (rows,), k)
    if k.dims.get("stack"):
        found = {n: s for n, s in found.items() if not n.endswith("obs")} | _frames(k)
    return {
        **found,
        **flags("replay", rows),
        "replay.cursor": ((2,), "int64"),
        **(_tree(k) if k.dim("prioritised") else {}),
    }


def _insert_arrays(k: Kernel) -> dict[str, Spec]:
    return {**step(k), **_ring(k)}


def batch(k: Kernel) -> dict[str, Spec]:
    """The batches of `steps` gradient steps."""
    lead = (k.dim("steps"), k.dim("batch"))
    return {
        **transition("batch", lead, k),
        "batch.discount": (lead, "float32"),
        "batch.weight": (lead, "float32"),
    }


def _index(k: Kernel) -> dict[str, Spec]:
    return {"batch.index": ((k.dim("steps"), k.dim("batch")), "int64")}


def errors(k: Kernel) -> dict[str, Spec]:
    """The TD error of each sample."""
    return {"batch.td": ((k.dim("steps"), k.dim("batch")), "float32")}


def _sample_arrays(k: Kernel) -> dict[str, Spec]:
    return {
        **_ring(k),
        **batch(k),
        **_index(k),
        **({"replay.beta": ((3,), "float64")} if k.dim("prioritised") else {}),
        "hyper.discount": ((1,), "float64"),
        "rng.replay_sample": ((2,), "uint64"),
    }


def _update_arrays(k: Kernel) -> dict[str, Spec]:
    return {**_tree(k), **_index(k), **errors(k)}


def _of_ring(function: str) -> Variant:
    """The variant of the ring of transitions, of that with uint8, or of the ring of frames."""

    def where(k: Kernel) -> str:
        plain = "whole" if k.dims.get("units") and function == "bind_insert" else "ring"
        module = "frames" if k.dims.get("stack") else plain
        return f"pearl_devices.primitives.replay.{module}:{function}"

    return Variant(where)


REPLAY_INSERT = KernelKind(
    name="replay_insert",
    structure="insert",
    count=_insert_work,
    arrays=_insert_arrays,
    writes=("replay.",),
    repeatable=True,
    side="acts",
    accesses=lambda k: k.dim("envs") * (1.0 + _decisions(k)),
    variants={"native": _of_ring("bind_insert")},
)

REPLAY_SAMPLE = KernelKind(
    name="replay_sample",
    structure="sample",
    count=_sample_work,
    arrays=_sample_arrays,
    writes=("batch.", "rng.replay_sample"),
    sends=("batch.",),
    repeatable=True,
    side="learns",
    accesses=lambda k: k.dim("batch") * k.dim("steps") * (k.dim("n_step") + _decisions(k)),
    variants={"native": _of_ring("bind_sample")},
)
"""Further sizes: batch, steps, n_step."""

REPLAY_UPDATE = KernelKind(
    name="replay_update",
    structure="prioritise",
    count=_update_work,
    arrays=_update_arrays,
    writes=("replay.",),
    repeatable=True,
    side="learns",
    accesses=lambda k: k.dim("batch") * k.dim("steps") * _decisions(k),
    variants={"native": primitive("replay.ring:bind_priorities")},
)
"""Sizes: batch, steps, capacity, fanout."""
