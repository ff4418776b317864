"""DQN on CartPole with replay and learner on the simulated FPGA: what the Verilog would learn."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pearl
from benchmarks.bars import Part, at_least

SEEDS, REACHED, LEAST = 5, 475, 4


def run(quick: bool, data: Path | None) -> Part:
    """Five seeds of the shipped spec, two where it is to be quick."""
    rows, seeds = [], 2 if quick else SEEDS
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            trainer = pearl.compile("dqn_cartpole_fpga", emulate=True)
            found = trainer.train(seed=seed, out=Path(folder) / "run")
        tasks = [t.task for t in trainer.plan.tasks if t.device == "fpga"]
        rows.append(
            [
                str(seed),
                f"{found.returns['last_eval_mean']:.1f}",
                f"{found.cpu_s:.1f}",
                ", ".join(tasks),
            ]
        )
    reached = sum(float(row[1]) >= REACHED for row in rows)
    least = LEAST if not quick else seeds - 1
    bars = [at_least(f"seeds of {seeds} that reach {REACHED}", reached, least, "{:.0f}")]
    left_out = [f"seeds from {seeds} on"] if quick else []
    columns = ["seed", "mean of 20 last evaluations", "CPU-seconds", "on the simulated FPGA"]
    return Part("DQN CartPole on the simulated FPGA", columns, rows, bars, left_out)
