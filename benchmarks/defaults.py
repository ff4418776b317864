"""Defaults, checked by return: `python -m benchmarks.defaults [--cases …] [--seeds N] [--peer …]`.

Trains specs that name an algorithm and an environment and nothing else, and stable-baselines3 with
the zoo's settings for as many env steps (`benchmarks.defaults_cases`), in the interpreter that
`--peer sb3=…/bin/python` names. Prints, for every case, the interquartile mean of the last policy's
greedy return over seeds with its 95 % interval (Agarwal et al. 2021). Runs are kept
(`benchmarks.kept_runs`).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults_cases import BY_NAME, Case
from benchmarks.kept_runs import OURS, Kept, judge


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
    policy = dict(case.policy) | ({"net_arch": list(case.hidden)} if case.hidden else {})
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
