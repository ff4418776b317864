"""Defaults, checked by return: `python -m benchmarks.defaults [--cases …] [--seeds N] [--who …]`.

Trains specs that name an algorithm and an environment and nothing else, and stable-baselines3 with
the zoo's settings for as many env steps (`benchmarks.defaults_cases`). Adds what the results file
lacks, one run in a process of its own after another, and writes the file whole after each: it may
be stopped at any time and goes on where it was. Prints, for every case, the interquartile mean of
the last policy's greedy return over seeds with its 95 % interval (Agarwal et al. 2021). Runs of
other settings than today's are not counted and are made again.

`--sb3 PYTHON`: the interpreter that has stable-baselines3; by default this one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import ABSENT, Bar, machine, show, verdict
from benchmarks.defaults_cases import BY_NAME, CASES, EPISODES, SEEDS, Case
from benchmarks.returns_table import interval, iqm

RESULTS = Path(__file__).parent / "results" / "defaults.json"
WHO = ("ours", "sb3")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Results = dict[str, dict[str, dict[str, Any]]]
"""Case → who → {settings, version, seeds: {seed: {final, cpu_s, wall_s}}}."""


def read(path: Path) -> Results:
    """The runs of a results file; none where there is no file. Exits where it is no such file."""
    if not path.exists():
        return {}
    try:
        runs: Results = json.loads(path.read_text(encoding="utf-8"))["cases"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is no results file of this benchmark ({error}); give another --results")
    return runs


def current(runs: Results, case: Case, who: str) -> dict[str, Any]:
    """Seed → run, of the settings as they are now."""
    entry = runs.get(case.name, {}).get(who, {})
    same = bool(entry) and entry["settings"] == case.settings(who)
    seeds: dict[str, Any] = entry["seeds"] if same else {}
    return seeds


def add(path: Path, case: Case, who: str, seed: int, run: dict[str, Any]) -> None:
    """Put one run into the file, read anew, since another process may have added its own."""
    from pearl.files import write_atomically

    runs = read(path)
    seeds = {**current(runs, case, who), str(seed): run}
    entry = {"settings": case.settings(who), "version": run.pop("version"), "seeds": seeds}
    runs.setdefault(case.name, {})[who] = entry
    held = {"schema": 1, "benchmark": "defaults", "machine": machine(), "cases": runs}
    write_atomically(path, (json.dumps(held, indent=1) + "\n").encode())


def one(case: Case, who: str, seed: int) -> dict[str, Any]:
    """One run, in the process that it is alone in."""
    begin, cpu = time.monotonic(), time.process_time()
    run = ours(case, seed) if who == "ours" else sb3(case, seed)
    return run | {
        "cpu_s": round(time.process_time() - cpu, 1),
        "wall_s": round(time.monotonic() - begin, 1),
    }


def ours(case: Case, seed: int) -> dict[str, Any]:
    """The mean return of fresh greedy episodes of the last policy."""
    from importlib.metadata import version

    import pearl
    from pearl.training.policy import FILES

    with tempfile.TemporaryDirectory() as folder:
        trainer = pearl.compile(case.spec(), seed=seed)
        trainer.train(out=folder)
        policy = pearl.Policy.load(Path(folder) / FILES["last"])
    returns = judge(case.env, seed, lambda obs: policy.act(np.asarray(obs, np.float32).reshape(-1)))
    return {"final": round(returns, 4), "version": version("pearl-toolkit")}


def sb3(case: Case, seed: int) -> dict[str, Any]:
    """The same of stable-baselines3 with the settings of the case."""
    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    given = {key: _scheduled(value) for key, value in case.zoo.items()}
    envs: Any = make_vec_env(case.env, case.envs, seed=seed)
    if case.normalise:
        envs = VecNormalize(envs, gamma=given.get("gamma", 0.99))
    if "noise_std" in given:
        from stable_baselines3.common.noise import NormalActionNoise

        size = gymnasium.make(case.env).action_space.shape
        given["action_noise"] = NormalActionNoise(
            np.zeros(size), given.pop("noise_std") * np.ones(size)
        )
    policy = dict(case.policy) | ({"net_arch": list(case.hidden)} if case.hidden else {})
    build = getattr(stable_baselines3, case.algorithm.upper())
    model = build("MlpPolicy", envs, seed=seed, policy_kwargs=policy, device="cpu", **given)
    model.learn(case.steps)

    def act(obs: Any) -> Any:
        seen = envs.normalize_obs(obs) if case.normalise else obs
        return model.predict(seen, deterministic=True)[0]

    return {"final": round(judge(case.env, seed, act), 4), "version": stable_baselines3.__version__}


def judge(env_id: str, seed: int, act: Any) -> float:
    """Mean return of fresh episodes."""
    import gymnasium

    env, returns = gymnasium.make(env_id), []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=1_000_000 * (seed + 1) + episode)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def _scheduled(value: Any) -> Any:
    """`lin_x` as stable-baselines3 takes it: a function of the share that is left."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    initial = float(value.removeprefix("lin_"))
    return lambda left: left * initial


