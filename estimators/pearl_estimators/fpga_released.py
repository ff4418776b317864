"""Closed forms of the FPGA design that PEARL's authors released in their artifact.

HeteroRL (github.com/CatherineMeng/HeteroRL, CC0, Zenodo 10.5281/zenodo.10982989),
`SysConfig/FPGA_perfmodel.py`: `Learner_DSE` and `RM_perf`, the models by which their composer
assigns tasks to an Agilex AGF 014 at 250 MHz.

Their learner has a single dense network, without target network, optimiser, bias, pipeline fill or
transfer. Here, kernels that learn several networks take one after another, which the release does
not support. So a learner with all the kernel's work would probably take longer. A write to the
tree takes 2 cycles per level in total, for any number of writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pearl_devices import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.replay import tree_depth

WORDS, WORD_BYTES = 6, 4
"""32-bit words that a request moves between DDR memory and the tree."""


def power_below(number: int) -> int:
    """Return the largest power of two below a number; 1 if there is none."""
    return 1 << max(0, (number - 1).bit_length() - 1) if number > 1 else 1


def learner_cycles(widths: Sequence[int], batch: int, units: int) -> float:
    """Return the cycles of one gradient step of a dense network with these widths.

    Each layer has units for its forward pass, the gradient of its input (except the first layer)
    and the gradient of its weights. A unit has multiply-adds in proportion to its share of all
    work, rounded down to a power of two, but at most its outputs per sample (forward), inputs per
    sample (backward) or weights. Forward passes follow one another. From the last layer to the
    second, both gradients run in parallel. The gradient of the first layer's weights comes last, in
    one cycle per sample.
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
    """Return the cycles of `requests` draws from the tree."""
    return 2 * fanout * (requests + depth)


def write_cycles(depth: int) -> int:
    """Return the cycles of inserting, or of writing priorities."""
    return 2 * depth


def times(kernel: Kernel, width: int, clock_hz: float, ddr: float) -> tuple[float, float, float]:
    """Return (compute, memory, fixed) seconds of one firing. ddr: bytes per second.

    The release adds compute and memory. Here the memory's time is `fixed`, so nothing overlaps with
    it.
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
