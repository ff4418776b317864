"""What it costs to record where the time of lanes goes, and how well that cost is taken off:
`python -m benchmarks.lane_times [--pairs N] [--json FILE]`.

Each case trains as it ships, with no call timed, and with every call timed, by turns and in a
random order. Seconds are CPU-seconds of the steady stretch per iteration, child processes
included. `always on` is the shipped run over the run without timing. `corrected` is the run with
every call timed, without the seconds that its lanes say timing took, over the run without timing.
`parts` are the parts of a lane's time over the time that a clock at its two ends gives.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping
from statistics import median
from typing import Any
from unittest.mock import patch

import pearl
from benchmarks.bars import Bar, finish
from pearl.planning.lane_times import LaneTime
from pearl.planning.plans import Plan
from pearl.runtime.protocol.lane_recorder import UNTIMED, Sampling, plan_sampling, stamp_s

QUIET = {"train.evaluate_every": 0, "train.final_episodes": 0}
LANES = {
    "limits.max_lanes": 2,
    "limits.apart": [["step", "learn"]],
    "limits.policy_lag": 1,
    "train.lanes": "threads",
}
CASES: dict[str, tuple[str, int, Mapping[str, Any]]] = {
    "DQN CartPole": ("dqn_cartpole", 120_000, {}),
    "DQN CartPole, two lanes": ("dqn_cartpole", 60_000, LANES),
    "PPO CartPole": ("ppo_cartpole", 150_000, {}),
    "SAC Pendulum": ("sac_pendulum", 4_000, {}),
    "Q-learning FrozenLake": ("q_learning_frozenlake", 60_000, {}),
}
"""Case → spec, env steps, and keys that are set."""

MOST, NEAR, SUM = 0.01, 0.10, 0.01
"""Asked: cost at most, how near the corrected time is, and how near the sum of the parts is."""


def every_call(calls: int, period_s: float, begin: int, total: int) -> Sampling:
    window = plan_sampling(calls, period_s, begin, total)
    return Sampling(1, window.first, window.last)


WAYS = {"untimed": lambda *_: UNTIMED, "shipped": plan_sampling, "every call": every_call}


def trained(case: str, way: str, plan: Plan | None) -> pearl.Run:
    """A run of a case with the calls timed in one way."""
    spec, steps, keys = CASES[case]
    with patch("pearl.training.lane_binding.plan_sampling", WAYS[way]):
        return pearl.compile(spec, set={**QUIET, **keys}, plan=plan).train(steps=steps)


def cpu_s(run: pearl.Run) -> float:
    """CPU-seconds of the steady stretch for each of its env steps."""
    return run.steady["cpu_s"] / run.steady["env_steps"]


def profiler_share(run: pearl.Run) -> float:
    """The share of the time of the lanes that timing took, by what they say."""
    return sum(k.profiler_s for k in run.lanes) / sum(k.wall_s for k in run.lanes)


def sum_over_wall(k: LaneTime) -> float:
    """The parts of the time of a lane over the whole."""
    parts = sum(c.busy_s + c.python_s + c.transfer_s + c.waiting_s for c in k.calls)
    return (parts + k.runtime_s + k.python_s + k.held_s + k.profiler_s) / k.wall_s


def measured(case: str, pairs: int, order: random.Random) -> dict[str, float]:
    """The figures of a case; medians over the pairs."""
    plan = trained(case, "shipped", None).plan
    on, corrected, full, sums = [], [], [], []
    for _ in range(pairs):
        ways = list(WAYS)
        order.shuffle(ways)
        runs = {way: trained(case, way, plan) for way in ways}
        bare_s = cpu_s(runs["untimed"])
        on.append(cpu_s(runs["shipped"]) / bare_s - 1)
        full.append(cpu_s(runs["every call"]) / bare_s - 1)
        left_s = cpu_s(runs["every call"]) * (1 - profiler_share(runs["every call"]))
        corrected.append(left_s / bare_s - 1)
        sums += [abs(sum_over_wall(k) - 1) for k in runs["shipped"].lanes]
    half = sorted(on)
    return {
        "always_on": median(on),
        "always_on_low": half[len(half) // 4],
        "always_on_high": half[-1 - len(half) // 4],
        "said": profiler_share(runs["shipped"]),
        "every_call": median(full),
        "corrected": median(corrected),
        "parts_off": max(sums),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9, metavar="N")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    order, kept, rows, bars = random.Random(0), {}, [], []
    print(f"timing a call takes {stamp_s() * 1e9:.0f} ns")
    for case in CASES:
        found = kept[case] = measured(case, options.pairs, order)
        print(case, {k: f"{v:+.2%}" for k, v in found.items()}, flush=True)
        middle = f"{found['always_on_low']:+.1%} to {found['always_on_high']:+.1%}"
        rows.append(
            [case, f"{found['always_on']:+.2%}", middle, f"{found['said']:.2%}",
             f"{found['every_call']:+.2%}", f"{found['corrected']:+.2%}",
             f"{found['parts_off']:.2%}"]
        )  # fmt: skip
        for what, key, most in (
            ("always on", "always_on", MOST),
            ("corrected", "corrected", NEAR),
            ("parts of the lanes", "parts_off", SUM),
        ):
            value = found[key] if key == "always_on" else abs(found[key])
            bars.append(
                Bar(f"{case}: {what}", f"{found[key]:+.2%}", f"at most {most:.0%}", value <= most)
            )
    columns = ["case", "always on", "middle half", "by the lanes", "every call timed",
               "corrected", "parts off"]  # fmt: skip
    return finish("lane times", columns, rows, bars, [], options.json, {"cases": kept})


if __name__ == "__main__":
    sys.exit(main())
