"""Specs of a name and an environment alone, and the settings of the peer that each is judged by.

Plain data: the interpreter of the peer imports it too. `ZOO` is rl-baselines3-zoo, its file
`hyperparams/<algorithm>.yml`; an environment that the zoo has in an older version (LunarLander-v2,
Hopper-v3) is taken in the one that gymnasium has. Schedules of the zoo that fall in a line are
`lin_<initial>`, as there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

ZOO = "rl-baselines3-zoo, hyperparams"
OWN = "stable-baselines3's own defaults: the zoo has no entry"
SEEDS = 5


@dataclass(frozen=True)
class Case:
    """An algorithm on an environment for `steps` env steps.

    zoo: arguments of stable-baselines3's class. envs: its environments. normalise: whether it
    normalises observations and rewards. hidden: widths of both its networks, () where the class
    has its own. policy: further arguments of its policy. source: of these settings.
    """

    algorithm: str
    env: str
    steps: int
    zoo: dict[str, Any] = field(default_factory=dict)
    envs: int = 1
    normalise: bool = False
    hidden: tuple[int, ...] = ()
    policy: dict[str, Any] = field(default_factory=dict)
    source: str = ZOO
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


_WIDE = (256, 256)
_DQN = {
    "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0,
    "gamma": 0.99, "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1,
    "exploration_fraction": 0.12, "exploration_final_eps": 0.1,
}  # fmt: skip
_MUJOCO = {"learning_starts": 10_000}
_BIPEDAL = {
    "learning_rate": 7.3e-4, "buffer_size": 300_000, "batch_size": 256, "ent_coef": "auto",
    "gamma": 0.98, "tau": 0.02, "train_freq": 64, "gradient_steps": 64, "learning_starts": 10_000,
    "use_sde": True,
}  # fmt: skip

CASES = (
    Case(
        "ppo", "CartPole-v1", 100_000,
        {
            "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
            "ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
        },
        envs=8,
    ),
    Case(
        "dqn", "CartPole-v1", 50_000,
        {
            "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
            "learning_starts": 1000, "gamma": 0.99, "target_update_interval": 10, "train_freq": 256,
            "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04,
        },
        hidden=_WIDE,
    ),
    Case(
        "dqn", "MountainCar-v0", 100_000,
        {
            "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000,
            "learning_starts": 1000, "gamma": 0.98, "target_update_interval": 600, "train_freq": 16,
            "gradient_steps": 8, "exploration_fraction": 0.2, "exploration_final_eps": 0.07,
        },
        hidden=_WIDE,
    ),
    Case(
        "ppo", "LunarLander-v3", 300_000,
        {
            "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
            "ent_coef": 0.01,
        },
        envs=16,
    ),
    Case("sac", "InvertedPendulum-v5", 10_000, {}, source=OWN),
    Case(
        "ppo", "Acrobot-v1", 100_000,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        envs=16, normalise=True,
    ),
    Case("dqn", "Acrobot-v1", 100_000, dict(_DQN), hidden=_WIDE),
    Case("dqn", "LunarLander-v3", 100_000, dict(_DQN), hidden=_WIDE),
    Case("sac", "Pendulum-v1", 20_000, {"learning_rate": 1e-3}),
    Case(
        "td3", "Pendulum-v1", 20_000,
        {
            "learning_rate": 1e-3, "buffer_size": 200_000, "gamma": 0.98, "learning_starts": 10_000,
            "noise_std": 0.1, "train_freq": 1,
        },
        hidden=(400, 300),
    ),
    Case(
        "ppo", "InvertedPendulum-v5", 100_000,
        {
            "batch_size": 64, "n_steps": 32, "gamma": 0.999, "learning_rate": 0.000222425,
            "ent_coef": 1.37976e-07, "clip_range": 0.4, "n_epochs": 5, "gae_lambda": 0.9,
            "max_grad_norm": 0.3, "vf_coef": 0.19816,
        },
        normalise=True,
    ),
    Case("sac", "Hopper-v5", 50_000, dict(_MUJOCO)),
    Case(
        "sac", "BipedalWalker-v3", 50_000, dict(_BIPEDAL), hidden=(400, 300),
        policy={"log_std_init": -3},
    ),
)  # fmt: skip
"""The cheaper of stable-baselines3's runs first."""
BY_NAME = {case.name: case for case in CASES}
