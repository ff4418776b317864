"""What is trained to judge learning: one table, the same settings for every library.

Plain data: the interpreters of the peers import it too. Tuned on seeds from 100 on, judged on 0 …
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

EPISODES = 20
"""Fresh episodes of the last policy, without exploration, that judge a run."""
ZOO = "rl-baselines3-zoo, benchmark.md, one run"
CLEANRL = "CleanRL, docs/rl-algorithms/dqn.md"


@dataclass(frozen=True)
class Published:
    """A figure that others publish: mean return and standard deviation after so many env steps."""

    mean: float
    deviation: float
    steps: int
    source: str


@dataclass(frozen=True)
class Case:
    """One algorithm on one environment for `steps` env steps.

    algorithm: the settings, as a spec of ours has them. seeds: how many are asked for. peers: who
    runs the same settings. episodes: fresh greedy ones that judge the last policy. optimum: the
    known best return, where there is one. limits: of the spec, beside a single lane.
    """

    name: str
    steps: int
    algorithm: dict[str, Any]
    seeds: int = 10
    episodes: int = EPISODES
    peers: tuple[str, ...] = ()
    optimum: float | None = None
    limits: dict[str, Any] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        """A spec of ours: the last policy is judged."""
        return {
            "algorithm": self.algorithm,
            "platform": "host",
            "limits": {"max_lanes": 1, **self.limits},
            "train": {"steps": self.steps, "evaluate_every": 0, "final_episodes": self.episodes},
        }

    def fingerprint(self) -> str:
        """Short digest of everything that decides a run's return, but for the seed."""
        decides = [self.steps, self.algorithm] + ([self.limits] if self.limits else [])
        text = json.dumps(decides, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Shipped:
    """A shipped configuration exactly as `pearl train` runs it, seeds 0 to 4.

    figure: of the run's `returns`, which at least `needed` seeds must have reach `least`.
    """

    config: str
    figure: str
    least: float
    needed: int = 4
    seeds: int = 5
    peers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"shipped {self.config}"


_UNIFORM = {"kind": "uniform", "capacity": 50_000}
_DQN: dict[str, Any] = {
    "name": "dqn",
    "num_envs": 1,  # there the peers move the target after every gradient step, as we do
    "hidden": [64, 64],
    "batch_size": 128,
    "replay_ratio": 1,
    "replay": _UNIFORM,
    "n_step": 3,
    "discount": 0.99,
    "learning_rate": 1e-3,
    "double": False,  # as stable-baselines3's DQN is
    "huber": 1.0,
    "max_grad_norm": 10.0,
    "target": {"tau": 0.01},
    "exploration": {"initial": 1.0, "final": 0.05, "steps": 10_000},
    "learning_starts": 1_000,
}
_ACTOR_CRITIC: dict[str, Any] = {
    "num_envs": 4, "hidden": [128, 128], "batch_size": 128, "replay_ratio": 1, "replay": _UNIFORM,
    "discount": 0.99, "actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3,
    "target": {"tau": 0.005}, "learning_starts": 1_000,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "ddpg": {"exploration": {"noise": 0.1}},
    "td3": {
        "exploration": {"noise": 0.1}, "policy_delay": 2, "smoothing": {"noise": 0.2, "limit": 0.5},
    },
    "sac": {"temperature_learning_rate": 1e-3},
}  # fmt: skip
"""What each actor-critic adds."""
_CAR: dict[str, Any] = {"hidden": [64, 64], "learning_starts": 10_000}
_CAR_NOISE: dict[str, Any] = {"exploration": {"noise": 3.0}}
"""What MountainCarContinuous changes. The goal is found by nearly full actions of random sign: with
noise of 0.5, or of 1 in TD3, no seed found it."""
_MUJOCO: dict[str, Any] = {
    "num_envs": 1, "hidden": [256, 256], "batch_size": 256,
    "replay": {"kind": "uniform", "capacity": 50_000}, "learning_starts": 5_000,
}  # fmt: skip
"""What MuJoCo's environments change."""


def _actor_critics(
    env: str,
    steps: int,
    settings: dict[str, Any] | None = None,
    own: dict[str, dict[str, Any]] | None = None,
    **changes: Any,
) -> tuple[Case, ...]:
    """DDPG, TD3 and SAC on one environment. settings: of all three; own: of each. Changes of `Case`
    have its fields' names."""
    shared, each = settings or {}, own or {}
    return tuple(
        Case(
            f"{name} {env}",
            steps,
            {"name": name, "env": env, **_ACTOR_CRITIC, **added, **shared, **each.get(name, {})},
            **changes,
        )
        for name, added in _OWN.items()
    )


_ROLLOUT: dict[str, Any] = {
    "num_envs": 8, "hidden": [64, 64], "discount": 0.99, "activation": "tanh", "entropy": 0.0,
    "value_weight": 0.5, "max_grad_norm": 0.5, "anneal": False,
}  # fmt: skip
_PPO: dict[str, Any] = {
    "name": "ppo", **_ROLLOUT, "rollout_steps": 128, "gae_lambda": 0.95, "epochs": 10,
    "minibatches": 8, "clip": 0.2, "learning_rate": 1e-3,
}  # fmt: skip
_A2C: dict[str, Any] = {
    "name": "a2c", **_ROLLOUT, "rollout_steps": 8, "gae_lambda": 0.95,
    "normalise_advantages": False, "learning_rate": 7e-4,
}  # fmt: skip


def _on_policy(
    settings: dict[str, Any], env: str, steps: int, seeds: int = 10, **changes: Any
) -> Case:
    name = settings["name"]
    peers = ("sb3", "sbx") if name == "ppo" else ("sb3",)
    return Case(f"{name} {env}", steps, {**settings, "env": env, **changes}, seeds, peers=peers)


_LAKE: dict[str, Any] = {
    "learning_rate": 1.0,
    "learning_rate_power": 0.6,
    "exploration": {"initial": 1.0, "final": 0.1, "steps": 200_000},
}
_CLIFF: dict[str, Any] = {"learning_rate": 0.5, "env_args": {"max_episode_steps": 500}}


def _tabular(
    env: str, steps: int, optimum: float, episodes: int, settings: dict[str, Any]
) -> tuple[Case, ...]:
    """Q-learning and SARSA. Without other settings, values that start at 0 and a greedy policy:
    above every true value, that explores by itself. optimum: by backward induction over the steps
    of an episode, from the environment's own transition table."""
    greedy = {"initial": 0.0, "final": 0.0, "steps": 1}
    shared = {"env": env, "num_envs": 4, "discount": 0.99, "exploration": greedy, **settings}
    return tuple(
        Case(f"{name} {env}", steps, {"name": name, **shared}, 10, episodes, optimum=optimum)
        for name in ("q_learning", "sarsa")
    )


_TAXI: dict[str, Any] = {"env": "pearl_devices.masks:unmasked", "env_args": {"env": "Taxi-v4"}}
"""Its mask says which actions change the state; all six are legal."""
_NORMAL: dict[str, Any] = {"normalise": {"observations": True, "rewards": True}}


_BFLOAT16: dict[str, Any] = {"variants": {"learn": ["torch-bf16"]}}
"""Updates whose products between hidden layers are in bfloat16."""


SHIPPED = (
    Shipped("dqn_cartpole", "eval_mean", 475.0),
    Shipped("ddpg_pendulum", "mean_last_20", -200.0),
    Shipped("td3_pendulum", "mean_last_20", -200.0),
    Shipped("sac_pendulum", "mean_last_20", -200.0),
)
CASES: tuple[Case, ...] = (
    Case("dqn CartPole-v1", 50_000, {**_DQN, "env": "CartPole-v1"}, peers=("sb3", "sbx")),
    Case("dqn Acrobot-v1", 100_000, {**_DQN, "env": "Acrobot-v1"}, peers=("sb3", "sbx")),
    *_actor_critics("Pendulum-v1", 20_000, peers=("sb3", "sbx")),
    *_actor_critics(
        "MountainCarContinuous-v0", 50_000, _CAR, {"ddpg": _CAR_NOISE, "td3": _CAR_NOISE},
        peers=("sb3", "sbx"),
    ),
    _on_policy(_PPO, "CartPole-v1", 100_000),
    _on_policy(_PPO, "Acrobot-v1", 200_000),
    _on_policy(_PPO, "Pendulum-v1", 100_000, discount=0.9),
    _on_policy(_PPO, "MountainCarContinuous-v0", 100_000, **_NORMAL),
    _on_policy(_A2C, "CartPole-v1", 200_000),
    _on_policy(_A2C, "Acrobot-v1", 500_000),
    _on_policy(_A2C, "Pendulum-v1", 200_000, **{**_NORMAL, "discount": 0.9}),
    _on_policy(_A2C, "MountainCarContinuous-v0", 100_000, **_NORMAL),
    *(
        replace(case, name=f"{case.name}, bfloat16", peers=(), limits=_BFLOAT16)
        for case in _actor_critics("Pendulum-v1", 20_000)
        if case.algorithm["name"] in ("ddpg", "sac")
    ),
    *_tabular("FrozenLake-v1", 400_000, 0.7441902878292689, 2_000, _LAKE),
    *_tabular("Taxi-v4", 300_000, 7.93, 2_000, {"learning_rate": 0.5, **_TAXI}),
    *_tabular("CliffWalking-v1", 60_000, -13.0, 1, _CLIFF),
    *_actor_critics("HalfCheetah-v5", 50_000, _MUJOCO, peers=("sb3", "sbx"), seeds=3),
    *_actor_critics("Hopper-v5", 50_000, _MUJOCO, peers=("sb3", "sbx"), seeds=3),
    _on_policy(_PPO, "HalfCheetah-v5", 50_000, seeds=3, **_NORMAL),
    _on_policy(_PPO, "Hopper-v5", 50_000, seeds=3, **_NORMAL),
    _on_policy(_A2C, "HalfCheetah-v5", 50_000, seeds=3, **_NORMAL),
    _on_policy(_A2C, "Hopper-v5", 50_000, seeds=3, **_NORMAL),
)  # fmt: skip
"""Cheapest first, as they are run."""
_ALL: tuple[Case | Shipped, ...] = (*SHIPPED, *CASES)
BY_NAME = {case.name: case for case in _ALL}

SDE = f"{ZOO}, state-dependent noise"
PUBLISHED = {
    "dqn CartPole-v1": (
        Published(500.0, 0.0, 50_000, ZOO), Published(488.69, 16.11, 500_000, CLEANRL)
    ),
    "dqn Acrobot-v1": (
        Published(-76.639, 11.752, 100_000, ZOO), Published(-91.54, 7.20, 500_000, CLEANRL)
    ),
    "ddpg Pendulum-v1": (Published(-152.099, 94.282, 20_000, ZOO),),
    "td3 Pendulum-v1": (Published(-151.855, 90.227, 20_000, ZOO),),
    "sac Pendulum-v1": (Published(-156.995, 88.714, 20_000, ZOO),),
    "ddpg MountainCarContinuous-v0": (Published(93.512, 0.048, 300_000, ZOO),),
    "td3 MountainCarContinuous-v0": (Published(93.483, 0.075, 300_000, ZOO),),
    "sac MountainCarContinuous-v0": (Published(94.679, 1.134, 50_000, SDE),),
    "ppo CartPole-v1": (Published(500.0, 0.0, 100_000, ZOO),),
    "ppo Acrobot-v1": (Published(-73.506, 18.201, 1_000_000, ZOO),),
    "ppo Pendulum-v1": (Published(-172.225, 104.159, 100_000, SDE),),
    "ppo MountainCarContinuous-v0": (Published(88.343, 2.572, 20_000, SDE),),
    "a2c CartPole-v1": (Published(500.0, 0.0, 500_000, ZOO),),
    "a2c Acrobot-v1": (Published(-83.353, 17.213, 500_000, ZOO),),
    "a2c Pendulum-v1": (Published(-162.965, 103.21, 1_000_000, SDE),),
    "a2c MountainCarContinuous-v0": (Published(91.166, 0.255, 100_000, SDE),),
}  # fmt: skip
"""Case → figures for reference, in the table only, since none states an interval over seeds."""
NOTES = {
    "sac MountainCarContinuous-v0": "no seed finds the goal: its noise is drawn anew every step, "
    "and the published figure needs state-dependent exploration, which is not here"
}
"""Case → what a reader of its row must know."""
