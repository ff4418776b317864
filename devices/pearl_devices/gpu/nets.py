"""How a forward pass of a dense network is split for a GPU; see `sources/nets.cuh`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_devices.gpu.driver import Driver
from pearl_devices.kernels.counting import parameters

if TYPE_CHECKING:
    import torch

SHARED_BYTES = 64 * 1024
"""Shared memory of a block in bytes: the most that Turing gives a block (CUDA programming guide,
compute capability 7.5). Newer GPUs and Volta give more; three such blocks fit on an H100's
multiprocessor."""
BLOCKS = 1024
"""Most blocks of a launch; with more tiles of rows, a block takes several."""
FEW = 2048
"""Most rows with small tiles, which spread over the multiprocessors."""
THREADS = 256


@dataclass(frozen=True)
class Pass:
    """A forward pass of `layers` (widths, input first) for `rows` rows.

    tile: rows that a block takes at once. held: weights lie in shared memory. wide: activations do
    not lie in shared memory.
    """

    layers: tuple[int, ...]
    rows: int
    tile: int
    held: bool
    wide: bool

    @property
    def _activations_bytes(self) -> int:
        return 2 * max(self.layers) * (self.tile + 4) * 4

    @property
    def _held_bytes(self) -> int:
        return -(-parameters(self.layers) // 4) * 16

    @property
    def shared_bytes(self) -> int:
        return (not self.wide) * self._activations_bytes + self.held * self._held_bytes

    @property
    def blocks(self) -> int:
        return min(-(-self.rows // self.tile), BLOCKS)

    def constants(self, *, curved: bool) -> Mapping[str, int]:
        """Return the constants of a program that includes nets.cuh. curved: hidden layers use
        tanh."""
        return {
            "ROWS": self.tile,
            "PER": 8 if self.tile == 32 else 4,
            "CURVED": int(curved),
            "HELD": int(self.held),
            "WIDE": int(self.wide),
        }

    def arguments(self, driver: Driver) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
        """Return widths, scratch, and (layers, size, widest), as kernels take them."""
        import torch

        numbers = self._activations_bytes // 4 * self.blocks if self.wide else 0
        return (
            torch.tensor(self.layers, dtype=torch.int64, device=driver.device),
            torch.zeros(numbers, dtype=torch.float32, device=driver.device),
            (len(self.layers) - 1, parameters(self.layers), max(self.layers)),
        )


def split_pass(layers: tuple[int, ...], rows: int) -> Pass:
    """Return the pass with the largest tiles; its weights lie in shared memory if they fit."""
    tiles = (8,) if rows <= FEW else (32, 8)
    found = (
        Pass(layers, rows, tile, held, wide)
        for wide in (False, True)
        for tile in tiles
        for held in (True, False)
    )
    return next(p for p in found if p.shared_bytes <= SHARED_BYTES)
