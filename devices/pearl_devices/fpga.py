"""A simulated FPGA: an n×n systolic array for networks, a pipelined K-ary sum tree for replay.

It is never driven. A bound kernel computes the same numbers with the native code of the host's CPU;
its time comes from the closed forms of `pearl_estimators.fpga`, on a virtual clock.
"""

from __future__ import annotations

from pearl_devices.base import Buffers, Call, Device, UnsupportedError
from pearl_devices.kernel import Kernel
from pearl_devices.work import F32, activations_bytes, parameters, tree_depth

ARRAYS = (8, 16, 32, 64)
DSP_PER_LEVEL = 2  # assumed: an adder and a comparator a level, as in PEARL's released model
# An M20K block in its widest form, 512 rows of 40 bits (Intel Agilex embedded memory guide).
BLOCK_ROWS, BLOCK_ROW_BITS = 512, 40


def figure(device: Device, name: str) -> float:
    """One of `device.figures`; a missing one is a ValueError naming what there is."""
    if name not in device.figures:
        raise ValueError(
            f"device {device.name!r} of kind fpga has no figure {name!r}; it gives "
            f"{sorted(device.figures)}; needed are clock_hz, m20k_blocks and m20k_bits (of a block)"
        )
    return device.figures[name]


def tree_width(kernel: Kernel) -> int:
    """DSP blocks of the replay engine: some per level of the tree, 1 where there is no tree."""
    if kernel.kind != "replay_update" and not kernel.dim("prioritised"):
        return 1
    return DSP_PER_LEVEL * tree_depth(kernel)


def tree_blocks(capacity: int, fanout: int) -> int:
    """M20K blocks of the sum tree: a memory a level, a row of `fanout` float32 a node.

    A sampler alone could leave out the last child of each row; this engine also updates, so it
    keeps all.
    """
    columns = -(-fanout * 32 // BLOCK_ROW_BITS)
    blocks, nodes = 0, capacity
    while nodes > 1:
        nodes = -(-nodes // fanout)
        blocks += columns * -(-nodes // BLOCK_ROWS)
    return blocks


def on_chip_blocks(kernel: Kernel, block_bits: float) -> int:
    """M20K blocks that `kernel` needs: its tree, and its networks.

    A network that learns keeps parameters, target, two moments and gradients, and the activations
    of a batch forward and backward; one that acts keeps its parameters and one set of activations.
    """
    blocks, acting = 0, kernel.kind.startswith("inference.")
    if kernel.kind == "replay_update" or kernel.dims.get("prioritised"):
        blocks += tree_blocks(kernel.dim("capacity"), kernel.dim("fanout"))
    for widths in kernel.networks.values():
        copies, rows = (1, kernel.dim("envs")) if acting else (5, 2 * kernel.dim("batch"))
        size = F32 * copies * parameters(widths) + activations_bytes(widths, rows)
        blocks += -int(-8 * size // block_bits)
    return blocks


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Designs that fit: `systolic` and `engine` in several widths, `tree`, `copy`.

    What does not fit in the DSP blocks (`Device.width`) or on chip (`m20k_blocks`) is not offered;
    nor is what no design computes: duelling networks, torch modules, TD3, SAC, PPO, A2C,
    algorithms of the user's own.
    """
    kind = kernel.kind
    if kernel.dims.get("duelling") or kernel.modules:
        return ()
    if kind == "param_sync":
        return (("copy", 1),)
    if kind in ("inference.dqn", "inference.ddpg", "update.dqn", "update.ddpg"):
        found = [("systolic", n * n) for n in ARRAYS]
    elif kernel.dims.get("stack"):
        return ()  # frames
    elif kind in ("replay_insert", "replay_sample", "replay_update"):
        found = [("tree", tree_width(kernel))]
    elif kind in ("learn.dqn", "learn.ddpg"):
        found = [("engine", n * n + tree_width(kernel)) for n in ARRAYS]
    else:
        return ()
    if on_chip_blocks(kernel, figure(device, "m20k_bits")) > figure(device, "m20k_blocks"):
        return ()
    return tuple((variant, width) for variant, width in found if width <= device.width)


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """The native computation on the host: the device is simulated, the numbers are real."""
    if variant not in ("systolic", "tree", "engine", "copy"):
        raise UnsupportedError(
            f"kernel {kernel.kind}, variant {variant!r}: a simulated FPGA has the designs "
            "systolic, tree, engine and copy"
        )
    from pearl_devices import backend

    return backend("cpu").bind(kernel, "native", buffers)
