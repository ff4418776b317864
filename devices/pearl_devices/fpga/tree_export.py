"""Export of a plan's sum tree as Verilog: sources, parameters, test bench, golden vectors.

The golden vectors are sets and draws of the bit-exact model. They include repeated leaves, a full
row of the largest priority, and both ends of the total.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pearl_devices.fpga.design import Design, make_files, write_commands
from pearl_devices.fpga.program import draw_cycles, set_cycles
from pearl_devices.fpga.resources import LEAF_BITS, TreeEngine, needs_of
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.replay import tree_levels
from pearl_devices.primitives.fpga.tree import MOST, UNIT, find_leaf, set_leaf

Numbers = npt.NDArray[np.int64]

ROUNDS, REQUESTS = 16, 64


def golden(engine: TreeEngine) -> dict[str, Numbers]:
    """Return the numbers of each file of the test bench.

    leaves, values, prefixes, golden_leaves: (rounds, requests). golden_totals: (rounds,).
    """
    rng, capacity, fanout = np.random.default_rng(0), engine.capacity, engine.fanout
    levels = np.array(tree_levels(capacity, fanout), np.int64)
    whole, shown = np.zeros(levels.sum(), np.int64), np.zeros(levels.sum(), np.float32)
    shape = ROUNDS, REQUESTS
    leaves = rng.integers(0, capacity, shape)
    leaves[:, REQUESTS // 2 :] = leaves[:, : REQUESTS // 2]
    values = np.minimum(rng.choice([1, 2, 77, MOST], shape) + rng.integers(0, 1000, shape), MOST)
    full = min(fanout, capacity)
    leaves[0, -full:], values[0, -full:] = np.arange(full), MOST
    prefixes, found, totals = np.zeros(shape, np.int64), np.zeros(shape, np.int64), []
    for r in range(ROUNDS):
        for leaf, value in zip(leaves[r], values[r], strict=True):
            set_leaf(shown, whole, levels, fanout, leaf, value)
        totals.append(int(whole[0]))
        prefixes[r] = rng.integers(0, totals[r], REQUESTS)
        prefixes[r, 0], prefixes[r, -1] = 0, totals[r] - 1
        found[r] = [find_leaf(whole, levels, fanout, prefix) for prefix in prefixes[r]]
    return {
        "leaves": leaves, "values": values, "prefixes": prefixes, "golden_leaves": found,
        "golden_totals": np.array(totals, np.int64),
    }  # fmt: skip


def tree_design(kernel: Kernel, engine: TreeEngine) -> Design:
    """Return the design for a kernel of draws, with the cycles of the draws of one batch."""
    cycles = draw_cycles(engine.depth, kernel.dim("batch"))
    return Design(f"tree{engine.fanout}", cycles, 0, export(engine))


def export(engine: TreeEngine) -> dict[str, str]:
    """Return the files of a sum tree: name → content."""
    counts = {
        "ROUNDS": ROUNDS, "REQUESTS": REQUESTS,
        "SET_CYCLES": set_cycles(engine.depth, REQUESTS),
        "DRAW_CYCLES": draw_cycles(engine.depth, REQUESTS),
    }  # fmt: skip
    vectors = {name: numbers.reshape(-1) for name, numbers in golden(engine).items()}
    return make_files("tree", engine.parameters() | counts, vectors, readme(engine))


def readme(engine: TreeEngine) -> str:
    """Return the README of the folder: contents, interfaces, commands."""
    k, d = engine.fanout, engine.depth
    deep = draw_cycles(d, 1)
    return f"""# A sum tree in Verilog

Priorities of {engine.capacity:,} rows, {LEAF_BITS} bits each in units of 1/{UNIT}; fan-out {k}, {d} levels. No DSP block.
{needs_of(engine.logic(), engine.memories())}
n draws take {deep} + n - 1 cycles, n sets {deep} + 3 (n - 1) cycles. The clock rate is unknown: the design was
simulated, not placed and routed.

## Files
`tree.v` is the top module. `memory.v` has the memories, `parameters.vh` the parameters, `tree_testbench.v` the test bench.

## Interfaces of `tree`
| port | meaning |
|---|---|
| `rst` | hold high for one cycle after power-up: sets the total to 0. Memories must start at 0, as block RAM does after configuration |
| `draw_in`, `prefix` | requests the leaf whose share of the total contains `prefix`, with `prefix` < `total`; one request per cycle |
| `draw_out`, `leaf`, `rest` | {deep} cycles later: the leaf, and the offset of the prefix within its share |
| `set_in`, `at`, `value` | sets a priority; one request in three cycles, never during draws |
| `set_out`, `total` | high when the root has the new sum; `total` has the sum one cycle later |

## Check it
The test bench makes {ROUNDS} rounds of {REQUESTS} sets and {REQUESTS} draws, and compares leaves, totals and cycles with the golden
vectors. If all are equal, it prints PASS.
{write_commands("tree", engine.parameters())}
"""
