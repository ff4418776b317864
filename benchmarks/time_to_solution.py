"""From process start to a solved task: `python -m benchmarks.time_to_solution [CASE …]
[--seeds N] [--peers FOLDER] [--json FILE]`.

Every run is a process of its own on one thread, which ends at its first evaluation that reaches the
threshold. All libraries have the same network, batch, replay ratio and evaluation; they take turns,
seed by seed. Machine code that an earlier run kept is there (ours: compiled kernels, calibration
and plans; sbx and XLA: JAX's persistent compilation cache); `benchmarks.start` times first runs.
Medians over the seeds; a run that does not get there counts as endless. The peers' interpreters are
those of `benchmarks.peers`. Cases that the JSON file has from before, by the same settings, are
shown and judged with the new ones.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bars import (
    ABSENT,
    ONE_THREAD,
    AbsentError,
    Bar,
    answer,
    at_least,
    run_module,
    show,
    verdict,
)
from benchmarks.peers import interpreters
from benchmarks.peers_workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Case:
    """Train until `episodes` greedy episodes have a mean return of `threshold`.

    load: network, batch, replay ratio and the other settings, for every library.
    threshold: gymnasium's for CartPole-v1; -200 for Pendulum-v1, which has none.
    evaluate_every: env steps between two evaluations.
    steps: env steps after which a run has failed.
    longest: env steps of an episode.
    steady: the workload of `benchmarks.peers` with the same work.
    """

    load: Workload
    threshold: float
    evaluate_every: int
    steps: int
    longest: int
    steady: str
    episodes: int = 10

    def ours(self) -> dict[str, Any]:
        """A spec of ours. The plan is free: no limit on its lanes."""
        spec = self.load.ours()
        del spec["limits"]
        evaluation = {"evaluate_every": self.evaluate_every, "evaluate_episodes": self.episodes}
        return spec | {"train": {"steps": self.steps, **evaluation, "final_episodes": 1}}


_DQN = replace(
    WORKLOADS["W1x1"], batch=128, learning_rate=1e-3, target_every=100, explore_steps=10_000
)
"""W1's settings hold 200 and do not reach 475; these do, in some 25,000 env steps."""
CASES = {
    "DQN CartPole-v1": Case(_DQN, 475.0, 2_500, 100_000, 500, "W1x1"),
    "PPO CartPole-v1": Case(WORKLOADS["W4"], 475.0, 8_192, 300_000, 500, "W4"),
    "DDPG Pendulum-v1": Case(WORKLOADS["W3"], -200.0, 1_000, 30_000, 200, "W3"),
    "SAC Pendulum-v1": Case(WORKLOADS["W5"], -200.0, 1_000, 30_000, 200, "W5"),
}


BEGIN = "PEARL_BENCHMARK_BEGIN_S"
"""Environment variable: the monotonic clock when the process was started."""


class Watch:
    """Notes every evaluation of a run.

    evaluations: env steps, mean return, wall and CPU seconds since the process was started.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.evaluations: list[tuple[int, float, float, float]] = []

    def solved(self, env_steps: int, mean: float) -> bool:
        """One more evaluation. Returns whether it reaches the threshold."""
        wall_s, cpu_s = time.monotonic() - float(os.environ[BEGIN]), 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            cpu_s += used.ru_utime + used.ru_stime
        self.evaluations.append((env_steps, mean, wall_s, cpu_s))
        return mean >= self.case.threshold

    def result(self) -> dict[str, Any]:
        """The last evaluation, and all of them.

        Raises:
            RuntimeError: there was none.
        """
        if not self.evaluations:
            raise RuntimeError("the run ended before its first evaluation")
        env_steps, mean, wall_s, cpu_s = self.evaluations[-1]
        return {
            "solved": mean >= self.case.threshold, "env_steps": env_steps, "wall_s": wall_s,
            "cpu_s": cpu_s, "evaluations": self.evaluations,
        }  # fmt: skip


def ours(case: Case, seed: int) -> dict[str, Any]:
    """`pearl.compile` and `train`, as a user writes them; the spec's plan is made or remembered."""
    import pearl

    watch = Watch(case)

    class Solved(pearl.Callback):
        def on_evaluation(self, event: Any) -> Any:
            done = watch.solved(event.eval_env_steps, event.eval_mean)
            return pearl.STOP if done else None

    trainer = pearl.compile(case.ours(), seed=seed)
    trainer.train(callbacks=[Solved()])
    return watch.result() | {"lanes": sum(lane.width > 0 for lane in trainer.plan.lanes)}


