"""Seconds until the first verdict of `pearl advise`, and until the last, for shipped specs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bars import Bar, Part

SPECS = ("dqn_cartpole", "sac_pendulum", "ppo_cartpole", "td3_pendulum", "a2c_cartpole")
PLATFORM = "cpu_gpu_fpga"
FIRST_S, ALL_S = 3.0, 20.0
COMMAND = (sys.executable, "-c", "from pearl.cli import main; main()", "advise")


def timed(spec: str) -> tuple[float, float, int]:
    """Seconds to the first line of standard output and to the end, and verdicts in all."""
    began = time.perf_counter()
    with subprocess.Popen(
        [*COMMAND, spec, "--platform", PLATFORM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        first, verdicts = 0.0, 0
        for line in child.stdout:
            first = first or time.perf_counter() - began
            verdicts += line.endswith("?\n")
    return first, time.perf_counter() - began, verdicts


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others."""
    chosen = SPECS[:2] if quick else SPECS
    rows, firsts, wholes = [], [], []
    for spec in chosen:
        first, whole, verdicts = timed(spec)
        firsts.append(first)
        wholes.append(whole)
        rows.append([spec, f"{first:.2f} s", f"{whole:.1f} s", str(verdicts)])
    bars = [
        Bar("first verdict, worst", f"{max(firsts):.2f} s", f"{FIRST_S} s", max(firsts) <= FIRST_S),
        Bar("all verdicts, worst", f"{max(wholes):.1f} s", f"{ALL_S} s", max(wholes) <= ALL_S),
    ]
    left_out = [f"{len(SPECS) - len(chosen)} of {len(SPECS)} specs"] if quick else []
    columns = ["spec", "first verdict", "all", "verdicts"]
    title = f"pearl advise on {PLATFORM}, wall seconds"
    return Part(title, columns, rows, bars, left_out, {"first_s": firsts, "all_s": wholes})
