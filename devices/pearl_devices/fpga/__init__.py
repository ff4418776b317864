"""A simulated FPGA: an n×n systolic array or PEARL's released design, a K-ary sum tree for replay.

No board is driven. A bound kernel computes the same numbers with the native code of the host's CPU.
Its time is a closed form on a virtual clock: of a design that nobody has built (`systolic`), or the
one by which PEARL's authors chose devices (`released`: HeteroRL, Zenodo 10.5281/zenodo.10982989).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pearl_devices.base import Buffers, Call, Device, FigureError, UnsupportedError
from pearl_devices.device_kind import Refused
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import F32, activations_bytes, parameters
from pearl_devices.kernels.replay import prioritised, tree_depth

WIDTH_UNIT = "pe"  # a float32 multiply-add unit
SIMULATED = True
ESTIMATE = "pearl_estimators.fpga:closed_form"

DESIGNS = ("systolic", "released")

ARRAYS = (8, 16, 32, 64)
DSP_PER_LEVEL = 2  # assumed: an adder and a comparator a level, as in PEARL's released model

TREE_DSP = 40
"""DSP blocks that the released learner leaves to the replay: two for each of up to 20 levels."""


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


def check(device: Device) -> None:
    """Checks the figures that designs are offered and estimated by.

    Raises:
        FigureError: a figure is missing or 0.
    """
    figure(device, "clock_hz")
    on_chip(device)


def tree_width(kernel: Kernel) -> int:
    """DSP blocks of the replay engine: some per level of the tree, 1 where there is no tree."""
    return DSP_PER_LEVEL * tree_depth(kernel) if prioritised(kernel) else 1


def level_blocks(rows: int, fanout: int, ram: OnChip) -> int:
    """Memory blocks of one level of the sum tree, which is a memory of its own: a row of `fanout`
    float32 a node.

    A sampler alone could leave out the last child of each row; this engine also updates, so it
    keeps all.
    """
    return -int(-fanout * 32 // ram.word_bits) * -int(-rows // (ram.bits / ram.word_bits))


def tree_rows(capacity: int, fanout: int) -> list[int]:
    """Rows of each level of the sum tree, leaves first."""
    rows, nodes = [], capacity
    while nodes > 1:
        nodes = -(-nodes // fanout)
        rows.append(nodes)
    return rows


def network_bits(kernel: Kernel) -> float:
    """Bits of the networks of `kernel`, what they learn with, and activations of a batch.

    A network that learns keeps parameters, target, two moments and gradients, and the activations
    of a batch forward and backward; one that acts keeps its parameters and one set of activations.
    """
    acting, bits = kind_of(kernel).structure == "network", 0.0
    for widths in kernel.networks.values():
        copies, rows = (1, kernel.dim("envs")) if acting else (5, 2 * kernel.dim("batch"))
        bits += 8 * (F32 * copies * parameters(widths) + activations_bytes(widths, rows))
    return bits


def too_large(kernel: Kernel, memories: tuple[OnChip, ...]) -> str:
    """What finds no room on chip, the sum tree or the networks; empty where both do.

    Each level of the tree, the largest first, goes where it takes the least share of what is left;
    networks take whole blocks of what then is.
    """
    left = [ram.blocks for ram in memories]
    if "capacity" in kernel.dims and prioritised(kernel):
        fanout = kernel.dim("fanout")
        for rows in tree_rows(kernel.dim("capacity"), fanout):
            takes = [level_blocks(rows, fanout, ram) for ram in memories]
            part = [t / n if n else inf for t, n in zip(takes, left, strict=True)]
            share, at = min((share, i) for i, share in enumerate(part))
            if share > 1:
                return (
                    f"a level of the sum tree takes {takes[at]:,} memory blocks on chip, "
                    f"{left[at]:,.0f} are free"
                )
            left[at] -= takes[at]
    need, free = network_bits(kernel), sum(n * m.bits for n, m in zip(left, memories, strict=True))
    if need <= free:
        return ""
    return f"its networks take {need / 8e6:,.3g} MB on chip, {free / 8e6:,.3g} MB are free"


FRAMES = "no design stores stacked frames"


def is_released(device: Device) -> bool:
    """Whether its design is the one that PEARL's authors released."""
    return device.design == DESIGNS[1]


def _released(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """What the released design runs: `layered`, a unit of its own for each layer and pass of a
    gradient step, all of which share the DSP blocks; a prioritised replay; the copy of parameters.

    It has no inference, which stays on the CPU, no replay without priorities, and no engine that
    samples and learns in one call.
    """
    structure = kind_of(kernel).structure
    if structure == "gradient":
        if device.width > TREE_DSP:
            return (("layered", device.width - TREE_DSP),)
        return Refused(f"the released design needs more than {TREE_DSP} pe, has {device.width}")
    if structure in ("insert", "sample", "prioritise") and prioritised(kernel):
        if kernel.dims.get("stack"):
            return Refused(FRAMES)
        return (("tree", tree_width(kernel)),)
    return Refused(
        "the released design runs gradient steps, a prioritised replay and the copy of parameters"
    )


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Designs that fit: `systolic` and `engine` in several widths, `tree`, `copy`.

    A design is not offered where it exceeds the multiply-add units (`Device.width`: DSP blocks,
    where one does float32) or the memory on chip. No design draws random numbers, stores frames,
    or computes duelling networks, torch modules or algorithms of the user's own.
    """
    kind = kind_of(kernel)
    if kernel.dims.get("duelling"):
        return Refused("no design computes a duelling network")
    if kernel.modules:
        return Refused("no design computes torch modules")
    if kind.stochastic:
        return Refused("no design draws random numbers")
    if kind.structure == "copy":
        return (("copy", 1),)
    if is_released(device):
        found = _released(kernel, device)
    elif kind.structure in ("network", "gradient"):
        found = tuple(("systolic", n * n) for n in ARRAYS)
    elif kernel.dims.get("stack"):
        return Refused(FRAMES)
    elif kind.structure in ("insert", "sample", "prioritise"):
        found = (("tree", tree_width(kernel)),)
    elif kind.structure == "fused" and kind.side == "learns":
        found = tuple(("engine", n * n + tree_width(kernel)) for n in ARRAYS)
    else:
        return Refused(f"no design computes a kernel of structure {kind.structure}")
    if not found:
        return found
    if large := too_large(kernel, on_chip(device)):
        return Refused(large)
    least = min(found, key=lambda way: way[1])
    fitting = tuple((variant, width) for variant, width in found if width <= device.width)
    return fitting or Refused(f"{least[0]} needs {least[1]} pe, has {device.width}")


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Bind the native computation of the host: the device is simulated, the numbers are real.

    Raises:
        UnsupportedError: no design of an FPGA has this name.
    """
    if variant not in ("systolic", "layered", "tree", "engine", "copy"):
        raise UnsupportedError(
            f"kernel {kernel.kind}, variant {variant!r}: a simulated FPGA has the designs "
            "systolic, layered, tree, engine and copy"
        )
    from pearl_devices import backend

    return backend("cpu").bind(kernel, "native", buffers)