def _stable(name: str) -> Callable[[Case, int], dict[str, Any]]:
    """stable-baselines3 or sbx, evaluated by the former's `evaluate_policy` in lock-step."""

    def train(case: Case, seed: int) -> dict[str, Any]:
        import gymnasium
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import DummyVecEnv

        from benchmarks.peers_trainers import stable_model

        watch = Watch(case)

        def make() -> Any:
            return Monitor(gymnasium.make(case.load.env))

        judging = DummyVecEnv([make] * case.episodes)

        class Judge(BaseCallback):
            following = case.evaluate_every

            def _on_step(self) -> bool:
                if self.num_timesteps < self.following:
                    return True
                self.following += case.evaluate_every
                judging.seed(seed)
                mean, _ = evaluate_policy(self.model, judging, case.episodes, deterministic=True)
                return not watch.solved(self.num_timesteps, float(mean))

        model = stable_model(name, case.load, seed, case.steps, make)
        model.learn(case.steps, callback=Judge())
        return watch.result()

    return train


def xla(case: Case, seed: int) -> dict[str, Any]:
    """The whole loop and the evaluation, each one XLA program."""
    import jax
    from jax import lax

    from benchmarks.peers_xla import built, greedy

    watch = Watch(case)
    body, state, per = built(case.load, seed)
    rounds = case.evaluate_every // per
    program = jax.jit(lambda s: lax.scan(body, s, None, rounds)[0], donate_argnums=0)
    judge = jax.jit(greedy(case.load, case.episodes, case.longest))
    for done in range(per * rounds, case.steps + 1, per * rounds):
        state = program(state)
        if watch.solved(done, float(judge(state, jax.random.key(seed)).mean())):
            break
    return watch.result()


RUNS: Mapping[str, Callable[[Case, int], dict[str, Any]]] = {
    "ours": ours, "sb3": _stable("sb3"), "sbx": _stable("sbx"), "xla": xla,
}  # fmt: skip
"""Who → a run."""

Runs = dict[str, list[dict[str, Any]]]
"""Who → what each run gave; those of a seed stand at equal places."""
CARTPOLE = {"sb3": 5.0, "sbx": 3.0}
"""Asked of wall time where starting is most of it; elsewhere the steady ratio is."""
PREPARING_SEED = 1_000
"""Of the run that fills the caches, which does not count."""
LIMIT_S = 1_800.0


