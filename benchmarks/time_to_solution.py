"""From process start to a solved task: `python -m benchmarks.time_to_solution [--cases …]
[--seeds N] [--peer …]`.

Every run is a process of its own on one thread, which ends at its first evaluation that reaches the
threshold. All libraries have the same network, batch, replay ratio and evaluation. Machine code
that an earlier run kept is there: a first run of each, which does not count, leaves it (ours:
compiled kernels, calibration and plans; sbx and XLA: JAX's persistent compilation cache).
`benchmarks.start` times first runs. Medians over the seeds; a run that does not get there counts as
endless. A peer runs in the interpreter that `--peer sb3=…/bin/python` names. Runs are kept
(`benchmarks.kept_runs`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bars import Bar, at_least, show
from benchmarks.kept_runs import BEGIN, OURS, Kept
from benchmarks.peers_workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Case:
    """Train until `episodes` greedy episodes have a mean return of `threshold`.

    name: of the case. load: network, batch, replay ratio and the other settings, for every library.
    threshold: gymnasium's for CartPole-v1; -200 for Pendulum-v1, which has none.
    evaluate_every: env steps between two evaluations.
    steps: env steps after which a run has failed.
    longest: env steps of an episode.
    steady: the workload of `benchmarks.peers` with the same work.
    """

    name: str
    load: Workload
    threshold: float
    evaluate_every: int
    steps: int
    longest: int
    steady: str
    episodes: int = 10
    seeds: int = 10
    peers: tuple[str, ...] = ("sb3", "sbx", "xla")

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
CASES = (
    Case("DQN CartPole-v1", _DQN, 475.0, 2_500, 100_000, 500, "W1x1"),
    Case("PPO CartPole-v1", WORKLOADS["W4"], 475.0, 8_192, 300_000, 500, "W4"),
    Case("DDPG Pendulum-v1", WORKLOADS["W3"], -200.0, 1_000, 30_000, 200, "W3"),
    Case("SAC Pendulum-v1", WORKLOADS["W5"], -200.0, 1_000, 30_000, 200, "W5"),
)
BY_NAME = {case.name: case for case in CASES}


def settings_of(case: Case, who: str) -> str:
    """Digest of what decides a run, the same for all."""
    decides = asdict(case) | {"seeds": 0, "peers": ()}
    decides["load"] |= {"what": "", "steps": 0, "peer_steps": {}}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]


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
    OURS: ours, "sb3": _stable("sb3"), "sbx": _stable("sbx"), "xla": xla,
}  # fmt: skip
"""Who → a run."""
PEERS = {"sb3": "stable-baselines3", "sbx": "sbx-rl", "xla": "jax"}
"""Peer → what its interpreter must have."""
CARTPOLE = {"sb3": 5.0, "sbx": 3.0}
"""Asked of wall time where starting is most of it; elsewhere the steady ratio is."""


def one(case: Case, who: str, seed: int) -> dict[str, Any]:
    """One run, in the process that it is alone in."""
    return RUNS[who](case, seed) | {"version": version(PEERS.get(who, "pearl-toolkit"))}


def middle(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """The median over runs; one that was not solved counts as endless."""
    return median(run[key] if run["solved"] else math.inf for run in runs)


def tables(
    title: str, cases: Sequence[Case], runs: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[Bar]:
    """Print a line for everyone in every case, and return the bars."""
    rows, bars = list[list[str]](), list[Bar]()
    for case in cases:
        here = {who: [*seeds.values()] for who, seeds in runs[case.name].items() if seeds}
        for who, given in here.items():
            walls = sorted(run["wall_s"] for run in given if run["solved"])
            rows.append(
                [
                    case.name, who, f"{middle(given, 'wall_s'):.1f} s",
                    f"{walls[0]:.1f} – {walls[-1]:.1f}" if walls else "",
                    f"{middle(given, 'cpu_s'):.1f} s", f"{middle(given, 'env_steps'):,.0f}",
                    f"{len(walls)} of {len(given)}",
                ],
            )  # fmt: skip
        bars += bars_of(case, here)
    columns = ["case", "who", "wall, median", "range", "CPU", "env steps", "solved"]
    show("time to solution", columns, rows)
    return bars


def bars_of(case: Case, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Bar]:
    """What is asked of a case, where the libraries it is about were measured."""
    bars = []
    walls = {who: middle(given, "wall_s") for who, given in runs.items()}
    ours = walls.pop(OURS, math.inf)
    asked = CARTPOLE if "CartPole" in case.name else steady(case)
    for who, theirs in walls.items():
        least = max(asked.get(who, 1.0), 1.0)
        text = f"{case.name}, warm: wall time to {case.threshold:g} beside {who}"
        bars.append(at_least(text, theirs / ours, least, "{:.1f}×"))
    return bars


def steady(case: Case) -> dict[str, float]:
    """Ours over each library in env steps per CPU-second, as `benchmarks.peers` last kept them."""
    file = Path(__file__).parent / "results" / "peers.json"
    kept = json.loads(file.read_text())["runs"].get(case.steady, {})
    rates = {who: median(run["per_cpu_s"] for run in runs) for who, runs in kept.items() if runs}
    return {who: rates["ours"] / rate for who, rate in rates.items() if who in RUNS}


QUICK = ("PPO CartPole-v1", 2)
TIMES = Kept("time_to_solution", BY_NAME, settings_of, one, PEERS, QUICK, tables, prepared=True)

if __name__ == "__main__":
    sys.exit(TIMES.main(__doc__))
