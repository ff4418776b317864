"""The sum tree: draws and writes of priorities, over what moving its bytes takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.gpu.target import Case, Target, on_device
from pearl_devices import Kernel, kernel

LEAVES, BATCHES = 1_000_000, (256, 4096)
SMALL_LEAVES, SMALL_BATCHES = 4096, (16, 64)


def run(target: Target) -> list[Case]:
    leaves = SMALL_LEAVES if target.stand_in else LEAVES
    batches = SMALL_BATCHES if target.stand_in else BATCHES
    found = []
    for batch in batches:
        ring = {"envs": 8, "obs": 4, "act": 0, "capacity": leaves, "fanout": 16}
        draws = {**ring, "prioritised": 1, "batch": batch, "steps": 1, "n_step": 1}
        both = (kernel("replay_sample", draws), kernel("replay_update", draws))
        found += [case for of in both for case in _cases(target, of, leaves, batch)]
    return found


def _cases(target: Target, of: Kernel, leaves: int, batch: int) -> Iterator[Case]:
    arrays, twins, memory, call = on_device(target, of, "cuda")
    call()
    memory.store(tuple((arrays[n], twin) for n, twin in twins.items()))
    rows, total = arrays["batch.index"], float(arrays["replay.tree"][0])
    leaf_sum = float(arrays["replay.tree"][-(-leaves // 16) * -16 :].astype(np.float64).sum())
    inside = bool(((rows >= 0) & (rows < leaves)).all())
    summed = abs(total - leaf_sum) <= 1e-4 * leaf_sum
    seconds = target.seconds(call)
    limit_s = (of.bytes_in + of.bytes_out) / target.device.memory_bytes_per_s
    yield Case(
        f"{of.kind}, {leaves} leaves, batch {batch}",
        inside and summed,
        {"leaves": leaves, "batch": batch, "rows": len(np.unique(rows))},
        target.figures(
            us=seconds and 1e6 * seconds, over_memory_limit=seconds and seconds / limit_s
        ),
    )
