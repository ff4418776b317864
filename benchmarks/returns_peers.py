"""One training run of stable-baselines3, or of sbx, with the settings of a case, for its return.

Runs in the interpreter of that library. What a library cannot take is an error, never left out.
"""

from __future__ import annotations

from typing import Any

from benchmarks.kept_runs import judge
from benchmarks.returns_cases import Case

SAME = {"name", "env", "num_envs", "hidden", "discount", "normalise"}
"""Settings that every algorithm has and every library is told of."""
PEERS = {"sb3": "stable-baselines3", "sbx": "sbx-rl"}
"""Peer → what its interpreter must have."""


def train(name: str, case: Case, seed: int) -> dict[str, Any]:
    """Train and judge: `final`, the mean return of 20 fresh episodes of the last policy without
    exploration, and `last_20`, that of the last 20 training episodes."""
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    library, activations = _library(name)
    a = case.algorithm
    envs: Any = DummyVecEnv([lambda: Monitor(gymnasium.make(a["env"]))] * a["num_envs"])
    normalise = a.get("normalise", {})
    if normalise:
        from stable_baselines3.common.vec_env import VecNormalize

        envs = VecNormalize(
            envs, norm_obs=normalise.get("observations", False),
            norm_reward=normalise.get("rewards", False), gamma=a["discount"],
        )  # fmt: skip
    build, settings = _settings(name, case, envs.action_space)
    policy = {"net_arch": a["hidden"], "activation_fn": activations[a.get("activation", "relu")]}
    policy |= settings.pop("policy", {})
    if name == "sb3":
        settings["device"] = "cpu"
    model = getattr(library, build)("MlpPolicy", envs, seed=seed, policy_kwargs=policy, **settings)
    model.learn(case.steps)
    finished, normal = (
        [episode["r"] for episode in model.ep_info_buffer],
        model.get_vec_normalize_env(),
    )

    def act(obs: Any) -> Any:
        seen = obs if normal is None else normal.normalize_obs(obs)
        return model.predict(seen, deterministic=True)[0]

    return {
        "final": judge(a["env"], seed, act),
        "last_20": float(np.mean(finished[-20:])) if finished else None,
        "version": library.__version__,
    }


def _library(name: str) -> tuple[Any, dict[str, Any]]:
    """The library, and its activations by our names."""
    if name == "sb3":
        import stable_baselines3
        from torch import nn

        return stable_baselines3, {"relu": nn.ReLU, "tanh": nn.Tanh}
    import flax.linen
    import sbx

    return sbx, {"relu": flax.linen.relu, "tanh": flax.linen.tanh}


def _settings(name: str, case: Case, space: Any) -> tuple[str, dict[str, Any]]:
    """The library's class and its arguments, from our settings."""
    if case.algorithm["name"] in ("ppo", "a2c"):
        return _on_policy(name, case, space)
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    a, envs = case.algorithm, case.algorithm["num_envs"]
    left = set(a) - SAME - {"batch_size", "replay_ratio", "replay", "target", "learning_starts"}
    left -= {"exploration", "n_step"}
    if a["replay"]["kind"] != "uniform" or a["replay_ratio"] != 1:
        raise ValueError(f"{case.name}: {name} has uniform replay, and gradient steps an env step")
    settings: dict[str, Any] = {
        "batch_size": a["batch_size"], "buffer_size": a["replay"]["capacity"],
        "gamma": a["discount"], "learning_starts": a["learning_starts"], "train_freq": 1,
        "gradient_steps": envs, "n_steps": a.get("n_step", 1),
    }  # fmt: skip
    tau, every = a["target"].get("tau"), a["target"].get("every")
    if a["name"] == "dqn":
        if a["double"] or a["huber"] != 1.0 or (tau and envs > 1):
            raise ValueError(
                f"{case.name}: {name}'s DQN is not double, has the Huber loss from 1 on, and moves "
                "its target once a vector step"
            )
        left -= {"double", "huber", "learning_rate"}
        explore = a["exploration"]
        settings |= {
            "learning_rate": a["learning_rate"], "tau": tau or 1.0,
            "target_update_interval": every or 1, "exploration_initial_eps": explore["initial"],
            "exploration_final_eps": explore["final"],
            "exploration_fraction": explore["steps"] / case.steps,
        }  # fmt: skip
        if name == "sb3":
            settings["max_grad_norm"] = a["max_grad_norm"]
        left -= {"max_grad_norm"}  # sbx does not clip; said in the table's notes
    else:
        rates = {a["actor_learning_rate"], a["critic_learning_rate"]}
        rates |= {a["temperature_learning_rate"]} if a["name"] == "sac" else set()
        if len(rates) > 1 or not tau:
            raise ValueError(f"{case.name}: {name} has one learning rate for all, and a tau")
        settings |= {"learning_rate": rates.pop(), "tau": tau}
        if name == "sbx" and a["name"] == "ddpg":
            settings["qf_learning_rate"] = settings["learning_rate"]
        left -= {"actor_learning_rate", "critic_learning_rate", "temperature_learning_rate"}
        if a["name"] != "sac":
            size = space.shape[0]
            settings["action_noise"] = NormalActionNoise(
                np.zeros(size), np.full(size, a["exploration"]["noise"])
            )
        if a["name"] == "td3":
            settings |= {
                "policy_delay": a["policy_delay"],
                "target_policy_noise": a["smoothing"]["noise"],
                "target_noise_clip": a["smoothing"]["limit"],
            }
            left -= {"policy_delay", "smoothing"}
    _all_told(name, case, left)
    return str(a["name"]).upper(), settings


def _on_policy(name: str, case: Case, space: Any) -> tuple[str, dict[str, Any]]:
    """PPO and A2C. Our actions are shares of half the range, theirs are as the environment has
    them, so the first standard deviation is widened by half the range."""
    import numpy as np

    a = case.algorithm
    own = {"ppo": {"epochs", "minibatches", "clip"}, "a2c": {"normalise_advantages"}}[a["name"]]
    told = {"rollout_steps", "activation", "gae_lambda", "entropy", "value_weight", "anneal"}
    _all_told(
        name, case, set(a) - SAME - own - told - {"learning_rate", "max_grad_norm", "log_std"}
    )
    rate = a["learning_rate"]
    settings: dict[str, Any] = {
        "n_steps": a["rollout_steps"], "gamma": a["discount"], "gae_lambda": a["gae_lambda"],
        "ent_coef": a["entropy"], "vf_coef": a["value_weight"], "max_grad_norm": a["max_grad_norm"],
        "learning_rate": (lambda left: left * rate) if a["anneal"] else rate,
        "normalize_advantage": a.get("normalise_advantages", True),
    }  # fmt: skip
    if "log_std" in a:
        half = float(np.log(0.5 * (space.high - space.low)).mean())
        settings["policy"] = {"log_std_init": a["log_std"] + half}
    if a["name"] == "ppo":
        settings |= {
            "n_epochs": a["epochs"],
            "batch_size": a["num_envs"] * a["rollout_steps"] // a["minibatches"],
            "clip_range": a["clip"],
        }
    return str(a["name"]).upper(), settings


def _all_told(name: str, case: Case, left: set[str]) -> None:
    if left:
        raise ValueError(f"{case.name}: {name} is not told of {', '.join(sorted(left))}")
