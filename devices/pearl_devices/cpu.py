"""The host CPU: the kernels it runs, their variants, and how kernels are bound.

Variants:
- `native`: numba, one compiled call per firing.
- `native-pair`: the same gradient step, shared by the calling thread and a helper thread.
- `torch`: any loss written in torch, networks through autograd.
- `torch-bf16`: `torch` with wide products in bfloat16; planned only if the user names it.
- `torch-2` to `torch-64`: gradient steps with N threads of torch.
- `gymnasium`: any environment.
- `processes`: any environment, each in a separate process; planned if environments wait or if the
  user names it.
- `envpool`: needs the package envpool; planned only if the user names it.

`native-pair` takes two cores, `torch-N` takes N, all other variants take one. The records in
`pearl_devices.kernels` list the variants of each kind. Native kernels have their own matrix
products. Torch is limited to one thread while its kernels are bound (`torch_threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pearl_devices import torch_threads
from pearl_devices.base import TORCH_WIDTHS, Buffers, Call, Device, UnsupportedError
from pearl_devices.buffers import specs
from pearl_devices.device_kind import Refused
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import Variant, kind_of, user_kinds
from pearl_devices.system import host_system

WIDTH_UNIT = "cores"
SIMULATED = False
ESTIMATE = "pearl_estimators.cpu:estimate_cpu"
COUNTER = "pearl_estimators.energy:rapl"

Actions = npt.NDArray[np.int64] | npt.NDArray[np.float32]
Greedy = Callable[[npt.NDArray[np.float32]], Actions]

LEAST_PAIR = 4
"""Smallest batch that two cores share."""

ONE_CORE = Device("cpu", "cpu")
"""A core of this process's CPU, with default figures."""


def _variants(kernel: Kernel) -> dict[str, Variant]:
    """The variants that can run `kernel`."""
    found = kind_of(kernel).variants
    return {name: variant for name, variant in found.items() if _can(kernel, name, variant)}


def _can(kernel: Kernel, name: str, variant: Variant) -> bool:
    if variant.cores > 1 and (not host_system.PROCESSES or kernel.dim("batch") < LEAST_PAIR):
        return False  # the pair wakes by a handle, and each core takes a part of the batch
    plays = kind_of(kernel).structure == "evaluation"  # `greedy` runs any network
    if kernel.modules and name != "torch" and not plays:
        return False
    return variant.fits(kernel)


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return the ways to run `kernel` on a CPU, as (variant, cores); `Refused` if there is none.

    The figure `torch` = 0 excludes the variants of torch, which is not installed there. The figure
    `bfloat16` = 0 excludes the variants in bfloat16: without instructions for it, a kernel took
    minutes instead of seconds.
    """
    offered = tuple(
        (name, v.cores) for name, v in _variants(kernel).items() if _lack(name, v, device) is None
    )
    if not offered:
        return _refused(kernel, device)
    if kind_of(kernel).structure != "gradient" or "torch" not in dict(offered):
        return offered
    wide = (n for n in TORCH_WIDTHS if n <= device.width)
    return (*offered, *((f"torch-{n}", n) for n in wide))


def _refused(kernel: Kernel, device: Device) -> Refused:
    """Return why no variant is offered."""
    kind = kind_of(kernel)
    if not kind.variants:
        return Refused(f"kernel {kernel.kind} has no variant for a CPU")
    able = _variants(kernel)
    if not able:
        what = "torch modules" if kernel.modules else "these sizes and options"
        return Refused(f"none of its variants {', '.join(kind.variants)} computes {what}")
    return Refused(", ".join(f"{name} {_lack(name, v, device)}" for name, v in able.items()))


def _lack(name: str, variant: Variant, device: Device) -> str | None:
    """Return what `device` lacks to run a variant, as a predicate; None if it lacks nothing."""
    if variant.cores > device.width:
        return f"needs {variant.cores} cores and the device has {device.width}"
    if name.startswith("torch") and device.figures.get("torch") == 0:
        return f"needs torch; {torch_threads.INSTALL}"
    if name.endswith("bf16") and device.figures.get("bfloat16") == 0:
        return "needs bfloat16 instructions"
    return None


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Prepare `kernel` over `buffers`: compile it if needed, and reset environments.

    Sampling from an empty replay is safe: it returns row 0. Environments start here
    (`primitives.envs`), so set rng.env_step first.

    Raises:
        UnsupportedError: it cannot run the kind, variant or program.
        KeyError: a buffer is missing.
        ValueError: a buffer has a wrong shape or type.
    """
    threads = torch_threads.threads_of(variant)
    if threads > 1:
        if kind_of(kernel).structure != "gradient":
            raise UnsupportedError(
                f"kernel {kernel.kind} has no variant {variant!r}: only gradient steps use "
                "threads of torch"
            )
        return torch_threads.with_threads(threads, bind(kernel, "torch", buffers))
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
        torch_threads.require_torch(f"kernel {kernel.kind}: variant {variant}")
        torch_threads.limit_to_one()
    if kind_of(kernel).structure == "own":
        return user_kinds.bind(kind_of(kernel), kernel, variant, buffers)
    module, _, function = variants[variant].program(kernel).partition(":")
    return cast(Call, getattr(import_module(module), function)(kernel, buffers))


