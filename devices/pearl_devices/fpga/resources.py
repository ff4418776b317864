"""Resources of an FPGA that designs need: DSP blocks, memory blocks, logic (`logic`).

The counts of DSP blocks and memories are exact for the Verilog in `rtl/`. Each memory counts as
block RAM, also a small memory that a tool may put into logic.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pearl_devices.base import Device, FigureError
from pearl_devices.fpga.learner import LearnerProgram
from pearl_devices.fpga.logic import (
    DEEPEST,
    Logic,
    golden_table,
    logic_misfit,
    logic_of,
    tree_entry,
)
from pearl_devices.fpga.program import PROGRAM_WORDS
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import F32, activations_bytes, parameters
from pearl_devices.kernels.replay import is_prioritised, tree_depth, tree_levels

LEAF_BITS = 20
"""Bits of a priority in the integer tree."""

TREE_WIDTH = 1
"""Width of a tree's mode: the engine needs no DSP block, but the width of a mode is at least 1."""

RELEASED_DSP_PER_LEVEL = 2  # as in PEARL's released model: an adder and a comparator per level


@dataclass(frozen=True)
class OnChip:
    """The blocks of one kind of memory on a chip.

    blocks: number of blocks.
    bits: bits of a block.
    word_bits: bits of the widest word of a block.
    """

    blocks: float
    bits: float
    word_bits: float


def figure(device: Device, name: str) -> float:
    """Return one of `device.figures`, above 0.

    Raises:
        FigureError: the figure is missing or 0; the text names the given and the needed figures.
    """
    found = device.figures.get(name, 0.0)
    if not found > 0:
        what = f"gives {name} as {found:g}" if name in device.figures else f"has no figure {name!r}"
        raise FigureError(
            f"device {device.name!r} of kind fpga {what}; it gives {sorted(device.figures)}; "
            "an FPGA needs these figures, above 0: clock_hz, ram_blocks, ram_block_bits (bits of a "
            "block: 20480 for an Intel M20K, 36864 for an AMD block RAM) and ram_word_bits (widest "
            "word of a block: 40 and 72); with UltraRAM also ultraram_blocks, ultraram_block_bits "
            "and ultraram_word_bits"
        )
    return found


def on_chip(device: Device) -> tuple[OnChip, ...]:
    """Return the kinds of memory on chip, smallest blocks first.

    Raises:
        FigureError: a figure is missing or 0.
    """
    kinds = ["ram"]
    if any(name.startswith("ultraram_") for name in device.figures):
        kinds.append("ultraram")
    found = (
        OnChip(
            *(figure(device, f"{kind}_{name}") for name in ("blocks", "block_bits", "word_bits"))
        )
        for kind in kinds
    )
    return tuple(sorted(found, key=lambda ram: ram.bits))


