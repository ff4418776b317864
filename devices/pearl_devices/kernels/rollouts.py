"""Rollouts: vector steps stored one after another, then valued as a whole.

Sizes of rollout_insert: envs, obs, act, horizon (number of stored vector steps). Of gae: the same,
tanh (1 if hidden layers use tanh, else 0) and the network critic; horizon is the length of the
rollout. With `ahead`, gae computes returns of `ahead` rewards instead of generalised advantages. If
`kept` is also given, a firing values one vector step, and a ring has the last `kept` vector steps.
With `units`, the stored numbers per 1.0, observations are stored as uint8.
"""

from __future__ import annotations

from dataclasses import replace

from pearl_devices.kernel import Kernel
from pearl_devices.kernels import torch_operations
from pearl_devices.kernels.arrays import continuous, step, stored
from pearl_devices.kernels.counting import F32, activations_bytes, forward_flops, obs_bytes, size
from pearl_devices.kernels.record import KernelKind, Spec, Variant, Work, primitive
from pearl_devices.kernels.replay import row_bytes

GAE_FLOPS = 9
"""Flops of delta, advantage and return of a step."""
_ADVANTAGES, _TRACE = 17, 4
"""Torch operations of generalised advantages: per rollout, and per step."""
_ROW = 7
"""Copies that store one vector step."""


def rows(k: Kernel) -> dict[str, Spec]:
    """The stored rollout, or the part of it that is kept."""
    lead = (kept_steps(k), k.dim("envs"))
    ends = dict.fromkeys(("rollout.terminated", "rollout.truncated"), (lead, "uint8"))
    return {**stored("rollout", lead, k), **ends, "rollout.log_prob": (lead, "float32")}


def results(k: Kernel) -> dict[str, Spec]:
    """Values, advantages and returns of a rollout; advantages and returns of one vector step if
    each is learned from before the next is valued."""
    envs, names = k.dim("envs"), ("rollout.advantage", "rollout.returns")
    judged: dict[str, Spec] = dict.fromkeys(names, ((judged_steps(k), envs), "float32"))
    return {"rollout.value": ((kept_steps(k), envs), "float32"), **judged}


def kept_steps(k: Kernel) -> int:
    """Return the number of stored vector steps of a rollout: all, or the steps not yet read."""
    return k.dim("kept" if k.dims.get("kept") else "horizon")


def judged_steps(k: Kernel) -> int:
    """Number of vector steps that one firing values or learns from."""
    return 1 if k.dims.get("kept") else k.dim("horizon")


def _insert_work(k: Kernel) -> Work:
    moved = float(k.dim("envs") * (row_bytes(k) + F32))
    return 0.0, moved, moved, 0.0


def _insert_arrays(k: Kernel) -> dict[str, Spec]:
    n, act = k.dim("envs"), continuous(k)
    return {
        **step(k),
        **({"act.sample": ((n, act), "float32")} if act else {}),
        "act.log_prob": ((n,), "float32"),
        **rows(k),
        "rollout.at": ((1,), "int64"),
    }


def _gae_work(k: Kernel) -> Work:
    layers, envs, own = k.layers(), k.dim("envs"), k.modules.get("critic")
    judged = envs * judged_steps(k)
    # Values of every row, and of what follows the last ones.
    values = (judged + envs) * own.flops if own else forward_flops(layers, judged + envs)
    rows = min(judged, 128)
    scratch = F32 * rows * own.numbers if own else activations_bytes(layers, rows)
    if k.dims.get("units"):  # as float32: all of them in torch, else a block
        scratch += F32 * k.dim("obs") * (judged if own else max(envs, rows))
    return (
        values + GAE_FLOPS * judged,
        float(F32 * size(k) + judged * (obs_bytes(k) + F32 + 2)),
        float(3 * F32 * judged),
        float(scratch),
    )


def _gae_arrays(k: Kernel) -> dict[str, Spec]:
    found = results(k)
    ahead: dict[str, Spec] = {"rollout.judged": ((2,), "int64")}
    ahead["rollout.follows"] = found["rollout.value"]
    return {
        **rows(k),
        **(ahead if k.dims.get("ahead") else {}),
        "rollout.at": ((1,), "int64"),
        **found,
        "policy.critic": ((size(k, "critic"),), "float32"),
        "hyper.discount": ((1,), "float64"),
        "hyper.gae_lambda": ((1,), "float64"),
    }


def _gae_operations(k: Kernel) -> float:
    own = k.modules.get("critic")
    once = own.operations if own else torch_operations.forward(k.layers())
    return 2 * once + _ADVANTAGES + _TRACE * judged_steps(k)


def _gae_like(k: Kernel) -> Kernel:
    """Generalised advantages of as many vector steps as a firing values."""
    dims = {n: size for n, size in k.dims.items() if n not in ("ahead", "kept")}
    return replace(k, dims={**dims, "horizon": judged_steps(k)})


def holds_numbers(name: str) -> bool:
    """Whether a torch program reads the array as numbers."""
    return name in ("rollout.at", "rollout.judged") or name.startswith("hyper.")


def _native_insert(k: Kernel) -> str:
    """The primitive that stores observations as they are, or as uint8."""
    where = "whole:bind_insert_step" if k.dims.get("units") else "rollouts:bind_insert"
    return f"pearl_devices.primitives.replay.{where}"


ROLLOUT_INSERT = KernelKind(
    name="rollout_insert",
    structure="store",
    count=_insert_work,
    arrays=_insert_arrays,
    writes=("rollout.",),
    operations=lambda k: _ROW,
    variants={
        "native": Variant(_native_insert),
        "torch": primitive("torch.on_policy:bind_insert", on_host=holds_numbers),
    },
)

GAE = KernelKind(
    name="gae",
    structure="advantages",
    count=_gae_work,
    arrays=_gae_arrays,
    writes=("rollout.",),
    operations=_gae_operations,
    like=_gae_like,
    variants={
        "native": primitive("replay.rollouts:bind_advantages"),
        "torch": primitive("torch.on_policy:bind_advantages", on_host=holds_numbers),
    },
)
