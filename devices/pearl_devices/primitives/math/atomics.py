"""Whole numbers in memory that threads and processes share, read and written in order.

A store releases and a load acquires: a thread that has read a number also sees everything that its
writer wrote before it. Addresses are those of aligned int64 cells.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

CELL = 128 if platform.machine().lower() in ("arm64", "aarch64") else 64
"""Bytes from one cell to the next: a cache line, so that two threads do not share a line. Apple's
cores have lines of 128 bytes, other cores of Arm's architecture 64 or 128."""

give_way: Any = types.ExternalFunction("sched_yield", types.int32())
"""Let another thread have this core, if one waits for it."""


def _loading(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), code


def _storing(typing: Any, address: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


def _fencing(typing: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


load: Any = intrinsic(_loading)
store: Any = intrinsic(_storing)
fence: Any = intrinsic(_fencing)
