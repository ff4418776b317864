"""Memory that the arrays of a run need, compared with the free memory of this host."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from pearl.errors import SpecError
from pearl_devices import Kernel
from pearl_devices.buffers import specs
from pearl_devices.system import host_system

if TYPE_CHECKING:
    from pearl.spec.system import System


def memory_warning(system: System) -> str | None:
    """Return the warning of `check` about a replay larger than the free memory.

    None if the replay fits, if there is no replay, or if no device of this host would hold it.
    """
    from pearl.spec.user_code import build_graph

    free, _ = host_system.free_bytes()
    if free is None or not any(d.real for d in system.platform.devices):
        return None
    size = build_graph(system).states.get("replay", 0.0)
    capacity = replay_capacity(system)
    if size <= free or capacity is None:
        return None
    return (
        f"algorithm.replay.capacity: given {capacity}; the replay takes {size:.3g} bytes, and "
        f"{free:.3g} bytes of this host's memory are free now: lower it to at most "
        f"{_count_fitting_rows(capacity, free, size)}, or training will not start"
    )


def replay_capacity(system: System) -> int | None:
    """Return the capacity of a system's replay in rows; None without a replay."""
    replay = getattr(system.algorithm, "replay", None)
    return None if replay is None else int(replay.capacity)


def array_bytes(kernels: Iterable[Kernel]) -> dict[str, int]:
    """Map the name of every array of these kernels to its bytes."""
    return {
        name: math.prod(shape) * np.dtype(dtype).itemsize
        for kernel in kernels
        for name, (shape, dtype) in specs(kernel).items()
    }


@contextmanager
def explaining_memory_errors(kernels: Iterable[Kernel], capacity: int | None) -> Iterator[None]:
    """Within this context, allocate the arrays of a run; a lack of memory becomes a SpecError.

    capacity: rows of the replay; None without a replay.

    Raises:
        SpecError: the arrays are larger than free memory and swap, or the system refuses the
            allocation, for example because of a limit of the process.
    """
    sizes = array_bytes(kernels)
    total = sum(sizes.values())
    replay = sum(size for name, size in sizes.items() if name.startswith("replay."))
    free, swap = host_system.free_bytes()
    if free is not None and total > free + swap:
        room = f"{free + swap:.3g} bytes of memory and swap are free"
        raise SpecError(_explain_refusal(total, replay, room, capacity, free + swap))
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise SpecError(_explain_refusal(total, replay, REFUSED, capacity, None)) from None


REFUSED = "the system does not give this process enough memory (for example by `ulimit -v`)"


def _explain_refusal(
    total: int, replay: int, room: str, capacity: int | None, free: float | None
) -> str:
    text = f"memory: the arrays of this run take at least {total:.3g} bytes, and {room}: "
    if not replay or capacity is None:
        return text + "train with fewer environments or smaller networks, or on another machine"
    text = text.removesuffix(": ") + f"; its replay takes {replay:.3g} of them: lower "
    text += f"algorithm.replay.capacity ({capacity})"
    if free is not None and free > total - replay:
        text += f" to at most {_count_fitting_rows(capacity, free - (total - replay), replay)}"
    return text + ", or train on another machine"


def _count_fitting_rows(capacity: int, free: float, size: float) -> int:
    """The rows that fit in `free` bytes, if `capacity` rows take `size`, rounded down to two
    digits.
    """
    found = int(capacity * free / size)
    unit = int("1".ljust(len(str(found)) - 1, "0"))
    return found // unit * unit
