"""The environment: nodes of a random graph are placed one after the other, long ones early."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from examples.learned_scheduler.graphs import STAGES, Dataflow, Loads, draw_graph

FEWEST, MOST = 8, 30
"""Nodes of the graphs of training."""

NOISE = 0.4
"""Spread of the logarithm of the factors that change the order of nodes (assumed)."""


class Cutting(gymnasium.Env):
    """An action is the stage of the next node. The rewards of an episode add up to minus the
    bottleneck over its lower bound (`Dataflow.least_s`)."""

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (5 * STAGES + 3,), np.float32)
        self.action_space = Discrete(STAGES)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        nodes = int(self.np_random.integers(FEWEST, MOST + 1))
        self.begin(draw_graph(self.np_random, nodes), self.np_random)
        return self.observe(), {}

    def begin(self, graph: Dataflow, random: np.random.Generator) -> None:
        """Start with a graph whose nodes come by falling work, times a random factor."""
        factors = np.exp(NOISE * random.normal(size=len(graph.work_s)))
        self.loads, self.order = Loads(graph), np.argsort(-graph.work_s * factors)
        self.next, self.left_s = 0, float(graph.work_s.sum())

    def observe(self) -> np.ndarray:
        """Of each stage: its seconds now, the growth of its own and of the other stages' seconds if
        the node went there, and the messages that this would save later; of the node: work, and of
        all nodes left: work and number. Seconds are shares of the lower bound."""
        graph, least_s = self.loads.graph, self.loads.graph.least_s
        if self.next == len(self.order):
            return np.zeros(5 * STAGES + 3, np.float32)
        node, now = int(self.order[self.next]), self.loads.seconds
        rows = []
        for k in range(STAGES):
            then = self.loads.after(node, k)
            near = [i for i in self.loads.inputs[node] if self.loads.stage[i] == k]
            near += [j for j in self.loads.readers[node] if self.loads.stage[j] == k]
            grown = then - now
            rows += [now[k], grown[k], grown.sum() - grown[k], then.max() - now.max()]
            rows.append(float(sum(graph.send_s[i] for i in near)))
        rows += [graph.work_s[node], self.left_s, least_s * (1 - self.next / len(self.order))]
        return np.asarray(rows, np.float32) / np.float32(least_s)

    def step(self, action: Any) -> Any:
        node, before = int(self.order[self.next]), self.loads.seconds.max()
        self.loads.place(node, int(action))
        self.next += 1
        self.left_s -= float(self.loads.graph.work_s[node])
        reward = (before - self.loads.seconds.max()) / self.loads.graph.least_s
        return self.observe(), float(reward), self.next == len(self.order), False, {}
