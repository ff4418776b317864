"""What designs take of an FPGA: DSP blocks, memory blocks, logic (`logic`).

DSP blocks and memories of the engines are counted as `rtl/` has them, exact by construction: each
memory of the Verilog in block RAM, also the small ones that a tool may put into logic.
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
    tree_logic,
)
from pearl_devices.fpga.program import PROGRAM_WORDS
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import F32, activations_bytes, parameters
from pearl_devices.kernels.replay import is_prioritised, tree_depth

LEAF_BITS = 20
"""Bits of a priority in the integer tree."""

TREE_WIDTH = 1
"""Width of the mode of a tree: the engine takes no DSP block, and a mode has a width of 1 at
least."""

RELEASED_DSP_PER_LEVEL = 2  # as in PEARL's released model: an adder and a comparator a level


@dataclass(frozen=True)
class OnChip:
    """The blocks of one kind of memory on a chip: how many, and bits and widest word of each."""

    blocks: float
    bits: float
    word_bits: float


def figure(device: Device, name: str) -> float:
    """One of `device.figures`, above 0.

    Raises:
        FigureError: the figure is missing or 0; the text names those given and those needed.
    """
    found = device.figures.get(name, 0.0)
    if not found > 0:
        what = f"gives {name} as {found:g}" if name in device.figures else f"has no figure {name!r}"
        raise FigureError(
            f"device {device.name!r} of kind fpga {what}; it gives {sorted(device.figures)}; "
            "needed, above 0, are clock_hz and the memory on chip: ram_blocks, ram_block_bits (of "
            "one: 20480 of an Intel M20K, 36864 of an AMD block RAM) and ram_word_bits (its widest "
            "word: 40 and 72), and where there is UltraRAM, the same of it: ultraram_blocks, "
            "ultraram_block_bits, ultraram_word_bits"
        )
    return found


def on_chip(device: Device) -> tuple[OnChip, ...]:
    """The memories on chip by the figures of a device, the one of the smallest blocks first.

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


def check_memories(device: Device) -> None:
    """Raises FigureError where a figure of the memories on chip is missing or 0."""
    on_chip(device)


