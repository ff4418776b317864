"""What must be solved, and by which settings: the same for every library.

Plain data: the interpreters of the libraries import it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
