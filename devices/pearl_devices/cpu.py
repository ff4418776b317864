"""The host CPU: which kernels it runs, in which variants, and how they are bound.

Variants: `native` (numba, one compiled call a firing), `native-pair` (the same gradient step by the
calling thread and one that helps it), `torch` (any loss written in torch, networks through
autograd), `torch-bf16` (the same with its wide products in bfloat16, never planned unless the user
names it), `torch-2` to `torch-64` (gradient steps by so many threads of torch's own) and, for
environments, `gymnasium` (any environment), `processes` (the same, each in a process of its own, if
they wait or it is named) and `envpool` (where that package is installed, only if named). A pair
takes two cores, `torch-N` takes N, all others one. The records in `pearl_devices.kernels` say which
variants a kind has.
Native kernels bring their own matrix products; torch is held to one thread for as long as its
kernels are bound (`torch_threads`).
"""

from __future__ import annotations

import sys
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

WIDTH_UNIT = "cores"
SIMULATED = False
ESTIMATE = "pearl_estimators.cpu:estimate_cpu"
COUNTER = "pearl_estimators.energy:rapl"

Actions = npt.NDArray[np.int64] | npt.NDArray[np.float32]
Greedy = Callable[[npt.NDArray[np.float32]], Actions]

LEAST_PAIR = 4
"""The smallest batch that two cores share."""

ONE_CORE = Device("cpu", "cpu")
"""A core of the CPU of this process, of which nothing else is said."""


def _variants(kernel: Kernel) -> dict[str, Variant]:
    """The variants that can run `kernel`."""
    found = kind_of(kernel).variants
    return {name: variant for name, variant in found.items() if _can(kernel, name, variant)}


def _can(kernel: Kernel, name: str, variant: Variant) -> bool:
    if variant.cores > 1 and (sys.platform != "linux" or kernel.dim("batch") < LEAST_PAIR):
        return False  # they wake each other by an eventfd, and each takes a part of the batch
    plays = kind_of(kernel).structure == "evaluation"  # through `greedy`, whatever network
    if kernel.modules and name != "torch" and not plays:
        return False
    return variant.fits(kernel)


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """The ways to run `kernel` on a CPU, as (variant, cores); `Refused` where it cannot.

    A figure `torch` of 0 leaves out the variants of torch, which is not installed there. A figure
    `bfloat16` of 0 leaves out the variants that round to it: without instructions for bfloat16 a
    kernel took minutes where float32 takes seconds.
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
    """Why no variant is offered."""
    kind = kind_of(kernel)
    if not kind.variants:
        return Refused(f"kernel {kernel.kind} has no variant for a CPU")
    able = _variants(kernel)
    if not able:
        what = "torch modules" if kernel.modules else "these sizes and options"
        return Refused(f"of its variants {', '.join(kind.variants)} none computes {what}")
    return Refused(", ".join(f"{name} {_lack(name, v, device)}" for name, v in able.items()))


def _lack(name: str, variant: Variant, device: Device) -> str | None:
    """The lack of `device` that keeps a variant from running there, as a predicate; or None."""
    if variant.cores > device.width:
        return f"needs {variant.cores} cores and the device has {device.width}"
    if name.startswith("torch") and device.figures.get("torch") == 0:
        return f"needs torch; {torch_threads.INSTALL}"
    if name.endswith("bf16") and device.figures.get("bfloat16") == 0:
        return "needs bfloat16 instructions"
    return None


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Prepares `kernel` over `buffers`, compiling it where needed; runs nothing but env resets.

    Safe on a replay that holds no row yet: sampling then returns row 0. Environments start here
    (`primitives.envs`), so set rng.env_step before.

    Raises:
        UnsupportedError: a kind, variant or program that it cannot run.
        KeyError: a buffer is missing.
        ValueError: a buffer has another shape or type.
    """
    threads = torch_threads.threads_of(variant)
    if threads > 1:
        if kind_of(kernel).structure != "gradient":
            raise UnsupportedError(
                f"kernel {kernel.kind} has no variant {variant!r}: gradient steps alone have "
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
    """Greedy actions for a batch of observations (rows, O); arguments are those of `greedy`."""
    return greedy(kernel, params, low, high, choices)(np.asarray(obs, np.float32))


def greedy(
    kernel: Kernel,
    params: npt.NDArray[np.floating[Any]],
    low: npt.NDArray[np.float32] | None = None,
    high: npt.NDArray[np.float32] | None = None,
    choices: Sequence[int] | None = None,
) -> Greedy:
    """A policy without exploration: observations (rows, O), float32, to actions.

    kernel: the one that acts.
    params: as policy.X, X its network; of a table the table. They are read at each call.
    low, high: bounds of continuous actions (A), infinite where there are none.
    choices: of a factored action, how many each component has.

    Observations of a table are the numbers of states. Discrete actions are int64 (rows,): the
    output of largest value; of a duelling network the action of largest advantage. Continuous ones
    are float32 (rows, A): the first A outputs through tanh, or all of them, clipped, where samples
    are stored unclipped. Factored ones are int64 (rows, A). Where the kernel has a program, it
    chooses (`primitives.torch.off_policy.act_greedily`).

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
    half = np.float32(0.5) * (high - low)
    if "act.sample" in kind.arrays(kernel):
        scaled = np.isfinite(half)  # a component without both bounds is not
        least, half = np.where(scaled, low, -1), np.where(scaled, half, 1)
        middle = (least + half).astype(np.float32)
        return lambda obs: np.clip(middle + half * network(obs), low, high).astype(np.float32)
    middle = low + half
    return lambda obs: middle + half * np.tanh(network(obs)[:, :act])
