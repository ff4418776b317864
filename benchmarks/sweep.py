"""Ten seeds by `pearl sweep` on two cores: `python -m benchmarks.sweep [--quick] [--json FILE]`.

One after another: `pearl train --plan` once a seed with the sweep's plan, as a shell loop does it;
the arrays of both are equal bit for bit. The gain is the wall time of
that over the sweep's, from the start of the command to its end. It is held against the gain of two
processes that each multiply matrices, measured before and after each in the same round: what two
cores give on this machine now. stable-baselines3 has the same network, batch, replay ratio, env
steps and evaluations, in plain DQN (no double Q-learning, uniform replay, one-step returns: all of
it less work); its CPU-seconds count from the start of its process too.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bars import ABSENT, ONE_THREAD, at_least, finish, ran
from benchmarks.peers import interpreters
from benchmarks.peers_workloads import WORKLOADS

SPEC = "dqn_cartpole"
SEEDS, STEPS, ROUNDS = 10, 50_000, 3
QUICK_SEEDS, QUICK_STEPS = 4, 6_000
OF_CONTROL, FEWER = 0.95, 15.0
READINGS = 5
"""Of the control, each time."""
LIMIT_S = 3_600.0

EVALUATE_EVERY, EPISODES, FINAL = 2_500, 10, 20
"""Env steps and episodes of the evaluations, as the spec has them; a test compares."""


def spent(command: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command and all its processes; exits where it fails."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = ran(" ".join(command), command, ONE_THREAD, LIMIT_S)
    if done.returncode == ABSENT:
        raise ModuleNotFoundError(done.stderr.strip().splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin_s, cpu_s


def swept(seeds: int, steps: int, folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the sweep."""
    command = [sys.executable, "-m", "pearl", "sweep", SPEC, "--seeds", f"0..{seeds - 1}"]
    return spent([*command, "--set", f"train.steps={steps}", "--out", str(folder)])


def in_turn(seeds: int, steps: int, folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of the runs of a sweep in `folder`, one after another."""
    found, plan = [], folder / "sweep" / "plans" / "plan-1.json"
    for seed in range(seeds):
        command = [sys.executable, "-m", "pearl", "train", SPEC, "--seed", str(seed)]
        command += ["--set", f"train.steps={steps}", "--plan", str(plan)]
        command += ["--out", str(folder / str(seed))]
        found.append(spent(command))
        same(folder / "sweep" / f"seed={seed}", folder / str(seed))
    return sum(wall for wall, _ in found), sum(cpu for _, cpu in found)


def same(one: Path, other: Path) -> None:
    """Exits where two runs have other arrays."""
    from safetensors.numpy import load_file

    first, second = (load_file(run / "checkpoint.safetensors") for run in (one, other))
    wrong = [n for n in first if first[n].tobytes() != second[n].tobytes()]
    if wrong or first.keys() != second.keys():
        sys.exit(f"{one}: a run of the sweep is not the one that is trained alone: {wrong}")


def stable_run(seed: int, steps: int) -> int:
    """One run of stable-baselines3, in its interpreter."""
    try:
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv
    except ModuleNotFoundError as error:
        print(f"stable-baselines3: {error}", file=sys.stderr)
        return ABSENT
    import gymnasium

    from benchmarks.peers_trainers import stable_model

    load = replace(WORKLOADS["W1x8"], explore_steps=min(10_000, steps))
    judging = DummyVecEnv([lambda: Monitor(gymnasium.make(load.env))] * EPISODES)

    class Judge(BaseCallback):
        following = EVALUATE_EVERY

        def _on_step(self) -> bool:
            if self.num_timesteps >= self.following:
                self.following += EVALUATE_EVERY
                evaluate_policy(self.model, judging, EPISODES, deterministic=True)
            return True

    model = stable_model("sb3", load, seed, steps, lambda: Monitor(gymnasium.make(load.env)))
    model.learn(steps, callback=Judge())
    mean, _ = evaluate_policy(model, judging, FINAL, deterministic=True)
    print(mean)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    about = f"{QUICK_SEEDS} seeds of {QUICK_STEPS} env steps, one round; one run of the peer"
    parser.add_argument("--quick", action="store_true", help=about)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peers", metavar="FOLDER", help="of environments named as the peers")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return stable_run(*options.one)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("absent: two cores", file=sys.stderr)
        return ABSENT
    os.sched_setaffinity(0, cores[:2])
    seeds, steps = (QUICK_SEEDS, QUICK_STEPS) if options.quick else (SEEDS, STEPS)
    from benchmarks.two_cores import Control  # the interpreter of the peer lacks what it needs

    rounds, control = list[dict[str, Any]](), Control()
    with tempfile.TemporaryDirectory() as folder:
        swept(2, QUICK_STEPS, Path(folder) / "first")  # compiles and plans: not counted
        for number in range(1 if options.quick else options.rounds):
            here = Path(folder) / str(number)
            given = [control.ratio() for _ in range(READINGS)]
            sweep = swept(seeds, steps, here / "sweep")
            given += [control.ratio() for _ in range(READINGS)]
            alone = in_turn(seeds, steps, here)
            given += [control.ratio() for _ in range(READINGS)]
            rounds.append({"sweep": sweep, "in_turn": alone, "control": median(given)})
    control.close()
    python = interpreters(options.peer, options.peers)["sb3"]
    peer: list[tuple[float, float]] = []
    absent = ""
    try:
        for seed in range(1 if options.quick else seeds):
            run = [python, "-m", "benchmarks.sweep", "--one", str(seed), str(steps)]
            peer.append(spent(run))
    except ModuleNotFoundError as error:
        absent = str(error)
    gains = [r["in_turn"][0] / r["sweep"][0] for r in rounds]
    shares = [gain / r["control"] for gain, r in zip(gains, rounds, strict=True)]
    rows = []
    for n, (r, gain, share) in enumerate(zip(rounds, gains, shares, strict=True), 1):
        times = [f"{r[who][i]:.1f} s" for who in ("sweep", "in_turn") for i in (0, 1)]
        figures = [f"{figure:.2f}" for figure in (gain, r["control"], share)]
        rows.append([f"round {n}", *times, *figures])
    text = f"{seeds} seeds on two cores: gain over that of bare products"
    bars = [at_least(text, median(shares), OF_CONTROL)]
    left_out = [f"{SEEDS} seeds of {STEPS:,} env steps"] if options.quick else []
    if peer and not options.quick:
        ours = median(r["sweep"][1] for r in rounds)
        fewer = sum(cpu for _, cpu in peer) / ours
        text = f"CPU-seconds of stable-baselines3 over ours, {seeds} runs"
        bars.append(at_least(text, fewer, FEWER, "{:.1f} x"))
    elif peer:
        left_out.append(f"stable-baselines3's runs (one of {steps} steps: {peer[0][1]:.1f} CPU-s)")
    columns = ["", "sweep, wall", "CPU", "in turn, wall", "CPU", "gain", "products", "share"]
    values = {"rounds": rounds, "sb3": peer, "seeds": seeds, "steps": steps, "spec": SPEC}
    status = finish("sweep", columns, rows, bars, left_out, options.json, values)
    if absent:
        print(f"absent: {absent}", file=sys.stderr)
    return ABSENT if absent else status


if __name__ == "__main__":
    sys.exit(main())
