"""The host CPU: which kernels it runs, in which variants, and how they are bound.

Variants: `native` (numba, one compiled call a firing), `native-pair` (the same gradient step by the
calling thread and one that helps it), `torch` (any loss written in torch, networks through
autograd), `torch-bf16` (the same with its wide products in bfloat16, never planned unless the user
names it) and, for env_step, `gymnasium` (any environment) and `envpool` (where that package is
installed, likewise only if named). A pair takes two cores, all others one.
Native kernels bring their own matrix products; torch is held to one thread for as long as its
kernels are bound (`torch_threads`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pearl_devices import torch_threads
from pearl_devices.base import Buffers, Call, Device, UnsupportedError
from pearl_devices.buffers import specs
from pearl_devices.kernel import Kernel
from pearl_devices.primitives import NATIVE_ENVS

WIDTH_UNIT = "cores"
SIMULATED = False
ESTIMATE = "pearl_estimators.cpu:calibrated_or_roofline"
COUNTER = "pearl_estimators.energy:rapl"

_TORCH_UPDATE = {
    "torch": "torch.off_policy:bind_update",
    "torch-bf16": "torch.off_policy:bind_update_bfloat16",
}

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "env_step": {
        "native": "envs.native_envs:bind_step",
        "gymnasium": "envs.gym_envs:bind_step",
        "envpool": "envs.envpool_envs:bind_step",
    },
    "inference.dqn": {
        "native": "updates.dqn:bind_inference",
        "torch": "torch.off_policy:bind_inference",
    },
    "inference.ddpg": {
        "native": "updates.ddpg:bind_inference",
        "torch": "torch.off_policy:bind_inference",
    },
    "inference.sac": {
        "native": "updates.sac:bind_inference",
        "torch": "torch.off_policy:bind_inference",
    },
    "replay_insert": {"native": "replay.ring:bind_insert"},
    "replay_sample": {"native": "replay.ring:bind_sample"},
    "replay_update": {"native": "replay.ring:bind_priorities"},
    "update.dqn": {"native": "updates.dqn:bind_update", "torch": "torch.off_policy:bind_update"},
    "update.ddpg": {
        "native": "updates.ddpg:bind_update",
        "native-pair": "updates.ddpg_pair:bind_learn",
        **_TORCH_UPDATE,
    },
    "update.td3": {
        "native": "updates.td3:bind_learn",
        "native-pair": "updates.td3_pair:bind_learn",
        **_TORCH_UPDATE,
    },
    "update.sac": {
        "native": "updates.sac:bind_learn",
        "native-pair": "updates.sac_pair:bind_learn",
        **_TORCH_UPDATE,
    },
    "param_sync": {"native": "math.nets:bind_sync"},
    "learn.dqn": {"native": "updates.dqn:bind_learn"},
    "learn.ddpg": {
        "native": "updates.ddpg:bind_learn",
        "native-pair": "updates.ddpg_pair:bind_learn",
    },
    "learn.td3": {"native": "updates.td3:bind_learn", "native-pair": "updates.td3_pair:bind_learn"},
    "learn.sac": {"native": "updates.sac:bind_learn", "native-pair": "updates.sac_pair:bind_learn"},
    "inference.ppo": {
        "native": "updates.policies:bind_inference",
        "torch": "torch.on_policy:bind_inference",
    },
    "rollout_insert": {
        "native": "replay.rollouts:bind_insert",
        "torch": "torch.on_policy:bind_insert",
    },
    "gae": {
        "native": "replay.rollouts:bind_advantages",
        "torch": "torch.on_policy:bind_advantages",
    },
    "update.ppo": {"native": "updates.ppo:bind_update", "torch": "torch.on_policy:bind_update"},
    "update.a2c": {"native": "updates.ppo:bind_update", "torch": "torch.on_policy:bind_update"},
    "rollout.ppo": {"native": "updates.ppo_iteration:bind_rollout"},
    "iteration.ppo": {"native": "updates.ppo_iteration:bind_iteration"},
    "iteration.a2c": {"native": "updates.ppo_iteration:bind_iteration"},
    "iteration.dqn": {"native": "updates.dqn:bind_iteration"},
    "iteration.ddpg": {"native": "updates.ddpg:bind_iteration"},
    "iteration.td3": {"native": "updates.td3:bind_iteration"},
    "iteration.sac": {"native": "updates.sac:bind_iteration"},
    "tabular.choose": {"native": "updates.tabular:bind_choose"},
    "tabular.q_learning": {"native": "updates.tabular:bind_q_learning"},
    "tabular.sarsa": {"native": "updates.tabular:bind_sarsa"},
}
"""Kernel kind → variant → `module:function` in `pearl_devices.primitives`, imported on use."""

OPEN: Mapping[str, Mapping[str, str]] = {
    "inference": {"torch": "torch.off_policy:bind_inference"},
    "update": {"torch": "torch.off_policy:bind_update"},
}
"""The same for the kinds of an algorithm of the user's own, by family."""


