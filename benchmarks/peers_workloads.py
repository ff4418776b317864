"""What the peers are measured on: the same task and the same settings for every library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WARM = 2_000
"""Env steps at least that no library's clock counts: random actions, compilation, first batches."""


@dataclass(frozen=True)
class Workload:
    """One task. ours: a spec of ours with these settings. peer_steps: env steps a peer runs."""

    what: str
    algorithm: str
    env: str
    envs: int
    hidden: tuple[int, int]
    batch: int
    capacity: int
    learning_rate: float
    steps: int
    peer_steps: dict[str, int]

    def ours(self) -> dict[str, Any]:
        algorithm: dict[str, Any] = {
            "name": self.algorithm,
            "env": self.env,
            "num_envs": self.envs,
            "hidden": list(self.hidden),
            "batch_size": self.batch,
            "replay_ratio": 1,
            "replay": {"kind": "uniform", "capacity": self.capacity},
            "discount": 0.99,
            "learning_starts": 1_000,
        }
        if self.algorithm == "dqn":
            algorithm |= {
                "learning_rate": self.learning_rate,
                "double": False,
                "target": {"every": TARGET_EVERY},
                "exploration": {"initial": 1.0, "final": 0.05, "steps": 5_000},
            }
        else:
            algorithm |= {
                "actor_learning_rate": self.learning_rate,
                "critic_learning_rate": self.learning_rate,
                "target": {"tau": TAU},
                "exploration": {"noise": 0.1},
            }
        return {
            "algorithm": algorithm,
            "platform": "host",
            "limits": {"max_lanes": 1},
            "train": {"steps": self.steps, "evaluate_every": 0, "final_episodes": 0},
        }


TARGET_EVERY, TAU = 500, 0.005
_W1: dict[str, Any] = {
    "algorithm": "dqn",
    "env": "CartPole-v1",
    "hidden": (64, 64),
    "batch": 64,
    "capacity": 50_000,
    "learning_rate": 5e-4,
}
WORKLOADS = {
    "W1x8": Workload(
        "DQN CartPole-v1, 64-64, batch 64, replay ratio 1, 8 envs",
        envs=8,
        steps=100_000,
        peer_steps={"sb3": 10_000, "sbx": 24_000, "eager": 10_000},
        **_W1,
    ),
    "W1x1": Workload(
        "the same with 1 env",
        envs=1,
        steps=60_000,
        peer_steps={"sb3": 6_000, "sbx": 12_000, "eager": 8_000},
        **_W1,
    ),
    "W3": Workload(
        "DDPG Pendulum-v1, 256-256, batch 256, replay ratio 1, 1 env",
        algorithm="ddpg",
        env="Pendulum-v1",
        envs=1,
        hidden=(256, 256),
        batch=256,
        capacity=100_000,
        learning_rate=1e-3,
        steps=8_000,
        peer_steps={"sb3": 3_000, "sbx": 4_000},
    ),
}
