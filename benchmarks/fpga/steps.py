"""Gradient steps of 4-64-64-2: cycles of the simulated FPGA's engines, PEARL's model, the twin."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Part, at_least
from pearl_devices import kernel
from pearl_devices.buffers import allocate
from pearl_devices.fpga.learner import dqn
from pearl_devices.fpga.program import Shape
from pearl_estimators.fpga_released import learner_cycles

WIDTHS, ARRAYS, CLOCK_HZ, DSP = (4, 64, 64, 2), (8, 16, 32, 64), 250e6, 4510 - 8
BATCHES = (32, 128, 512)
LEAST_PER_S = 2000


def run(quick: bool, data: Path | None) -> Part:
    """Times by the forms, and updates of the twin in a CPU-second."""
    rows = []
    for double in (True, False):
        for batch in BATCHES:
            cycles = [dqn(WIDTHS, batch, double, Shape(n, n)).cycles for n in ARRAYS]
            times = [c / CLOCK_HZ for c in cycles]
            released = learner_cycles(WIDTHS, batch, DSP) / CLOCK_HZ
            name = f"{'double' if double else 'plain'}, batch {batch}"
            rows.append([name, *(f"{1e6 * t:.1f}" for t in (*times, released))])
    speed = {double: twin_per_s(double, 40 if quick else 400) for double in (1, 0)}
    bars = [
        at_least(
            f"updates of the twin in a CPU-second, {'double' if double else 'plain'}, batch 32",
            rate,
            LEAST_PER_S,
            "{:,.0f}",
        )
        for double, rate in speed.items()
    ]
    title = "A gradient step of DQN on the simulated FPGA at 250 MHz (assumed), µs"
    columns = ["4-64-64-2", *(f"N = {n}" for n in ARRAYS), "PEARL's model"]
    return Part(title, columns, rows, bars, values={"twin_updates_per_cpu_s": speed})


def twin_per_s(double: int, steps: int) -> float:
    """Updates of the twin in a CPU-second, the median of nine readings."""
    sizes: dict[str, Any] = {"obs": 4, "act": 0, "q": WIDTHS, "batch": 32, "steps": 1}
    update = kernel("update.dqn", sizes, double=double)
    arrays, rng = allocate([update]), np.random.default_rng(0)
    for name in ("learner.q", "learner.q.target", "batch.obs", "batch.next_obs"):
        arrays[name][:] = 0.1 * rng.normal(size=arrays[name].shape)
    arrays["batch.weight"][:] = 1.0
    arrays["hyper.adam"][:] = 0.9, 0.999, 1e-8
    for name, value in (("lr.q", 1e-3), ("tau", 0.01), ("clip_norm", 10.0), ("huber", 1.0)):
        arrays[f"hyper.{name}"][:] = value
    from pearl_devices.primitives.fpga.dqn import bind_update

    call, readings = bind_update(update, arrays, 32), []
    for _ in range(9):
        begun = time.process_time()
        for _ in range(steps):
            call()
        readings.append(steps / (time.process_time() - begun))
    return statistics.median(readings)