def measure(case: str, who: str, seed: int, python: str, caches: Path) -> Any:
    """One run in a process of its own."""
    where = {
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        "PEARL_CACHE_DIR": str(caches / "pearl"),
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    given = ["--one", case, who, "--seed", str(seed)]
    env = ONE_THREAD | where | {BEGIN: str(time.monotonic())}
    return run_module(
        f"{case}, {who}", "benchmarks.time_to_solution", given, python=python, env=env,
        timeout_s=LIMIT_S,
    )  # fmt: skip


def collect(
    name: str, who: Sequence[str], seeds: int, pythons: Mapping[str, str]
) -> tuple[Runs, dict[str, str]]:
    """The runs, and who is absent and why."""
    absent: dict[str, str] = {}
    found: Runs = {each: [] for each in who}
    with tempfile.TemporaryDirectory() as folder:
        for seed in (PREPARING_SEED, *range(seeds)):
            for each in who:
                if each in absent:
                    continue
                python = pythons.get(each, sys.executable)
                try:
                    given = measure(name, each, seed, python, Path(folder))
                except AbsentError as error:
                    absent[each] = str(error)
                    continue
                if seed != PREPARING_SEED:
                    found[each].append(given)
                print(f"{name}, {each}, seed {seed}: {_brief(given)}", flush=True)
    return found, absent


def _brief(given: Mapping[str, Any]) -> str:
    reached = "solved" if given["solved"] else "not solved"
    return (
        f"{reached} after {given['env_steps']:,} env steps, {given['wall_s']:.1f} s, "
        f"{given['cpu_s']:.1f} CPU-s"
    )


def middle(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """The median over runs; one that was not solved counts as endless."""
    return median(run[key] if run["solved"] else math.inf for run in runs)


def rows_of(name: str, runs: Runs) -> list[list[str]]:
    rows = []
    for who, given in runs.items():
        if not given:
            continue
        walls = sorted(run["wall_s"] for run in given if run["solved"])
        rows.append(
            [
                name, who, f"{middle(given, 'wall_s'):.1f} s",
                f"{walls[0]:.1f} – {walls[-1]:.1f}" if walls else "",
                f"{middle(given, 'cpu_s'):.1f} s", f"{middle(given, 'env_steps'):,.0f}",
                f"{len(walls)} of {len(given)}",
            ],
        )  # fmt: skip
    return rows


def bars_of(name: str, case: Case, runs: Runs) -> list[Bar]:
    """What is asked of a case, where the libraries it is about were measured."""
    bars = []
    walls = {who: middle(given, "wall_s") for who, given in runs.items() if given}
    ours = walls.pop("ours", math.inf)
    asked = CARTPOLE if "CartPole" in name else steady(case)
    for who, theirs in walls.items():
        least = max(asked.get(who, 1.0), 1.0)
        text = f"{name}, warm: wall time to {case.threshold:g} beside {who}"
        bars.append(at_least(text, theirs / ours, least, "{:.1f}×"))
    return bars


def steady(case: Case) -> dict[str, float]:
    """Ours over each library in env steps per CPU-second, as `benchmarks.peers` last kept them."""
    file = Path(__file__).parent / "results" / "peers.json"
    kept = json.loads(file.read_text())["runs"].get(case.steady, {})
    rates = {who: median(run["per_cpu_s"] for run in runs) for who, runs in kept.items() if runs}
    return {who: rates["ours"] / rate for who, rate in rates.items() if who in RUNS}


def before(file: str | None) -> dict[str, Any]:
    """The cases that a results file has by the settings of today, in their order here."""
    if file is None or not Path(file).exists():
        return {}
    held = json.loads(Path(file).read_text(encoding="utf-8"))["cases"]
    settings = {name: json.loads(json.dumps(asdict(case))) for name, case in CASES.items()}
    return {n: held[n] for n in CASES if n in held and held[n]["settings"] == settings[n]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each (default 10)")
    parser.add_argument("--who", default=",".join(RUNS), help="libraries, with commas between")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peers", metavar="FOLDER", help="of environments named as the peers")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        case, each = options.one
        return answer(each, lambda: RUNS[each](CASES[case], options.seed))
    names, who = options.cases or [*CASES], options.who.split(",")
    wrong = [name for name in names if name not in CASES] + [w for w in who if w not in RUNS]
    if wrong or options.seeds < 1:
        parser.error(f"{', '.join(wrong)}: cases are {', '.join(CASES)}, who {', '.join(RUNS)}")
    pythons = interpreters(options.peer, options.peers)
    for package in ("pearl", "devices", "estimators", "benchmarks"):  # as an installation does
        compileall.compile_dir(Path(__file__).parents[1] / package, quiet=1)
    kept = before(options.json)
    missing: dict[str, str] = {}
    for name in names:
        case = CASES[name]
        print(f"{name}: {json.dumps(asdict(case))}", flush=True)
        runs, absent = collect(name, who, options.seeds, pythons)
        kept[name] = {"settings": asdict(case), "warm": runs}
        missing |= {f"{name}, {each}": why for each, why in absent.items()}
    rows: list[list[str]] = []
    bars: list[Bar] = []
    for name, found in kept.items():
        rows += rows_of(name, found["warm"])
        bars += bars_of(name, CASES[name], found["warm"])
    columns = ["case", "who", "wall, median", "range", "CPU", "env steps", "solved"]
    show("time to solution", columns, rows)
    status = verdict("time to solution", bars, [], options.json, {"cases": kept})
    for row, why in missing.items():
        print(f"absent: {row}: {why}")
    return ABSENT if missing else status


if __name__ == "__main__":
    sys.exit(main())