def memory_blocks(words: int, bits: int, ram: OnChip) -> int:
    """Return the blocks for one memory of `words` words with `bits` bits each."""
    return -int(-bits // ram.word_bits) * -int(-words // (ram.bits / ram.word_bits))


Sizes = list[tuple[int, int, int]]
"""Memories of a design: (number of equal memories, words of each, bits of a word)."""


def learner_memories(learner: LearnerProgram) -> Sizes:
    """Return the memories of `rtl/engine.v`."""
    n = learner.shape.array
    samples = -(-learner.rows // n) * n
    found = [
        (n, learner.blocks_a * n, 32),  # activations
        (n, learner.blocks_b * n, 32),  # parameters, gradients by activations
        (4 * n, learner.blocks_w * n, 32),  # target, moments, gradient
        (3 * n, learner.heads, 32),  # outputs of two passes, one pass stored twice
        (1, learner.blocks_a * n, n),  # ReLU's mask
        (1, samples, 128),  # reward, discount, weight, action
        (1, PROGRAM_WORDS, 256),  # the program
    ]
    if learner.action:
        found += [(1, samples * n, 32), (1, 512, 96)]  # tanh of the outputs, the table
    return found


def tree_memories(capacity: int, fanout: int) -> Sizes:
    """Return the memories of `rtl/tree.v`, leaves first: a row of `fanout` sums per node."""
    bits, digits, found, nodes = LEAF_BITS, fanout.bit_length() - 1, Sizes(), capacity
    while nodes > 1 or not found:
        nodes = -(-nodes // fanout)
        found.append((1, nodes, fanout * bits))
        bits += digits
    return found


def misfit(sizes: Sizes, memories: tuple[OnChip, ...], what: str) -> str:
    """Return why memories do not fit on chip; empty if they fit.

    The largest memory is placed first. Each memory goes into the kind of block of which it takes
    the smallest share of the free blocks.
    """
    left = [ram.blocks for ram in memories]
    for count, words, bits in sorted(sizes, key=lambda size: -size[1] * size[2]):
        takes = [count * memory_blocks(words, bits, ram) for ram in memories]
        part = [t / n if n else inf for t, n in zip(takes, left, strict=True)]
        share, at = min((share, i) for i, share in enumerate(part))
        if share > 1:
            return (
                f"{what} needs {takes[at]:,} memory blocks on chip for {count:,} × {words:,} words "
                f"of {bits} bits, {left[at]:,.0f} are free"
            )
        left[at] -= takes[at]
    return ""


@dataclass(frozen=True)
class TreeEngine:
    """A sum tree on chip.

    capacity: number of leaves.
    fanout: children of a node.
    """

    capacity: int
    fanout: int

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return len(tree_levels(self.capacity, self.fanout)) - 1

    def parameters(self) -> dict[str, int]:
        """Return the parameters of `rtl/tree.v`."""
        digits, depth = self.fanout.bit_length() - 1, self.depth
        return {
            "K": self.fanout, "LK": digits, "D": depth, "W": LEAF_BITS, "CAPACITY": self.capacity,
            "TOTAL": LEAF_BITS + depth * digits,
        }  # fmt: skip

    def memories(self) -> Sizes:
        """Return the memories of `rtl/tree.v`."""
        return tree_memories(self.capacity, self.fanout)

    def logic(self) -> Logic | None:
        """Return the logic, None if the table lacks the tree."""
        return logic_of(tree_entry(self.fanout, self.depth))

    def misfit(self, device: Device) -> str:
        """Return why the tree does not fit on a device; empty if it fits."""
        if self.depth > DEEPEST[self.fanout]:
            most = self.fanout ** DEEPEST[self.fanout]
            return f"the sum tree has {self.capacity:,} leaves, the engine at most {most:,}"
        large = misfit(self.memories(), on_chip(device), "the sum tree")
        return large or logic_misfit([self.logic()], device, "the sum tree")


def tree_engines(kernel: Kernel) -> list[TreeEngine]:
    """Return the sum trees for the priorities of a replay, fewest cycles first.

    The fan-out may differ from the spec's: sums are exact, so the fan-out changes no drawn leaf.
    The levels of the array `replay.tree` stay those of the spec.
    """
    found = [TreeEngine(kernel.dim("capacity"), fanout) for fanout in DEEPEST]
    return sorted(found, key=lambda tree: (tree.depth, tree.fanout))


def tree_engine(kernel: Kernel, device: Device) -> TreeEngine:
    """Return the sum tree of a replay on a device: of the trees that fit, the one with the fewest
    cycles.

    Draws and sets use the same tree, and fewer levels make both faster. So no plan with another
    fan-out is better.

    Raises:
        FigureError: no tree fits (the text names the scarce resource), or a figure is missing.
    """
    reasons = []
    for tree in tree_engines(kernel):
        if not (why := tree.misfit(device)):
            return tree
        reasons.append(why)
    raise FigureError(reasons[0])


def needs_of(logic: Logic | None, memories: Sizes) -> str:
    """Return sentences about the memories and the logic of a design, without float32 blocks."""
    bits = sum(count * words * width for count, words, width in memories)
    number = sum(count for count, _, _ in memories)
    text = f"The design has {number:,} memories of {bits:,} bits in total."
    if logic is None:
        return f"{text} Its logic was not counted."
    return f"{text} Without them, yosys {golden_table()['yosys']} needs {logic.text()}."


def released_tree_width(kernel: Kernel) -> int:
    """Return the DSP blocks of the released replay."""
    return RELEASED_DSP_PER_LEVEL * tree_depth(kernel)


def network_bits(kernel: Kernel) -> float:
    """Return the bits of the networks of `kernel` on chip.

    A network in training stores parameters, target, two moments and gradients, and the activations
    of a batch, forward and backward.
    """
    bits = 0.0
    for widths in kernel.networks.values():
        rows = 2 * kernel.dim("batch")
        bits += 8 * (F32 * 5 * parameters(widths) + activations_bytes(widths, rows))
    return bits


def released_misfit(kernel: Kernel, memories: tuple[OnChip, ...]) -> str:
    """Return why the released design does not fit on chip; empty if it fits."""
    if "capacity" in kernel.dims and is_prioritised(kernel):
        capacity, fanout = kernel.dim("capacity"), kernel.dim("fanout")
        sizes = [(1, nodes, 32 * fanout) for _, nodes, _ in tree_memories(capacity, fanout)]
        return misfit(sizes, memories, "the sum tree")
    need, free = network_bits(kernel), sum(ram.blocks * ram.bits for ram in memories)
    if kind_of(kernel).structure != "gradient" or need <= free:
        return ""
    return f"the networks need {need / 8e6:,.3g} MB on chip, {free / 8e6:,.3g} MB are free"
