"""Kernel kinds that a GPU computes besides torch's operators: kind → variant → implementation.

Each function takes the kernel, the device arrays by name (`gpu.driver.Arrays`) and the driver, and
returns the call of one firing. This file imports neither torch nor numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pearl_devices.kernel import Kernel
from pearl_devices.kernels import Variant, kind_of
from pearl_devices.kernels.environments import has_native
from pearl_devices.kernels.record import once
from pearl_devices.kernels.replay import is_prioritised, tree_levels

BLOCK = 256
"""Environments per block of GPU threads. With several blocks, a second launch ends the step."""

ONE_BLOCK_LANES = 8192
"""Most lanes with which one block writes a batch's priorities in one launch; with more, each level
is a launch of many blocks."""

WHOLE_NODES = 1024
"""Levels of the sum tree with at most this many nodes are recomputed completely, in one block."""


@dataclass(frozen=True)
class OnGpu(Variant):
    """One implementation of a kind on a GPU. launches: number of CUDA launches of one firing."""

    launches: Callable[[Kernel], float] = once


def lanes(fanout: int) -> int:
    """Lanes of a warp that share a node; as `lanes_of` in sum_tree.cuh."""
    return fanout if fanout in (8, 16) else 1


def phases(kernel: Kernel) -> tuple[int, int, bool]:
    """Return how a batch's priorities are written: number of tree levels that are recomputed
    completely, number of phases, and whether one launch does all phases."""
    levels = tree_levels(kernel.dim("capacity"), kernel.dim("fanout"))
    whole = sum(width <= WHOLE_NODES for width in levels[:-1])
    width = kernel.dim("steps") * kernel.dim("batch") * lanes(kernel.dim("fanout"))
    return whole, len(levels) - whole + 2, width <= ONE_BLOCK_LANES


def _priority_launches(kernel: Kernel) -> float:
    _, count, at_once = phases(kernel)
    return 1 if at_once else count


DRAWN_BY = ("tree", "priority", "cursor", "beta", "clock", "last_row")
"""Arrays replay.X that help to draw and find rows; the other arrays hold the rows."""


def _is_row(name: str) -> bool:
    """Whether an array holds rows; rows may stay in the host's memory while a GPU draws."""
    owner, _, column = name.partition(".")
    return owner == "replay" and column not in DRAWN_BY


def _of_ring(function: str, launches: Callable[[Kernel], float]) -> dict[str, OnGpu]:
    """The variants of the replay: all arrays on the GPU, or the rows in the host's memory."""

    def where(k: Kernel) -> str:
        return f"pearl_devices.gpu.{'frames' if k.dims.get('stack') else 'replay'}:{function}"

    cuda = OnGpu(where, launches=launches, fits=lambda k: not k.dims.get("units"))
    return {"cuda": cuda, "host-rows": replace(cuda, on_host=_is_row)}


def _acting(algorithm: str) -> dict[str, OnGpu]:
    fits: Callable[[Kernel], bool] = lambda k: not k.dims.get("choices")  # noqa: E731
    return {"cuda": OnGpu(f"pearl_devices.gpu.acting:bind_{algorithm}", fits=fits)}


CUDA: Mapping[str, Mapping[str, OnGpu]] = {
    "env_step": {
        "cuda": OnGpu(
            "pearl_devices.gpu.environments:bind_step",
            fits=has_native,
            launches=lambda k: 1 + (k.dim("envs") > BLOCK),
        )
    },
    "inference.dqn": _acting("dqn"),
    "inference.ddpg": _acting("ddpg"),
    "inference.sac": _acting("sac"),
    "inference.ppo": _acting("ppo"),
    "replay_insert": _of_ring("bind_insert", lambda k: 2.0 if k.dims.get("stack") else 1.0),
    "replay_sample": _of_ring("bind_sample", lambda k: 2.0 if is_prioritised(k) else 1.0),
    "replay_update": {
        "cuda": OnGpu("pearl_devices.gpu.replay:bind_priorities", launches=_priority_launches)
    },
    "rollout_insert": {
        "cuda": OnGpu(
            "pearl_devices.gpu.rollouts:bind_insert",
            fits=lambda k: not (k.dims.get("choices") or k.dims.get("units")),
        )
    },
    "gae": {
        "cuda": OnGpu(
            "pearl_devices.gpu.rollouts:bind_advantages",
            fits=lambda k: not (k.dims.get("ahead") or k.dims.get("units")),
            launches=lambda k: 2,
        )
    },
    "param_sync": {
        "eager": OnGpu("pearl_devices.gpu.binding:bind_sync"),
        "cuda": OnGpu("pearl_devices.gpu.rollouts:bind_sync"),
    },
}


def find_written(kernel: Kernel) -> Mapping[str, OnGpu]:
    """Return the implementations of a kernel's kind: those of CUDA, and for gradient steps also
    `graph`, which records the torch program of the kind."""
    kind, found = kind_of(kernel), CUDA.get(kernel.kind, {})
    torch = kind.variants.get("torch")
    if kind.structure != "gradient" or torch is None:
        return found

    def fits(k: Kernel) -> bool:
        """A graph takes all steps of a firing, whatever the loss says in between."""
        return torch.fits(k) and not (k.dims.get("kept") or k.dims.get("stops"))

    graph = OnGpu("pearl_devices.gpu.graphs:bind_update", fits=fits, on_host=torch.on_host)
    return {**found, "graph": graph}


def on_host(kernel: Kernel, variant: str) -> tuple[str, ...]:
    """Return the arrays that one of these variants keeps in the host's memory."""
    found = find_written(kernel).get(variant)
    return tuple(n for n in kind_of(kernel).arrays(kernel) if found.on_host(n)) if found else ()
