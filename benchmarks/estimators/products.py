"""The products of dense layers by our tiles, OpenBLAS and torch, one thread.

Of a layer of so many inputs and outputs and a batch of rows: forward (x · w), the gradient of the
weights (xᵀ · d) and of the input (d · wᵀ), with float32 flops a second of CPU time, the best of
rounds in turns. Hold the host to older instructions as `docs/estimators.md` says, to see what
another one would give.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar, Part

SIZES = ((256, 256, 256), (64, 64, 64), (256, 64, 64), (128, 128, 128), (256, 512, 512))
"""Rows, inputs and outputs."""
ROUNDS, WORK_FLOPS = 15, 2e8
LEAST = 0.9

Ways = dict[str, Callable[[], Any]]


def layer(rows: int, inputs: int, outputs: int) -> dict[str, Ways]:
    """Product → way → a call of it."""
    import torch

    from pearl_devices.primitives.math.products import affine, input_gradient, weight_gradient
    from pearl_devices.primitives.math.vectors import STRIP

    torch.set_num_threads(1)
    random = np.random.default_rng(0)

    def some(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    x, w, bias, d = some(rows, inputs), some(inputs, outputs), some(outputs), some(rows, outputs)
    out, grad, below = some(rows, outputs), some(inputs, outputs), some(rows, inputs)
    panel = np.zeros(outputs * STRIP, np.float32)
    tx, tw, td, tout, tgrad, tbelow = map(torch.from_numpy, (x, w, d, out, grad, below))
    return {
        "x · w": {
            "tiles": lambda: affine(x, w, bias, out, 1),
            "OpenBLAS": lambda: np.dot(x, w, out=out),
            "torch": lambda: torch.mm(tx, tw, out=tout),
        },
        "xᵀ · d": {
            "tiles": lambda: weight_gradient(x, d, grad),
            "OpenBLAS": lambda: np.dot(x.T, d, out=grad),
            "torch": lambda: torch.mm(tx.t(), td, out=tgrad),
        },
        "d · wᵀ": {
            "tiles": lambda: input_gradient(d, w, panel, below, x, 1),
            "OpenBLAS": lambda: np.dot(d, w.T, out=below),
            "torch": lambda: torch.mm(td, tw.t(), out=tbelow),
        },
    }


def rates(ways: Ways, flops: float) -> dict[str, float]:
    """Flops a second of CPU time by each way."""
    count = max(1, int(WORK_FLOPS / flops))
    best = dict.fromkeys(ways, float("inf"))
    for call in ways.values():
        call()
    for _ in range(ROUNDS):
        for way, call in ways.items():
            begin_s = time.thread_time()
            for _ in range(count):
                call()
            best[way] = min(best[way], (time.thread_time() - begin_s) / count)
    return {way: flops / spent_s for way, spent_s in best.items()}


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others. quick: of the first size alone."""
    from pearl_devices.compile_target import target_variables
    from pearl_devices.primitives.math.vectors import LANES

    rows, bars, kept = [], [], {}
    for size in SIZES[:1] if quick else SIZES:
        for product, ways in layer(*size).items():
            found = rates(ways, 2.0 * size[0] * size[1] * size[2])
            name = " × ".join(map(str, size)) + f", {product}"
            kept[name] = found
            rows.append([name, *(f"{rate / 1e9:.0f}" for rate in found.values())])
            share = found["tiles"] / max(found["OpenBLAS"], found["torch"])
            bars.append(Bar(name, f"{share:.2f}", f"at least {LEAST} of the best", share >= LEAST))
    target = target_variables() or "this host"
    print(f"compiled for {target}, vectors of {LANES}")
    columns = ["rows × inputs × outputs", "tiles, GFLOP/s", "OpenBLAS", "torch"]
    values = {"compiled for": target, "lanes": LANES, "flops_per_s": kept}
    left_out = [" × ".join(map(str, size)) for size in SIZES[1:]] if quick else []
    return Part("products", columns, rows, bars, left_out, values)