def start(case: Case, who: str, seed: int, python: str) -> dict[str, Any]:
    """`one` in a process of its own; exits with its last words if it fails."""
    command = [python, "-m", "benchmarks.defaults", "--one", case.name, who, str(seed)]
    where = str(Path(__file__).parents[1])
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=where, env=os.environ | ONE_THREAD, check=False
    )
    if done.returncode:
        sys.exit(f"{case.name}, {who}, seed {seed}: {done.stderr.strip()[-2000:]}")
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return run


def finals(seeds: dict[str, Any]) -> list[float]:
    return [float(run["final"]) for run in seeds.values()]


def report(cases: list[Case], runs: Results, seeds: int) -> tuple[list[Bar], list[str]]:
    """Print the table; the bars of the cases that are whole, and the runs that are not there."""
    rows, bars, left_out = [], [], []
    for case in cases:
        here = {who: current(runs, case, who) for who in WHO}
        for who, found in here.items():
            if len(found) < seeds:
                left_out.append(f"{case.name}, {who}: {len(found)} of {seeds} seeds")
            if found:
                values, cpu = finals(found), [run["cpu_s"] for run in found.values()]
                low, high = interval(values)
                rows.append(
                    [case.name, who, str(len(found)), f"{case.steps:,}",
                     f"{float(iqm(np.asarray(values))):.1f}", f"{low:.1f} … {high:.1f}",
                     f"{float(np.median(cpu)):.0f}"]
                )  # fmt: skip
        if min(len(found) for found in here.values()) >= seeds:
            middle = float(iqm(np.asarray(finals(here["ours"]))))
            low, _ = interval(finals(here["sb3"]))
            asked = f"at least {low:.1f}, the low end of sb3's interval"
            bars.append(Bar(f"{case.name}, {seeds} seeds", f"{middle:.1f}", asked, middle >= low))
    columns = ["case", "who", "seeds", "env steps", "mean of the middle half", "95 % interval"]
    show("defaults", [*columns, "CPU s"], rows)
    return bars, left_out


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", metavar="PART", help="parts of the cases' names")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="seeds 0 to N-1")
    parser.add_argument("--who", nargs="+", choices=WHO, default=WHO)
    parser.add_argument("--sb3", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--show", action="store_true", help="run nothing, show what there is")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        name, who, seed = options.one
        print(json.dumps(one(BY_NAME[name], who, int(seed))))
        return 0
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least 1")
    cases = [c for c in CASES if not options.cases or any(p in c.name for p in options.cases)]
    if not cases:
        sys.exit(
            f"--cases {options.cases}: no case has that in its name; there are {list(BY_NAME)}"
        )
    runs = read(options.results)
    todo = [
        (case, who, seed)
        for case in cases
        for who in options.who
        for seed in range(options.seeds)
        if str(seed) not in current(runs, case, who)
    ]
    for done, (case, who, seed) in enumerate([] if options.show else todo):
        run = start(case, who, seed, options.sb3 if who == "sb3" else sys.executable)
        print(f"{done + 1}/{len(todo)} {case.name}, {who}, seed {seed}: {run}", flush=True)
        add(options.results, case, who, seed, run)
    bars, left_out = report(cases, read(options.results), options.seeds)
    status = verdict("defaults", bars, left_out, options.json, {})
    return ABSENT if left_out else status


if __name__ == "__main__":
    sys.exit(main())