def act(
    kernel: Kernel,
    params: npt.NDArray[np.floating[Any]],
    obs: npt.NDArray[np.float32],
    low: npt.NDArray[np.float32] | None = None,
    high: npt.NDArray[np.float32] | None = None,
    choices: Sequence[int] | None = None,
) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """Return greedy actions for a batch of observations (rows, O). Arguments: as for `greedy`."""
    return greedy(kernel, params, low, high, choices)(np.asarray(obs, np.float32))


def greedy(
    kernel: Kernel,
    params: npt.NDArray[np.floating[Any]],
    low: npt.NDArray[np.float32] | None = None,
    high: npt.NDArray[np.float32] | None = None,
    choices: Sequence[int] | None = None,
) -> Greedy:
    """Return a policy without exploration: a function from observations (rows, O), float32, to
    actions.

    kernel: the acting kernel.
    params: as policy.X of network X; for a table, the table. Each call reads the current values.
    low, high: bounds of continuous actions (A); infinite without bounds.
    choices: for factored actions, the number of choices of each component.

    Observations of a table are state numbers. Discrete actions are int64 (rows,): the output of
    largest value; for a duelling network, the action of largest advantage. Continuous actions are
    float32 (rows, A): the first A outputs through tanh, or all outputs, clipped, if training stores
    samples unclipped. Factored actions are int64 (rows, A). If the kernel has a program, the
    program chooses (`primitives.torch.off_policy.act_greedily`).

    Raises:
        ValueError: continuous actions without bounds.
    """
    kind = kind_of(kernel)
    if kind.structure == "table":
        return lambda obs: params[obs[:, 0].astype(np.int64)].argmax(axis=1)
    if kernel.program is not None:
        from pearl_devices.primitives.torch.off_policy import act_greedily

        return lambda obs: cast(Actions, act_greedily(kernel, params, obs, low, high))
    if kernel.modules:
        from pearl_devices.primitives.torch.off_policy import outputs

        network: Callable[[Any], Any] = partial(outputs, kernel, params)
    else:
        from pearl_devices.primitives.math.dense import network_of

        network = network_of(kernel.layers(), params, curved=bool(kernel.dims.get("tanh")))
    act = kernel.dim("act")
    if not act:
        first = kernel.dim("duelling") if "duelling" in kernel.dims else 0
        return lambda obs: network(obs)[:, first:].argmax(axis=1)
    if kernel.dims.get("choices"):
        if choices is None:
            raise ValueError(f"{kernel.kind}: a policy needs choices, how many each component has")
        ends = np.cumsum(choices)[:-1]
        return lambda obs: np.stack(
            [each.argmax(axis=1) for each in np.split(network(obs), ends, axis=1)], axis=1
        )
    if low is None or high is None:
        raise ValueError(f"{kernel.kind}: a policy needs low and high, the bounds of its actions")
    with np.errstate(over="ignore"):  # bounds too far apart are as none
        half = np.float32(0.5) * (high - low)
    if "act.sample" in kind.arrays(kernel):
        scaled = np.isfinite(half)  # components without two bounds are not scaled
        least, half = np.where(scaled, low, -1), np.where(scaled, half, 1)
        middle = (least + half).astype(np.float32)
        return lambda obs: np.clip(middle + half * network(obs), low, high).astype(np.float32)
    middle = low + half
    return lambda obs: middle + half * np.tanh(network(obs)[:, :act])
