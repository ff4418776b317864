"""Learning, checked by return: `python -m benchmarks.returns [--quick] [--json FILE]`.

Trains each shipped configuration once for each of the seeds 0 to 4, and no others, exactly as
`pearl train` does. DQN on CartPole is judged by 20 fresh greedy episodes of the best evaluated
policy, DDPG, TD3 and SAC on Pendulum by the mean return of the last 20 training episodes.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pearl
from benchmarks.bars import Bar, finish

SEEDS = range(5)
CASES = (
    # configuration, figure of the run, least return, seeds that must reach it
    ("dqn_cartpole", "eval_mean", 475.0, 4),
    ("ddpg_pendulum", "mean_last_20", -200.0, 4),
    ("td3_pendulum", "mean_last_20", -200.0, 4),
    ("sac_pendulum", "mean_last_20", -200.0, 4),
)


def train(config: str, seed: int) -> dict[str, Any]:
    """One run of a shipped configuration."""
    run = pearl.compile(config, seed=seed).train()
    return {
        "config": config,
        "seed": seed,
        "env_steps": run.env_steps,
        "eval_mean": run.returns["eval_mean"],
        "mean_last_20": run.returns["mean_last_20"],
        "cpu_s": run.cpu_s,
        "env_steps_per_cpu_s": run.env_steps_per_cpu_s,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="DQN only, seeds 0 to 2")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    results: list[dict[str, Any]] = []
    bars: list[Bar] = []
    left_out: list[str] = []
    for config, figure, least, needed in CASES:
        if options.quick and config != "dqn_cartpole":
            left_out.append(f"{config}: {figure} at least {least}")
            continue
        seeds = list(SEEDS)[:3] if options.quick else list(SEEDS)
        runs = [train(config, seed) for seed in seeds]
        results += runs
        for run in runs:
            rows.append(
                [
                    config,
                    str(run["seed"]),
                    str(run["env_steps"]),
                    f"{run['eval_mean']:.1f}",
                    f"{run['mean_last_20']:.1f}",
                    f"{run['cpu_s']:.1f}",
                ]
            )
        reached = sum(run[figure] >= least for run in runs)
        if options.quick:
            left_out.append(f"{config}: {needed} of 5 seeds ({reached} of 3 reached {least})")
        else:
            bars.append(
                Bar(
                    f"{config}: seeds of 0–4 with {figure} at least {least:g}",
                    str(reached),
                    f"at least {needed}",
                    reached >= needed,
                )
            )
    columns = ["configuration", "seed", "env steps", "greedy, 20 fresh", "last 20", "CPU s"]
    return finish("returns", columns, rows, bars, left_out, options.json, {"runs": results})


if __name__ == "__main__":
    sys.exit(main())
