"""`Tree`: the sum tree's Verilog in simulation, with the interface of a host driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices.fpga.resources import TreeEngine
from pearl_devices.fpga.simulation import built, loaded

Numbers = npt.NDArray[np.uint64]


class Tree:
    """A simulated sum tree. library: replaces the build, in tests."""

    def __init__(self, engine: TreeEngine, library: Path | None = None) -> None:
        self.depth = engine.depth
        self._library = loaded(library or built("tree", engine.parameters(), 0, 0))
        for name in ("make", "total", "draw", "set"):
            function = getattr(self._library, f"tree_{name}")
            function.restype = ctypes.c_void_p if name == "make" else ctypes.c_long
        self._library.tree_total.restype = ctypes.c_uint64
        self._tree = ctypes.c_void_p(self._library.tree_make())

    def close(self) -> None:
        """Free the tree, which must not be used afterwards."""
        self._library.tree_free(self._tree)

    @property
    def total(self) -> int:
        """The sum of all priorities."""
        return int(self._library.tree_total(self._tree))

    def draw(self, prefixes: Sequence[int]) -> tuple[int, npt.NDArray[np.int64]]:
        """Make draws, one per cycle; return the cycles and the leaves."""
        given, leaves = np.array(prefixes, np.uint64), np.zeros(len(prefixes), np.uint64)
        pointer: Any = ctypes.c_void_p
        cycles = self._library.tree_draw(
            self._tree, ctypes.c_long(len(given)), given.ctypes.data_as(pointer),
            leaves.ctypes.data_as(pointer),
        )  # fmt: skip
        if cycles < 0:
            raise RuntimeError("the simulated tree did not end its draws")
        return int(cycles), leaves.astype(np.int64)

    def set(self, leaves: Sequence[int], priorities: Sequence[int], apart: int = 3) -> int:
        """Make sets, one in `apart` cycles; return the cycles."""
        at, values = np.array(leaves, np.uint64), np.array(priorities, np.uint64)
        pointer: Any = ctypes.c_void_p
        cycles = self._library.tree_set(
            self._tree, ctypes.c_long(len(at)), apart, at.ctypes.data_as(pointer),
            values.ctypes.data_as(pointer),
        )  # fmt: skip
        if cycles < 0:
            raise RuntimeError("the simulated tree did not end its sets")
        return int(cycles)
