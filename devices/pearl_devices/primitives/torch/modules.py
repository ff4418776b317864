"""Networks that are user-defined modules: `module:callable` of (inputs, outputs).

`callable(inputs, outputs)` returns a torch.nn.Module that maps float32 (B, *inputs) to float32
(B, outputs). inputs is the shape of one observation, or (n,) if a critic also takes the action. Its
parameters lie in PEARL's arrays, one flat vector in the order of `named_parameters`, each in
torch's own layout. A module with buffers (batch normalisation) is refused, because buffers lie
elsewhere. The module runs in evaluation mode, without dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pearl_devices.kernel import Module
from pearl_devices.user_imports import import_function

BUILD_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError),
    *(RuntimeError, TypeError, ValueError),
)
"""Errors that user-defined code may raise while it builds and runs a module."""


def build(program: str, inputs: Sequence[int], outputs: int, seed: int | None = None) -> nn.Module:
    """Build the module, on the CPU.

    seed: of its first values, which then depend on nothing else; None: torch's current state.

    Raises:
        ValueError: The module cannot be built, has buffers, or has no float32 parameters.
    """
    where = f"network {program!r} of inputs {tuple(inputs)} and {outputs} outputs"
    try:
        make = import_function(program)
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            made = make(tuple(inputs), outputs)
    except BUILD_ERRORS as error:
        raise ValueError(f"{where} cannot be built: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"{where}: it is a {type(made).__name__}; it must be a torch.nn.Module")
    held = [name for name, _ in made.named_buffers()]
    if held:
        raise ValueError(
            f"{where} has buffers ({', '.join(held[:4])}), which no checkpoint would hold; use "
            "layers without them, such as LayerNorm instead of BatchNorm"
        )
    wrong = [n for n, p in made.named_parameters() if p.dtype != torch.float32]
    if wrong or not list(made.parameters()):
        what = f"parameters that are not float32 ({wrong[0]})" if wrong else "no parameters"
        raise ValueError(f"{where} has {what}; it needs float32 ones")
    return made.eval()


@lru_cache(maxsize=64)
def measure(program: str, inputs: tuple[int, ...], outputs: int) -> Module:
    """Build the module once and count its parameters and operations.

    Raises:
        ValueError: The module cannot be built, fails, or has outputs of another shape.
    """
    from torch.utils.flop_counter import FlopCounterMode

    made = build(program, inputs, outputs)
    numbers = operations = 0

    def note(layer: nn.Module, given: Any, out: Any) -> None:
        nonlocal numbers, operations
        operations += 1
        numbers += out.numel() if isinstance(out, Tensor) else 0

    hooks = [m.register_forward_hook(note) for m in made.modules() if not list(m.children())]
    rows = 2
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counted:
            out = made(torch.zeros(rows, *inputs))
    except BUILD_ERRORS as error:
        raise ValueError(f"network {program!r} fails on {(rows, *inputs)}: {error}") from error
    for hook in hooks:
        hook.remove()
    if not isinstance(out, Tensor) or tuple(out.shape) != (rows, outputs):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"network {program!r} gives {got}; it must give {(rows, outputs)}")
    return Module(
        program,
        inputs,
        outputs,
        params=sum(p.numel() for p in made.parameters()),
        flops=counted.get_total_flops() / rows,
        numbers=numbers // rows,
        operations=max(operations, 1),
    )


def first_values(of: Module, seed: int) -> npt.NDArray[np.float32]:
    """Return the flat vector of the module's first parameters."""
    made = build(of.program, of.inputs, of.outputs, seed % 2**63)
    flat: npt.NDArray[np.float32] = np.concatenate(
        [p.detach().numpy().reshape(-1) for p in made.parameters()]
    )
    return flat


def named(of: Module, flat: Tensor) -> dict[str, Tensor]:
    """Parameters by their names in the module, sharing the memory of `flat`."""
    made = build(of.program, of.inputs, of.outputs)
    shapes = {name: tuple(p.shape) for name, p in made.named_parameters()}
    return dict(zip(shapes, split(flat, shapes.values()), strict=True))


def split(flat: Tensor, shapes: Iterable[tuple[int, ...]]) -> list[Tensor]:
    """Return consecutive pieces of `flat` in these shapes, sharing its memory."""
    pieces, offset = [], 0
    for shape in shapes:
        size = math.prod(shape)
        pieces.append(flat[offset : offset + size].view(shape))
        offset += size
    return pieces


def structure(
    of: Module,
) -> tuple[Callable[[Tensor], list[Tensor]], Callable[[Sequence[Tensor], Tensor], Tensor]]:
    """Return the parts of a flat vector, and the module's function of (parts, rows)."""
    made = build(of.program, of.inputs, of.outputs)
    names = [name for name, _ in made.named_parameters()]
    shapes = [tuple(p.shape) for p in made.parameters()]

    def forward(parts: Sequence[Tensor], x: Tensor) -> Tensor:
        held = dict(zip(names, parts, strict=True))
        rows = x.reshape(x.shape[0], *of.inputs)
        out: Tensor = torch.func.functional_call(made, held, (rows,))
        return out

    return lambda flat: split(flat, shapes), forward