def memory_blocks(words: int, bits: int, ram: OnChip) -> int:
    """Blocks of one memory of `words` words of `bits` bits."""
    return -int(-bits // ram.word_bits) * -int(-words // (ram.bits / ram.word_bits))


Sizes = list[tuple[int, int, int]]
"""Memories: how many, words of each, bits of a word."""


def learner_memories(learner: LearnerProgram) -> Sizes:
    """The memories of `rtl/engine.v`."""
    n = learner.shape.array
    samples = -(-learner.rows // n) * n
    found = [
        (n, learner.blocks_a * n, 32),  # activations
        (n, learner.blocks_b * n, 32),  # parameters, gradients by activations
        (4 * n, learner.blocks_w * n, 32),  # target, moments, gradient
        (3 * n, learner.heads, 32),  # outputs: of two passes, one of them twice
        (1, learner.blocks_a * n, n),  # ReLU's mask
        (1, samples, 128),  # reward, discount, weight, action
        (1, PROGRAM_WORDS, 256),  # the program
    ]
    if learner.action:
        found += [(1, samples * n, 32), (1, 512, 96)]  # tanh of the outputs, the table
    return found


def tree_memories(capacity: int, fanout: int) -> Sizes:
    """The memories of `rtl/tree.v`, leaves first: a row of `fanout` sums a node."""
    bits, digits, found, nodes = LEAF_BITS, fanout.bit_length() - 1, Sizes(), capacity
    while nodes > 1 or not found:
        nodes = -(-nodes // fanout)
        found.append((1, nodes, fanout * bits))
        bits += digits
    return found


def misfit(sizes: Sizes, memories: tuple[OnChip, ...], what: str) -> str:
    """Why memories find no room on chip; empty where they do.

    The largest comes first, and each goes where it takes the least share of what is left.
    """
    left = [ram.blocks for ram in memories]
    for count, words, bits in sorted(sizes, key=lambda size: -size[1] * size[2]):
        takes = [count * memory_blocks(words, bits, ram) for ram in memories]
        part = [t / n if n else inf for t, n in zip(takes, left, strict=True)]
        share, at = min((share, i) for i, share in enumerate(part))
        if share > 1:
            return (
                f"{what} takes {takes[at]:,} memory blocks on chip for {count:,} × {words:,} words "
                f"of {bits} bits, {left[at]:,.0f} are free"
            )
        left[at] -= takes[at]
    return ""


@dataclass(frozen=True)
class TreeEngine:
    """A sum tree on chip: its leaves, children of a node, and levels below the root."""

    capacity: int
    fanout: int
    depth: int

    def misfit(self, device: Device) -> str:
        """Why it finds no room on a device; empty where it does."""
        if self.depth > DEEPEST[self.fanout]:
            most = self.fanout ** DEEPEST[self.fanout]
            return f"the sum tree has {self.capacity:,} leaves, the engine at most {most:,}"
        what, sizes = "the sum tree", tree_memories(self.capacity, self.fanout)
        logic = tree_logic(self.fanout, self.depth)
        return misfit(sizes, on_chip(device), what) or logic_misfit([logic], device, what)


def tree_engines(kernel: Kernel) -> list[TreeEngine]:
    """The sum trees that keep the priorities of a replay, the fewest cycles first.

    The engine has a fan-out of its own: its sums are exact, so the fan-out changes no leaf that is
    drawn, and the levels of `replay.tree` stay those of the spec.
    """
    found = []
    for fanout in DEEPEST:
        depth, leaves = 1, fanout
        while leaves < kernel.dim("capacity"):
            depth, leaves = depth + 1, leaves * fanout
        found.append(TreeEngine(kernel.dim("capacity"), fanout, depth))
    return sorted(found, key=lambda tree: (tree.depth, tree.fanout))


def tree_engine(kernel: Kernel, device: Device) -> TreeEngine:
    """The sum tree of a replay on a device: the fan-out with the fewest cycles that fits.

    Draws and sets are of one tree, and both take less the fewer levels the tree has. So no plan
    with another fan-out is better.

    Raises:
        FigureError: none fits, or the device lacks a figure; the text says what is too small.
    """
    reasons = []
    for tree in tree_engines(kernel):
        if not (why := tree.misfit(device)):
            return tree
        reasons.append(why)
    raise FigureError(reasons[0])


def needs_of(logic: Logic, memories: Sizes) -> str:
    """What a design takes beside blocks of float32, for people."""
    bits = sum(count * words * width for count, words, width in memories)
    number = sum(count for count, _, _ in memories)
    return (
        f"Memories: {number:,}, of {bits:,} bits in all. Logic without them, by yosys "
        f"{golden_table()['yosys']}: {logic.text()}."
    )


def released_tree_width(kernel: Kernel) -> int:
    """DSP blocks of the released replay."""
    return RELEASED_DSP_PER_LEVEL * tree_depth(kernel)


def network_bits(kernel: Kernel) -> float:
    """Bits of the networks of `kernel`, what they learn with, and activations of a batch.

    A network that learns keeps parameters, target, two moments and gradients, and the activations
    of a batch forward and backward.
    """
    bits = 0.0
    for widths in kernel.networks.values():
        rows = 2 * kernel.dim("batch")
        bits += 8 * (F32 * 5 * parameters(widths) + activations_bytes(widths, rows))
    return bits


def released_misfit(kernel: Kernel, memories: tuple[OnChip, ...]) -> str:
    """What of the released design finds no room on chip; empty where all does."""
    if "capacity" in kernel.dims and is_prioritised(kernel):
        fanout, nodes, sizes = kernel.dim("fanout"), kernel.dim("capacity"), Sizes()
        while nodes > 1:
            nodes = -(-nodes // fanout)
            sizes.append((1, nodes, 32 * fanout))
        return misfit(sizes, memories, "the sum tree")
    need, free = network_bits(kernel), sum(ram.blocks * ram.bits for ram in memories)
    if kind_of(kernel).structure != "gradient" or need <= free:
        return ""
    return f"its networks take {need / 8e6:,.3g} MB on chip, {free / 8e6:,.3g} MB are free"
