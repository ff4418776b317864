"""The host CPU: which kernels it runs, in which variants, and how they are bound.

Variants: `native` (numba, one compiled call a firing), `torch` (any loss written in torch, networks
through autograd) and, for env_step, `gymnasium` (any environment). All of width one: one core.
Native kernels bring their own matrix products; torch keeps its threads (OMP_NUM_THREADS).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

import numpy as np
import numpy.typing as npt

from pearl_devices.base import Buffers, Call, Device, UnsupportedError
from pearl_devices.buffers import specs
from pearl_devices.kernel import Kernel
from pearl_devices.primitives import NATIVE_ENVS

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "env_step": {"native": "envs:bind_step", "gymnasium": "gym_envs:bind_step"},
    "inference.dqn": {"native": "dqn:bind_inference", "torch": "torch_nets:bind_inference"},
    "inference.ddpg": {"native": "ddpg:bind_inference", "torch": "torch_nets:bind_inference"},
    "inference.sac": {"native": "sac:bind_inference", "torch": "torch_nets:bind_inference"},
    "replay_insert": {"native": "replay:bind_insert"},
    "replay_sample": {"native": "replay:bind_sample"},
    "replay_update": {"native": "replay:bind_priorities"},
    "update.dqn": {"native": "dqn:bind_update", "torch": "torch_nets:bind_update"},
    "update.ddpg": {"native": "ddpg:bind_update", "torch": "torch_nets:bind_update"},
    "update.td3": {"native": "td3:bind_learn", "torch": "torch_nets:bind_update"},
    "update.sac": {"native": "sac:bind_learn", "torch": "torch_nets:bind_update"},
    "param_sync": {"native": "nets:bind_sync"},
    "learn.dqn": {"native": "dqn:bind_learn"},
    "learn.ddpg": {"native": "ddpg:bind_learn"},
    "learn.td3": {"native": "td3:bind_learn"},
    "learn.sac": {"native": "sac:bind_learn"},
}
"""Kernel kind → variant → `module:function` in `pearl_devices.primitives`, imported on use."""

OPEN: Mapping[str, Mapping[str, str]] = {
    "inference": {"torch": "torch_nets:bind_inference"},
    "update": {"torch": "torch_nets:bind_update"},
}
"""The same for the kinds of an algorithm of the user's own, by family."""


def _variants(kernel: Kernel) -> Mapping[str, str]:
    """The variants that can run `kernel`."""
    family, _, algorithm = kernel.kind.partition(".")
    found = VARIANTS.get(kernel.kind) or (OPEN.get(family, {}) if algorithm else {})
    return {name: where for name, where in found.items() if _can(kernel, name)}


def _can(kernel: Kernel, variant: str) -> bool:
    if kernel.kind == "env_step":
        if variant == "native":
            sizes = NATIVE_ENVS.get(str(kernel.program))
            given = (kernel.dims.get("obs"), kernel.dims.get("act"))
            return sizes is not None and not kernel.args and given == (sizes.obs, sizes.act)
        return kernel.program is not None
    if kernel.kind.startswith("update.") and variant == "torch":
        return kernel.program is not None
    return True


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """The ways to run `kernel` on a CPU, as (variant, cores); empty for a kind it cannot run."""
    return tuple((variant, 1) for variant in _variants(kernel))


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Prepares `kernel` over `buffers`, compiling it where needed; runs nothing but env resets.

    Safe on a replay that holds no row yet: sampling then returns row 0. An env_step starts its
    environments here (see `envs.bind_step` and `gym_envs`), so set rng.env_step before.

    Raises UnsupportedError for a kind, variant or program it cannot run, KeyError for a missing
    buffer, ValueError for one of the wrong shape or type.
    """
    variants = _variants(kernel)
    if variant not in variants:
        raise UnsupportedError(
            f"kernel {kernel.kind} (program {kernel.program!r}) has no variant {variant!r} "
            f"on a cpu; it has {list(variants) or 'none'}"
        )
    for name, (shape, dtype) in specs(kernel).items():
        if name not in buffers:
            raise KeyError(
                f"kernel {kernel.kind}: buffer {name} is missing; it must be {dtype}{shape}"
            )
        array = buffers[name]
        if array.shape != shape or array.dtype != np.dtype(dtype) or not array.flags.c_contiguous:
            raise ValueError(
                f"kernel {kernel.kind}: buffer {name} is {array.dtype}{array.shape}; "
                f"it must be {dtype}{shape}, C-contiguous"
            )
    module, _, function = variants[variant].partition(":")
    binder = getattr(import_module(f"pearl_devices.primitives.{module}"), function)
    return cast(Call, binder(kernel, buffers))


def act(
    kernel: Kernel,
    params: npt.NDArray[np.float32],
    obs: npt.NDArray[np.float32],
    low: npt.NDArray[np.float32] | None = None,
    high: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """Greedy actions of a policy for a batch of observations (rows, O), without exploration.

    kernel: its `inference.*` kernel. params: as policy.X, X its network. Discrete actions: int64
    (rows,), the output of largest value (of a duelling network, of largest advantage). Continuous
    ones: float32 (rows, A) between low and high (A), which are then needed: the first A outputs
    through tanh (of inference.sac the means). Where the kernel has a program, the program chooses
    (`torch_nets.bind_inference`).
    """
    if kernel.program is not None:
        from pearl_devices.primitives.torch_nets import act_greedily

        chosen: npt.NDArray[np.int64] | npt.NDArray[np.float32]
        chosen = act_greedily(kernel, params, obs, low, high)
        return chosen
    from pearl_devices.primitives.nets import forward_numpy

    out = forward_numpy(kernel.layers(), params, np.asarray(obs, np.float32))
    if not kernel.dim("act"):
        duelling = kernel.dim("duelling") if "duelling" in kernel.dims else 0
        return np.asarray(np.argmax(out[:, duelling:], axis=1), np.int64)
    if low is None or high is None:
        raise ValueError(f"{kernel.kind}: a policy needs low and high, the bounds of its actions")
    half = np.float32(0.5) * (high - low)
    actions: npt.NDArray[np.float32] = low + half + half * np.tanh(out[:, : kernel.dim("act")])
    return actions
