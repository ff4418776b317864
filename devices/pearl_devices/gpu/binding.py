"""The variants of kernels on a GPU, and how they are bound to device arrays."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pearl_devices.base import Buffers, Call, Device, UnsupportedError
from pearl_devices.buffers import specs
from pearl_devices.device_kind import Refused
from pearl_devices.gpu.kernels import find_written
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import Variant, kind_of

if TYPE_CHECKING:
    from pearl_devices.gpu.driver import Arrays, Driver

EAGER = {"torch": "eager", "torch-bf16": "eager-bf16"}
"""Variant of torch on a CPU → variant with the same program over device tensors."""

TURNS = "loop."
"""Host arrays that the runtime writes before or during a call."""


def torch_variants(kernel: Kernel) -> dict[str, Variant]:
    """Return the torch programs that can run `kernel`, by variant name."""
    found = kind_of(kernel).variants
    return {EAGER[n]: v for n, v in found.items() if n in EAGER and _can(kernel, n, v)}


def _can(kernel: Kernel, name: str, variant: Variant) -> bool:
    return variant.fits(kernel) and (not kernel.modules or name == "torch")


def handwritten_variants(kernel: Kernel) -> dict[str, Variant]:
    """Return the hand-written GPU variants that can run `kernel`, by name."""
    found = find_written(kernel)
    return {n: v for n, v in found.items() if v.fits(kernel) and not kernel.modules}


def list_ways(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return the ways to run `kernel` as (variant, streaming multiprocessors)."""
    able = (*torch_variants(kernel), *handwritten_variants(kernel))
    return _refused(kernel) if not able else tuple((name, device.width) for name in able)


def _refused(kernel: Kernel) -> Refused:
    """Return why no variant is offered."""
    kind = kind_of(kernel)
    known = (*(EAGER[name] for name in kind.variants if name in EAGER), *find_written(kernel))
    if not known:
        return Refused(f"kernel {kernel.kind} has neither a torch program nor CUDA code")
    what = "torch modules" if kernel.modules else "these sizes and options"
    if kernel.dims.get("units"):
        what = "observations that are stored as uint8"
    return Refused(f"none of its variants {', '.join(known)} computes {what}")


def on_host(kernel: Kernel, variant: str, name: str) -> bool:
    """Whether a variant has this array in the host's memory."""
    found = {**torch_variants(kernel), **handwritten_variants(kernel)}.get(variant)
    return name.startswith(TURNS) or (found is not None and found.on_host(name))


def device_of(kernel: Kernel, variant: str, buffers: Buffers) -> Any:
    """Return the torch device on which the arrays lie.

    Raises:
        UnsupportedError: all arrays lie in the host's memory.
    """
    import torch

    found = [a.device for a in buffers.values() if isinstance(a, torch.Tensor)]
    if not found:
        raise UnsupportedError(
            f"kernel {kernel.kind}, variant {variant!r}: its arrays lie in the host's memory; on a "
            "GPU it runs over their twins (`memory(number).twin`)"
        )
    return found[0]


def bind_kernel(
    kernel: Kernel, variant: str, buffers: Buffers, driver: Callable[[], Driver]
) -> Call:
    """Prepare `kernel` over `buffers`: device tensors, and numpy arrays where `on_host` says so.

    Raises:
        UnsupportedError: it cannot run the kind or variant, or all arrays lie in the host's memory.
        KeyError: a buffer is missing.
        ValueError: a buffer has a wrong shape or place.
    """
    from pearl_devices import torch_threads

    torch_programs, by_hand = torch_variants(kernel), handwritten_variants(kernel)
    if variant not in torch_programs and variant not in by_hand:
        raise UnsupportedError(
            f"kernel {kernel.kind} (program {kernel.program!r}) has no variant {variant!r} on a "
            f"gpu; it has {[*torch_programs, *by_hand] or 'none'}"
        )
    device = device_of(kernel, variant, buffers)
    for name, (shape, _) in specs(kernel).items():
        if name not in buffers:
            raise KeyError(f"kernel {kernel.kind}: buffer {name} is missing; it must be {shape}")
        array = buffers[name]
        if tuple(array.shape) != shape:
            raise ValueError(
                f"kernel {kernel.kind}: buffer {name} is {tuple(array.shape)}; it must be {shape}"
            )
        here = getattr(array, "data_ptr", None) is None
        if here != on_host(kernel, variant, name) or not (here or array.device == device):
            place = "the host" if on_host(kernel, variant, name) else str(device)
            raise UnsupportedError(
                f"kernel {kernel.kind}, variant {variant!r}: buffer {name} must lie on {place}"
            )
    if variant in by_hand:
        return cast(Call, _function(by_hand[variant], kernel)(kernel, buffers, driver()))
    torch_threads.limit_to_one()
    return cast(Call, _function(torch_programs[variant], kernel)(kernel, buffers))


def _function(variant: Variant, kernel: Kernel) -> Callable[..., Any]:
    module, _, function = variant.program(kernel).partition(":")
    return cast(Callable[..., Any], getattr(import_module(module), function))


def bind_sync(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind param_sync: policy.X ← learner.X, by torch."""
    names = str(kernel.args["network"]).split("+")
    pairs = [(arrays[f"policy.{name}"], arrays[f"learner.{name}"]) for name in names]

    def call() -> None:
        for policy, learner in pairs:
            policy.copy_(learner)

    return call
