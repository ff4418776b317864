"""Programs of the simulated FPGA's learner (`rtl/engine.v`), and their cycles.

A program has the addresses of the matrices and a sequence of instructions. The cycles of an
instruction are exact: the tests compare them with the Verilog without tolerance. A matrix is
stored in blocks of N × N elements, and its last row and column of blocks are padded. Activations
have no column for the bias: the engine inserts the 1 during a product.
"""

from __future__ import annotations

from dataclasses import dataclass

LATENCY = 4
"""Cycles from the operands of a float32 multiply-accumulate to its sum: Intel, DSP Builder handbook
(683337), MultAcc: "block latency is 4 cycles"; AMD AM004 gives 4 for the DSPFP32 of Versal."""

OPS = ("halt", "load", "store", "mul", "loss", "norm", "adam", "squash", "back")
PLACES = ("A", "B", "T", "M", "V", "sample", "step", "bounds", "heads")
"""Places that a load writes, as numbers in the instruction: activations, parameters, targets, both
moments, records of samples (reward, discount, weight, action), constants of a step (size, root,
mode of the target), bounds of actions. A store may also read the outputs of a pass (heads)."""

MOST_ROWS = 4095
"""Largest number of rows of a sub-batch, and of terms of a sum: counters have 12 bits."""

PROGRAM_WORDS = 256
"""Largest number of instructions of a program: the counter has 8 bits."""


@dataclass(frozen=True)
class Shape:
    """The size of an engine.

    array: N of the N × N elements, a power of two.
    lanes: number of lanes of Adam, a power of two, at most N.
    latency: cycles of a float32 block.
    """

    array: int
    lanes: int
    latency: int = LATENCY

    def __post_init__(self) -> None:
        for name in ("array", "lanes"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"engine: {name} is {value}; it must be a power of two")
        if self.array < 2 or self.lanes > self.array:
            raise ValueError(
                f"engine: {self.lanes} lanes with an array of {self.array} × {self.array} "
                "elements; the array must be at least 2 × 2, with no more lanes than rows"
            )


@dataclass(frozen=True)
class Matrix:
    """A matrix in a memory.

    base: index of its first block.
    down, across: number of blocks in a column and in a row.
    """

    base: int
    down: int
    across: int


@dataclass(frozen=True)
class Instruction:
    """One instruction. Each field is the field of `engine.v` with the same name. A product with
    `variant` continues the sums of the gradient; with `waits`, a later product continues its sums.
    """

    op: str
    where: int = 0
    k: int = 0
    rt: int = 1
    ct: int = 1
    rl: int = 1
    cl: int = 1
    lane0: int = 0
    abase: int = 0
    a_sr: int = 0
    a_sk: int = 0
    bbase: int = 0
    b_sc: int = 0
    b_sk: int = 0
    dbase: int = 0
    dbase2: int = 0
    d_sr: int = 0
    acol: bool = False
    ones: bool = False
    brow: bool = False
    from_target: bool = False
    relu: bool = False
    masks: bool = False
    waits: bool = False
    variant: bool = False

    def word(self) -> int:
        """The instruction as 256 bits for `engine.v`."""
        flags = ("acol", "ones", "brow", "from_target", "relu", "masks", "waits", "variant")
        places = {
            "where": (12, 8), "k": (20, 12), "rt": (32, 12), "ct": (44, 12), "rl": (56, 8),
            "cl": (64, 8), "lane0": (72, 8), "abase": (80, 16), "a_sr": (96, 12),
            "a_sk": (108, 12), "bbase": (128, 16), "b_sc": (144, 12), "b_sk": (156, 12),
            "dbase": (176, 16), "dbase2": (192, 16), "d_sr": (208, 12),
        }  # fmt: skip
        word = OPS.index(self.op)
        for bit, name in enumerate(flags, 4):
            word |= getattr(self, name) << bit
        for name, (low, bits) in places.items():
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise ValueError(f"instruction {self.op}: {name} is {value}, of {bits} bits")
            word |= value << low
        return word

    def walked(self, n: int) -> int:
        """Return the rows of N words that a load, a store or Adam processes."""
        return self.ct * ((self.rt - 1) * n + self.rl)

    def cycles(self, shape: Shape) -> int:
        """Return the cycles until the fetch of the next instruction, without stalls."""
        n, latency = shape.array, shape.latency
        if self.op == "halt":
            return 2
        if self.op == "load":
            return 2 + self.walked(n)
        if self.op == "store":
            return 4 + self.walked(n)
        if self.op == "mul":
            return 2 + product_cycles(self.rt * self.ct, self.k, self.rl, shape)
        if self.op == "loss":
            return 2 + self.k + (n.bit_length() - 1) + 3 + 3 * latency
        if self.op == "norm":
            return 2 + 3 * latency + n + 55
        if self.op == "adam":
            drain = 8 * latency + 56 if self.waits else 0
            return 2 + self.walked(n) * (n // shape.lanes) + drain
        return 2 + self.k * self.cl + 3 * latency + (3 if self.op == "squash" else 2)


def product_cycles(tiles: int, k: int, last_rows: int, shape: Shape) -> int:
    """Return the cycles of a product in the array.

    The product has `tiles` tiles of N × N with sums of k terms; the last tile has `last_rows` rows.
    A tile takes at least 2N cycles, during which the results of the tile before leave the array.
    """
    n = shape.array
    return (tiles - 1) * max(k, 2 * n) + k + n + shape.latency + 3 + 2 * (last_rows - 1)


CYCLES_PER_LEVEL = 3  # of the tree: read a row, compare or change the row, pass the result on


def draw_cycles(depth: int, draws: int) -> int:
    """Return the cycles of `draws` draws, one per cycle, until the last leaf is known."""
    return CYCLES_PER_LEVEL * depth + draws - 1


def set_cycles(depth: int, sets: int) -> int:
    """Return the cycles of `sets` sets, one in three cycles, until the root has the last sum."""
    return CYCLES_PER_LEVEL * (depth + sets - 1)


@dataclass
class Memory:
    """An allocator of the blocks of a memory, in increasing order."""

    array: int
    blocks: int = 0

    def matrix(self, rows: int, columns: int) -> Matrix:
        down, across = -(-rows // self.array), -(-columns // self.array)
        self.blocks += down * across
        return Matrix(self.blocks - down * across, down, across)
