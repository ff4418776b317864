"""Closed forms of the FPGA design that PEARL's authors released, as they are in their artifact.

HeteroRL (github.com/CatherineMeng/HeteroRL, CC0, Zenodo 10.5281/zenodo.10982989),
`SysConfig/FPGA_perfmodel.py`: `Learner_DSE` and `RM_perf`, the models by which their composer
assigns tasks to an Agilex AGF 014 at 250 MHz.

The learner is the one of a single dense network: it has no target network, optimiser, bias,
pipeline fill or transfer. Kernels that learn several networks take one after another here, which
the release does not have. So a learner that computes what the kernel computes takes rather longer.
A write to the tree takes 2 cycles a level in all, however many writes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pearl_devices import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.replay import tree_depth

WORDS, WORD_BYTES = 6, 4
"""Words of 32 bits that a request moves between DDR memory and the tree."""


def power_below(number: int) -> int:
    """The largest power of two below a number; 1 where there is none."""
    return 1 << max(0, (number - 1).bit_length() - 1) if number > 1 else 1


def learner_cycles(widths: Sequence[int], batch: int, units: int) -> float:
    """Cycles of one gradient step of a dense network with these widths.

    Each layer has a unit for its forward pass, for the gradient of its input (but the first) and
    for that of its weights. A unit has multiply-adds in proportion to its share of all work,
    rounded down to a power of two, and no more than it has outputs a sample (forward), inputs a
    sample (backward) or weights. Forward passes follow one another; from the last layer to the
    second the two gradients are computed side by side; the gradient of the first layer's weights
    comes last, in as many cycles as samples.
    """
    layers = list(pairwise(widths))
    work = [batch * a * b for a, b in layers]
    total = 2 * sum(work) + sum(work[1:])

    def share(layer: int, most: int) -> int:
        return min(most, power_below(units * work[layer] // total))

    cycles = sum(w / share(n, layers[n][1]) for n, w in enumerate(work))
    for n in range(1, len(layers)):
        inputs, outputs = layers[n]
        cycles += max(work[n] / share(n, inputs), work[n] / share(n, inputs * outputs))
    return cycles + batch


def sample_cycles(fanout: int, depth: int, requests: int) -> int:
    """Cycles of so many draws from the tree."""
    return 2 * fanout * (requests + depth)


def write_cycles(depth: int) -> int:
    """Cycles of inserting, or of writing priorities."""
    return 2 * depth


def times(kernel: Kernel, width: int, clock_hz: float, ddr: float) -> tuple[float, float, float]:
    """(compute, memory, fixed) seconds of one firing. ddr: bytes per second.

    The release adds the two; here the memory's part is fixed, so that nothing hides it.
    """
    structure = kind_of(kernel).structure
    if structure == "gradient":
        batch, steps = kernel.dim("batch"), kernel.dim("steps")
        cycles = sum(learner_cycles(widths, batch, width) for widths in kernel.networks.values())
        return steps * cycles / clock_hz, 0.0, 0.0
    inserts = structure == "insert"
    requests = kernel.dim("envs") if inserts else kernel.dim("batch") * kernel.dim("steps")
    depth, moved = tree_depth(kernel), requests * WORDS * WORD_BYTES / ddr
    if structure == "sample":
        return sample_cycles(kernel.dim("fanout"), depth, requests) / clock_hz, 0.0, moved
    return write_cycles(depth) / clock_hz, 0.0, moved
