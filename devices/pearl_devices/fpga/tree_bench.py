"""`Tree`: the sum tree's Verilog in simulation, with the interface of a host driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

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
        leaves = np.zeros(len(prefixes), np.uint64)
        return self._run("draw", prefixes, leaves), leaves.astype(np.int64)

    def set(self, leaves: Sequence[int], priorities: Sequence[int], apart: int = 3) -> int:
        """Make sets, one in `apart` cycles; return the cycles."""
        return self._run("set", leaves, np.array(priorities, np.uint64), apart)

    def _run(self, name: str, asked: Sequence[int], other: Numbers, *more: int) -> int:
        given = np.array(asked, np.uint64)
        count = ctypes.c_long(len(given))
        function = getattr(self._library, f"tree_{name}")
        cycles = function(self._tree, count, *more, given.ctypes, other.ctypes)
        if cycles < 0:
            raise RuntimeError(f"the simulated tree did not end its {name}s")
        return int(cycles)
