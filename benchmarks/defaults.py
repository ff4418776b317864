"""Defaults, checked by return: `python -m benchmarks.defaults [--cases …] [--seeds N] [--peer …]`.

Trains specs that name an algorithm and an environment and nothing else, and stable-baselines3 with
the settings of rl-baselines3-zoo (its files `hyperparams/<algorithm>.yml`, kept in
`defaults_cases.json`) for as many env steps, in the interpreter that `--peer sb3=…/bin/python`
names. An environment that the zoo has in an older version (LunarLander-v2, Hopper-v3) is taken in
the one that gymnasium has. Schedules of the zoo that fall in a line are `lin_<initial>`, as there.

Prints, for every case, the interquartile mean of the last policy's greedy return over seeds with
its 95 % interval (Agarwal et al. 2021). Runs are kept (`benchmarks.kept_runs`).
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kept_runs import OURS, Kept, judge

SEEDS = 5


@dataclass(frozen=True)
class Case:
    """An algorithm on an environment for `steps` env steps.

    zoo: arguments of stable-baselines3's class, none for its own defaults. envs: its environments.
    normalise: whether it normalises observations and rewards. hidden: widths of both its networks,
    none where the class has its own. policy: further arguments of its policy.
    """

    algorithm: str
    env: str
    steps: int
    zoo: dict[str, Any] = field(default_factory=dict)
    envs: int = 1
    normalise: bool = False
    hidden: list[int] = field(default_factory=list)
    policy: dict[str, Any] = field(default_factory=dict)
    seeds: int = SEEDS
    peers: tuple[str, ...] = ("sb3",)

    @property
    def name(self) -> str:
        return f"{self.algorithm} {self.env}"

    def spec(self) -> dict[str, Any]:
        """Name and environment, and how long; nothing of the algorithm."""
        return {
            "algorithm": {"name": self.algorithm, "env": self.env},
            "train": {"steps": self.steps, "evaluate_every": 0, "final_episodes": 0},
        }

    def settings(self, who: str) -> str:
        """Digest of what decides a run of `who` but for the seed: of ours, the defaults as `load`
        writes them out."""
        if who == "ours":
            import pearl

            decides: Any = dict(pearl.load(self.spec()).raw["algorithm"])
        else:
            decides = [self.zoo, self.envs, self.normalise, self.hidden, self.policy]
        text = json.dumps([self.steps, decides], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


CASES = [
    Case(**row) for row in json.loads((Path(__file__).parent / "defaults_cases.json").read_text())
]
"""The cheaper of stable-baselines3's runs first."""
BY_NAME = {case.name: case for case in CASES}


def ours(case: Case, seed: int) -> dict[str, Any]:
    """The mean return of fresh greedy episodes of the last policy."""
    from importlib.metadata import version

    import pearl
    from pearl.training.policy import FILES

    with tempfile.TemporaryDirectory() as folder:
        trainer = pearl.compile(case.spec(), seed=seed)
        trainer.train(out=folder)
        policy = pearl.Policy.load(Path(folder) / FILES["last"])

    def act(obs: Any) -> Any:
        return policy.act(np.asarray(obs, np.float32).reshape(-1))

    return {"final": judge(case.env, seed, act), "version": version("pearl-toolkit")}


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

        size: Any = gymnasium.make(case.env).action_space.shape
        given["action_noise"] = NormalActionNoise(
            np.zeros(size), given.pop("noise_std") * np.ones(size)
        )
    policy = dict(case.policy) | ({"net_arch": case.hidden} if case.hidden else {})
    build = getattr(stable_baselines3, case.algorithm.upper())
    model = build("MlpPolicy", envs, seed=seed, policy_kwargs=policy, device="cpu", **given)
    model.learn(case.steps)

    def act(obs: Any) -> Any:
        seen = envs.normalize_obs(obs) if case.normalise else obs
        return model.predict(seen, deterministic=True)[0]

    return {"final": judge(case.env, seed, act), "version": stable_baselines3.__version__}


def _scheduled(value: Any) -> Any:
    """`lin_x` as stable-baselines3 takes it: a function of the share that is left."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    initial = float(value.removeprefix("lin_"))
    return lambda left: left * initial


def one(case: Case, who: str, seed: int) -> dict[str, Any]:
    """One run, in the process that it is alone in."""
    return ours(case, seed) if who == OURS else sb3(case, seed)


PEERS = {"sb3": "stable-baselines3"}
DEFAULTS = Kept("defaults", BY_NAME, Case.settings, one, PEERS, ("dqn CartPole-v1", 2))

if __name__ == "__main__":
    sys.exit(DEFAULTS.main(__doc__))
