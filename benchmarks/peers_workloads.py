"""What the peers are measured on: the same task and settings for every library, and the clock.

The interpreters of the libraries import this too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

WARM = 2_000
"""Env steps at least that no library's clock counts: random actions, compilation, first batches."""
LEARNING_STARTS, DISCOUNT, TARGET_EVERY, TAU, NOISE = 1_000, 0.99, 500, 0.005, 0.1
EXPLORE_STEPS, EPSILON = 5_000, (1.0, 0.05)
ALPHA, BETA = 0.6, 0.4
HORIZON, EPOCHS, MINIBATCHES, LAMBDA = 128, 4, 4, 0.95
CLIP, ENTROPY, VALUE, MAX_NORM = 0.2, 0.01, 0.5, 0.5
"""Of W4: vector steps of a rollout, passes over it, parts of it, and the loss's constants."""


@dataclass(frozen=True)
class Workload:
    """One task. steps: env steps of ours; peer_steps: of each peer that is measured on it.
    target_every: env steps between two copies of DQN's target; explore_steps: in which its
    exploration falls.
    """

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
    prioritised: bool = False
    target_every: int = TARGET_EVERY
    explore_steps: int = EXPLORE_STEPS

    def ours(self) -> dict[str, Any]:
        """A spec of ours with these settings."""
        algorithm: dict[str, Any] = {
            "name": self.algorithm, "env": self.env, "num_envs": self.envs,
            "hidden": list(self.hidden), "discount": DISCOUNT,
        }  # fmt: skip
        if self.algorithm == "ppo":
            algorithm |= {
                "rollout_steps": HORIZON, "epochs": EPOCHS, "minibatches": MINIBATCHES,
                "gae_lambda": LAMBDA, "clip": CLIP, "entropy": ENTROPY, "value_weight": VALUE,
                "max_grad_norm": MAX_NORM, "activation": "tanh",
                "learning_rate": self.learning_rate,
            }  # fmt: skip
        else:
            algorithm |= self._replayed()
        return {
            "algorithm": algorithm, "platform": "host", "limits": {"max_lanes": 1},
            "train": {"steps": self.steps, "evaluate_every": 0, "final_episodes": 0},
        }  # fmt: skip

    def _replayed(self) -> dict[str, Any]:
        kind = "prioritised" if self.prioritised else "uniform"
        shared: dict[str, Any] = {
            "batch_size": self.batch, "replay_ratio": 1,
            "replay": {"kind": kind, "capacity": self.capacity}, "learning_starts": LEARNING_STARTS,
        }  # fmt: skip
        if self.prioritised:
            shared["replay"] |= {"alpha": ALPHA, "beta": BETA}
        if self.algorithm == "dqn":
            first, last = EPSILON
            return shared | {
                "learning_rate": self.learning_rate,
                "double": False,
                "huber": 0,  # as in the XLA program: the plain square, and no gradient is clipped
                "max_grad_norm": 0,
                "target": {"every": self.target_every},
                "exploration": {"initial": first, "final": last, "steps": self.explore_steps},
            }
        rate = self.learning_rate
        shared |= {
            "actor_learning_rate": rate,
            "critic_learning_rate": rate,
            "target": {"tau": TAU},
        }
        if self.algorithm == "sac":
            return shared | {"temperature_learning_rate": rate}
        return shared | {"exploration": {"noise": NOISE}}


class Clock:
    """Env steps per CPU-second of this process, from env step `warm` on, whatever a library logs:
    its environments count their steps."""

    def __init__(self, warm: int) -> None:
        self.warm, self.steps = warm, 0
        self.begin: tuple[int, float] | None = None

    def tick(self, steps: int = 1) -> None:
        """So many env steps are done."""
        self.steps += steps
        if self.begin is None and self.steps > self.warm:
            self.begin = (self.steps, time.process_time())

    def rate(self) -> float:
        """Env steps per CPU-second since the warm-up. A RuntimeError if it never ended."""
        if self.begin is None or self.begin[0] == self.steps:
            raise RuntimeError(f"{self.steps} env steps are no more than the warm-up, {self.warm}")
        at, since = self.begin
        return (self.steps - at) / (time.process_time() - since)

    def env(self, env_id: str) -> Any:
        """A gymnasium environment that ticks."""
        import gymnasium

        clock = self

        class Ticking(gymnasium.Wrapper[Any, Any, Any, Any]):
            def step(self, action: Any) -> Any:
                clock.tick()
                return self.env.step(action)

        return Ticking(gymnasium.make(env_id))


_DQN: dict[str, Any] = {
    "algorithm": "dqn", "env": "CartPole-v1", "hidden": (64, 64), "batch": 64, "capacity": 50_000,
    "learning_rate": 5e-4,
}  # fmt: skip
_WIDE: dict[str, Any] = {
    "env": "Pendulum-v1", "envs": 1, "hidden": (256, 256), "batch": 256, "capacity": 100_000,
    "learning_rate": 1e-3,
}  # fmt: skip
WORKLOADS = {
    "W1x8": Workload(
        "DQN CartPole-v1, 64-64, batch 64, replay ratio 1, 8 envs", envs=8, steps=100_000,
        peer_steps={"sb3": 10_000, "sbx": 24_000, "rllib": 3_000, "xla": 60_000}, **_DQN,
    ),
    "W1x1": Workload(
        "the same with 1 env", envs=1, steps=60_000,
        peer_steps={"sb3": 8_000, "sbx": 8_000, "xla": 40_000}, **_DQN,
    ),
    "W2": Workload(
        "the same with 1 env and prioritised replay", envs=1, steps=60_000,
        peer_steps={"tianshou": 5_000}, prioritised=True, **_DQN,
    ),
    "W3": Workload(
        "DDPG Pendulum-v1, 256-256, batch 256, replay ratio 1, 1 env", algorithm="ddpg",
        steps=8_000, peer_steps={"sb3": 4_000, "sbx": 4_000, "xla": 4_000}, **_WIDE,
    ),
    "W5": Workload(
        "SAC Pendulum-v1, 256-256, batch 256, replay ratio 1, 1 env", algorithm="sac", steps=6_000,
        peer_steps={"sb3": 4_000, "sbx": 4_000, "xla": 4_000}, **_WIDE,
    ),
    "W4": Workload(
        "PPO CartPole-v1, 64-64 tanh, 8 envs x 128 steps, 4 epochs of 4 minibatches",
        algorithm="ppo", env="CartPole-v1", envs=8, hidden=(64, 64), batch=256, capacity=0,
        learning_rate=1e-3, steps=400_000,
        peer_steps={"sb3": 40_000, "sbx": 40_000, "xla": 400_000},
    ),
}  # fmt: skip