PAIRS = ("native-pair",)
"""Variants that take two cores."""

LEAST_PAIR = 4
"""The smallest batch that two cores share."""


def _variants(kernel: Kernel) -> Mapping[str, str]:
    """The variants that can run `kernel`."""
    family, _, algorithm = kernel.kind.partition(".")
    found = VARIANTS.get(kernel.kind) or (OPEN.get(family, {}) if algorithm else {})
    return {name: where for name, where in found.items() if _can(kernel, name)}


def _can(kernel: Kernel, variant: str) -> bool:
    if variant in PAIRS and (sys.platform != "linux" or kernel.dim("batch") < LEAST_PAIR):
        return False  # they wake each other by an eventfd, and each takes a part of the batch
    if kernel.modules and variant != "torch":
        return False
    if kernel.kind.partition(".")[0] in ("env_step", "rollout", "iteration"):
        if variant == "native":
            sizes = NATIVE_ENVS.get(str(kernel.program))
            given = tuple(kernel.dims.get(name, 0) for name in ("obs", "act", "stack"))
            return sizes is not None and not kernel.args and given == (sizes.obs, sizes.act, 0)
        if variant == "envpool":
            plain = not (kernel.dims.get("states") or kernel.dims.get("stack"))
            named = kernel.program is not None and ":" not in kernel.program
            return plain and named and find_spec("envpool") is not None
        return kernel.program is not None
    if kernel.kind.startswith("update.") and variant in _TORCH_UPDATE:
        return kernel.program is not None
    return True


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """The ways to run `kernel` on a CPU, as (variant, cores); empty for a kind it cannot run."""
    widths = {variant: 2 if variant in PAIRS else 1 for variant in _variants(kernel)}
    return tuple((variant, width) for variant, width in widths.items() if width <= device.width)


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
    if variant.startswith("torch"):
        torch_threads.one()
    module, _, function = variants[variant].partition(":")
    if module == "replay.ring" and kernel.dims.get("stack"):
        module = "replay.frames"
    binder = getattr(import_module(f"pearl_devices.primitives.{module}"), function)
    return cast(Call, binder(kernel, buffers))


def act(
    kernel: Kernel,
    params: npt.NDArray[np.floating[Any]],
    obs: npt.NDArray[np.float32],
    low: npt.NDArray[np.float32] | None = None,
    high: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """Greedy actions of a policy for a batch of observations (rows, O), without exploration.

    kernel: its `inference.*` kernel. params: as policy.X, X its network. Discrete actions: int64
    (rows,), the output of largest value (of a duelling network, of largest advantage). Continuous
    ones: float32 (rows, A) between low and high (A), which are then needed: the first A outputs
    through tanh (of inference.sac the means); of inference.ppo all of them, clipped. Of
    tabular.choose params is the table and an observation the number of a state. Where the kernel
    has a program, the program chooses (`torch_nets.bind_inference`).
    """
    if kernel.kind == "tabular.choose":
        return np.asarray(np.argmax(params[np.asarray(obs, np.int64)[:, 0]], axis=1), np.int64)
    if kernel.program is not None:
        from pearl_devices.primitives.torch.off_policy import act_greedily

        chosen: npt.NDArray[np.int64] | npt.NDArray[np.float32]
        chosen = act_greedily(kernel, params, obs, low, high)
        return chosen
    from pearl_devices.primitives.math.nets import forward_numpy

    curved = bool(kernel.dims.get("tanh"))
    obs = np.asarray(obs, np.float32)
    if kernel.modules:
        from pearl_devices.primitives.torch.off_policy import outputs

        out = outputs(kernel, params, obs)
    else:
        out = forward_numpy(kernel.layers(), params, obs, curved)
    if not kernel.dim("act"):
        duelling = kernel.dim("duelling") if "duelling" in kernel.dims else 0
        return np.asarray(np.argmax(out[:, duelling:], axis=1), np.int64)
    if low is None or high is None:
        raise ValueError(f"{kernel.kind}: a policy needs low and high, the bounds of its actions")
    half = np.float32(0.5) * (high - low)
    if kernel.kind == "inference.ppo":
        clipped: npt.NDArray[np.float32] = np.clip(low + half + half * out, low, high)
        return clipped
    actions: npt.NDArray[np.float32] = low + half + half * np.tanh(out[:, : kernel.dim("act")])
    return actions
