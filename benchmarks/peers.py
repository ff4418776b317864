"""Speed beside other libraries: `python -m benchmarks.peers [--quick] [--json FILE]`.

W1: DQN on CartPole-v1, network 64-64, batch 64, replay ratio 1, 8 environments, one thread; env
steps per CPU-second after 2,000 warm-up steps. Ours and stable-baselines3 take turns, each run in a
process of its own; medians and the ratio pair by pair. stable-baselines3 comes with the extra
`[bench]`, or from another environment whose interpreter `--peer-python` names.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bars import ABSENT, Bar, finish

WARM = 2_000
STEPS = {"ours": 60_000, "ours, gymnasium": 60_000, "ours, prioritised": 60_000, "sb3": 12_000}
W1 = {
    "algorithm": {
        "name": "dqn",
        "env": "CartPole-v1",
        "num_envs": 8,
        "hidden": [64, 64],
        "batch_size": 64,
        "replay_ratio": 1,
        "replay": {"kind": "uniform", "capacity": 50_000},
        "learning_rate": 5e-4,
        "discount": 0.99,
        "double": False,
        "target": {"every": 500},
        "exploration": {"initial": 1.0, "final": 0.05, "steps": 5_000},
        "learning_starts": 1_000,
    },
    "platform": "host",
    "limits": {"max_lanes": 1},
    "train": {"steps": 60_000, "evaluate_every": 0, "final_episodes": 0},
}


def ours(name: str, seed: int) -> float:
    """Env steps per CPU-second of our own run."""
    import pearl

    changes: dict[str, object] = {}
    if "gymnasium" in name:
        changes["limits.variants"] = {"env_step": ["gymnasium"]}
    if "prioritised" in name:
        changes["algorithm.replay.kind"] = "prioritised"
        changes["algorithm.double"] = True
    run = pearl.compile(W1, set=changes, seed=seed).train(steps=STEPS[name])
    assert run.env_steps_per_cpu_s is not None
    return run.env_steps_per_cpu_s


def stable_baselines3(seed: int) -> float:
    """Env steps per CPU-second of stable-baselines3 with the same settings."""
    import gymnasium
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Meter(BaseCallback):
        begin: tuple[int, float] | None = None

        def _on_step(self) -> bool:
            if self.begin is None and self.num_timesteps > WARM:
                self.begin = (self.num_timesteps, time.process_time())
            return True

    torch.set_num_threads(1)
    envs = DummyVecEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(8)])
    steps, meter = STEPS["sb3"], Meter()
    model = DQN(
        "MlpPolicy",
        envs,
        seed=seed,
        device="cpu",
        gamma=0.99,
        learning_rate=5e-4,
        batch_size=64,
        buffer_size=50_000,
        learning_starts=1_000,
        train_freq=1,
        gradient_steps=8,
        target_update_interval=500,
        exploration_initial_eps=1.0,
        exploration_final_eps=0.05,
        exploration_fraction=5_000 / steps,
        policy_kwargs={"net_arch": [64, 64]},
    )
    model.learn(steps, callback=meter)
    assert meter.begin is not None
    at, since = meter.begin
    return (model.num_timesteps - at) / (time.process_time() - since)


def measure(name: str, seed: int, python: str) -> float | None:
    """One run in a process of its own; None if the library is not there."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    root = str(Path(__file__).parents[1])
    command = [python, "-m", "benchmarks.peers", "--one", name, "--seed", str(seed)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | one_thread,
        timeout=600,
        check=False,
    )
    if done.returncode == ABSENT:
        return None
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["env_steps_per_cpu_s"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one pair instead of three")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--one", choices=sorted(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        try:
            if options.one == "sb3":
                rate = stable_baselines3(options.seed)
            else:
                rate = ours(options.one, options.seed)
        except ModuleNotFoundError as error:
            print(f"{options.one}: {error}", file=sys.stderr)
            return ABSENT
        print(json.dumps({"env_steps_per_cpu_s": rate}))
        return 0
    rates: dict[str, list[float]] = {name: [] for name in STEPS}
    measure("ours", 0, sys.executable)  # compiles once, so that no counted run does
    for seed in range(1 if options.quick else 3):
        for name in STEPS:
            rate = measure(name, seed, options.peer_python if name == "sb3" else sys.executable)
            if rate is None:
                print("stable-baselines3 is not installed: pip install -e '.[bench]'")
                return ABSENT
            rates[name].append(rate)
    rows = []
    for name, values in rates.items():
        ratios = [v / s for v, s in zip(values, rates["sb3"], strict=True)]
        rows.append(
            [
                name,
                f"{statistics.median(values):,.0f}",
                f"{min(values):,.0f} – {max(values):,.0f}",
                f"{statistics.median(ratios):.1f}",
            ]
        )
    ratio = statistics.median(a / b for a, b in zip(rates["ours"], rates["sb3"], strict=True))
    bar = Bar(
        "W1, 8 envs: ours over stable-baselines3", f"{ratio:.1f}×", "at least 15×", ratio >= 15
    )
    columns = ["library", "env steps per CPU-s, median", "range", "× stable-baselines3, by pairs"]
    left_out = ["three pairs instead of one"] if options.quick else []
    return finish("peers", columns, rows, [bar], left_out, options.json, {"rates": rates})


if __name__ == "__main__":
    sys.exit(main())
