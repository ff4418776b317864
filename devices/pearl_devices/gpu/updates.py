"""The variant `fused`: all gradient steps of a firing in one launch of one block.

The block keeps what it works on in shared memory as far as that goes, in the order of `_placed`;
the rest lies in scratch memory of the device. Sizes are constants of the programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pearl_devices.base import Call, UnsupportedError
from pearl_devices.gpu.driver import Arrays, Driver
from pearl_devices.gpu.program import Program
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.fused import DEEPEST, misfit

STATIC_BYTES = 4096
"""Shared memory that the sources declare by themselves, at most."""
STAND_IN_BYTES = 227 * 1024
"""Shared memory of a block where no GPU says how much it has: that of the H100 (NVIDIA, "CUDA C++
Programming Guide", compute capability 9.0)."""
ROWS = (64, 32, 16)
"""How many rows a pass takes at most, the first that leaves room for the parameters."""

Pieces = Mapping[str, int]
"""Name in the source → floats."""


def _up4(count: int) -> int:
    return -(-count // 4) * 4


def _pitch(width: int) -> int:
    """Floats from one row of a matrix to the next, as in block_nets.cuh."""
    return _up4(width) + 4 * (_up4(width) // 4 % 2 == 0)


def _size(layers: Sequence[int]) -> int:
    """Floats of padded parameters."""
    return sum((_up4(i) + 1) * _pitch(o) for i, o in pairwise(layers))


def _flat(layers: Sequence[int]) -> int:
    return sum((i + 1) * o for i, o in pairwise(layers))


def _acts(layers: Sequence[int], rows: int) -> int:
    """Floats of the outputs of all layers."""
    return rows * sum(_pitch(o) for o in layers[1:])


def _net(name: str, layers: Sequence[int], rows: int) -> dict[str, int]:
    """Constants that describe a network."""
    widths = (*layers, *[0] * (DEEPEST + 1 - len(layers)))
    return {
        **{f"{name}_{i}": width for i, width in enumerate(widths)},
        f"{name}_SIZE": _size(layers),
        f"{name}_ACTS": _acts(layers, rows),
    }


def _learns(name: str, layers: Sequence[int], *, target: bool = True, copies: int = 1) -> Pieces:
    """What a network that learns keeps beyond its parameters."""
    flat, size = copies * _flat(layers), copies * _size(layers)
    return {
        f"{name}_GRAD": size,
        **({f"{name}_TARGET": size} if target else {}),
        f"{name}_M": flat,
        f"{name}_V": flat,
    }


def _placed(pieces: Pieces, limit: int) -> tuple[dict[str, int], int, int]:
    """Constants that say where each piece lies, floats of shared memory, floats of scratch memory.

    Each goes to shared memory if it still fits there, in the order given.
    """
    constants: dict[str, int] = {}
    used = {1: 0, 0: 0}
    for name, count in pieces.items():
        floats = _up4(count)
        shared = int(4 * (used[1] + floats) <= limit)
        constants |= {f"{name}_SHARED": shared, f"{name}_AT": used[shared]}
        used[shared] += floats
    return constants, used[1], used[0]


def _limit(driver: Driver) -> int:
    """Bytes of dynamic shared memory that a block may have."""
    if driver.device.type == "cuda":
        import torch

        properties: Any = torch.cuda.get_device_properties(driver.device)
        return int(properties.shared_memory_per_block_optin) - STATIC_BYTES
    return STAND_IN_BYTES - STATIC_BYTES


def _bound(
    kernel: Kernel,
    driver: Driver,
    pieces: Any,
    constants: Mapping[str, int],
    nets: Mapping[str, Sequence[int]],
    arguments: Iterable[Any],
    last: Sequence[int],
) -> Call:
    """The launch of `update_X` in X.cu, X the algorithm.

    pieces: rows of a pass → (what a pass needs, then parameters; what else goes to shared memory).
    nets: name in the source → widths. last: arguments after the scratch memory.

    Raises:
        UnsupportedError: networks that one block does not take.
    """
    import torch

    if wrong := misfit(kernel):
        raise UnsupportedError(
            f"kernel {kernel.kind}, variant 'fused': {wrong}; one block of GPU threads does all of "
            "it, so take the variant 'graph' or 'eager' instead"
        )
    limit, batch = _limit(driver), kernel.dim("batch")
    choices = [min(rows, _up4(batch)) for rows in ROWS]
    needed = {rows: 4 * sum(map(_up4, pieces(rows)[0].values())) for rows in choices}
    rows = next((rows for rows in choices if needed[rows] <= limit), choices[-1])
    first, rest = pieces(rows)
    places, shared, scratch = _placed({**first, **rest}, limit)
    widest = max(width for layers in nets.values() for width in layers[1:])
    described = {n: c for name, layers in nets.items() for n, c in _net(name, layers, rows).items()}
    name = kernel.kind.partition(".")[2]
    threads = 256 if widest <= 64 else 512
    program = Program(
        f"{name}.cu",
        {
            "THREADS": threads,
            "ROWS": rows,
            "BATCH": batch,
            "SHARED_FLOATS": shared,
            "SCRATCH_FLOATS": scratch,
            **constants,
            **described,
            **places,
        },
    )
    room = torch.zeros(max(scratch, 1), dtype=torch.float32, device=driver.device)
    return driver.bound(
        program, f"update_{name}", (1,), (threads,), (*arguments, room, *last), 4 * shared
    )


def _stored(name: str, arrays: Arrays, *, target: bool = True) -> list[Any]:
    """What STORED of block_nets.cuh names."""
    parts = ("", ".target", ".m", ".v", ".steps") if target else ("", ".m", ".v", ".steps")
    learner = [arrays[f"learner.{name}{part}"] for part in parts]
    return [*learner, arrays[f"hyper.lr.{name}"], arrays[f"loss.{name}"]]


def _batch(arrays: Arrays) -> list[Any]:
    names = ("obs", "action", "reward", "next_obs", "discount", "weight", "td")
    return [arrays[f"batch.{name}"] for name in names]


def _rules(arrays: Arrays) -> list[Any]:
    names = ("adam", "tau", "target_every", "clip_norm", "huber")
    return [arrays["learner.step"], *(arrays[f"hyper.{name}"] for name in names)]


def bind_dqn(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """update.dqn: `steps` gradient steps on batch.*, absolute TD errors to batch.td."""
    layers = kernel.layers()

    def pieces(rows: int) -> tuple[Pieces, Pieces]:
        inputs = rows * _pitch(layers[0])
        first = {"X": inputs, "AHEAD": inputs, "ACTS": _acts(layers, rows)}
        return {**first, "Q_PARAMS": _size(layers)}, _learns("Q", layers)

    constants = {
        "DOUBLE": kernel.dim("double"),
        "DUELLING": int("duelling" in kernel.dims and kernel.dim("duelling")),
    }
    arguments = [*_batch(arrays), *_stored("q", arrays), *_rules(arrays)]
    return _bound(
        kernel, driver, pieces, constants, {"Q": layers}, arguments, [kernel.dim("steps")]
    )
