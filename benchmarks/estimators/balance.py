"""The ratio of CPU threads to GPU multiprocessors (arXiv 2012.04210), as `pearl balance` predicts.

Systems: DQN with 256 environments of 60 us each, three replay ratios, on every GPU of the catalogue
with a 16-core CPU: closed form against sweep. And one with few threads, which they bound: what half
of its threads and half of its multiprocessors cost. Nothing here is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pearl
from benchmarks.bars import Bar, Part
from pearl.planner.gpu_balance import Balance, balance
from pearl.spec.catalogue import catalogue

CPU = "xeon_gold_6326"
RATIOS = ("1/64", "1/16", "1/4")
FEW_CORES = 4
LINK = {
    "between": ["cpu", "gpu"],
    "source": "assumed: PCIe 4.0 x16",
    "latency": "10 us",
    "bandwidth": "31.5 GB/s",
}


def system(gpu: str, ratio: str, cores: int | None = None) -> pearl.System:
    """cores: fewer than the CPU has, the rest of it in proportion."""
    cpu: Any = CPU
    if cores is not None:
        whole = dict(catalogue()[CPU])
        share = cores / whole["width"]
        figures = {"peak": f"{3.584 * share} TFLOP/s", "memory_bandwidth": "204.8 GB/s"}
        cpu = {**whole, **figures, "width": cores, "max_lanes": cores}
    return pearl.load(
        {
            "name": f"{gpu} {ratio}",
            "algorithm": {
                "name": "dqn",
                "env": "Unknown-v0",  # which nobody timed: 60 us an environment
                "spaces": {"obs": 4, "actions": 2},
                "num_envs": 256,
                "replay_ratio": ratio,
                "batch_size": 64,
            },
            "platform": {"devices": {"cpu": cpu, "gpu": gpu}, "links": [LINK]},
        }
    )


def within_a_step(found: Balance) -> tuple[int, int]:
    """How many balance points the closed form has within a grid step of the sweep, of how many."""
    threads = [p.cores for p in found.cores]
    held = 0
    for point in found.points:
        if point.swept is None:
            held += point.closed is None or point.closed > threads[-1]
        elif point.closed is not None:
            place = threads.index(point.swept)
            below = threads[place - 1] if place else 0
            above = threads[min(place + 1, len(threads) - 1)]
            held += below <= point.closed <= above
    return held, len(found.points)


def run(quick: bool, data: Path | None) -> Part:
    gpus = [name for name, entry in catalogue().items() if entry["kind"] == "gpu"]
    rows: list[list[str]] = []
    held = asked = 0
    for gpu in gpus[:3] if quick else gpus:
        for ratio in RATIOS:
            found = balance(system(gpu, ratio))
            close, count = within_a_step(found)
            held, asked = held + close, asked + count
            whole = found.points[-1]
            best = max(found.cores, key=lambda p: p.env_steps_per_j)
            rows.append(
                [
                    gpu,
                    ratio,
                    "-" if whole.closed is None else f"{whole.closed:.2f}",
                    "> 16" if whole.swept is None else str(whole.swept),
                    "-" if whole.ratio is None else f"{whole.ratio:.3f}",
                    f"{found.cores[-1].env_steps_per_s:,.0f}",
                    f"{best.env_steps_per_j:.1f} at {best.cores}",
                ]
            )
    few = balance(system("a100_sxm_40gb", "1/64", FEW_CORES))
    assert few.halved_sms is not None
    assert few.halved_cores is not None
    sms, threads = 1 - few.halved_sms, 1 - few.halved_cores
    bars = [
        Bar("closed form within a step of the sweep", f"{held} of {asked}", "all", held == asked),
        Bar(f"half the SMs, {FEW_CORES} threads", f"{100 * sms:.1f} % less", "< 10 %", sms < 0.1),
        Bar(
            f"half of {FEW_CORES} threads",
            f"{100 * threads:.1f} % less",
            "≥ 40 %",
            threads >= 0.4,
        ),
    ]
    columns = ["GPU", "updates a step", "threads", "by sweep", "threads : SM"]
    columns += ["env steps/s, 16 cores", "most env steps/J at cores"]
    left_out = ["balance: all but three GPUs"] if quick else []
    return Part("Threads that a GPU needs (predicted)", columns, rows, bars, left_out)
