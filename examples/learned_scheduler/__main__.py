"""The learned scheduler beside the exact one: `python -m examples.learned_scheduler RUN`."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

import pearl
from examples.learned_scheduler.cutting import Cutting
from examples.learned_scheduler.graphs import Dataflow, bottleneck_s, draw_graph, solve_exactly

TRIES = 16

HELD_OUT = 1_000_003
"""Seed of the graphs that training has not met."""


def cut(policy: pearl.Policy, graph: Dataflow) -> np.ndarray:
    """The best of TRIES cuts that a policy makes, in other orders of the nodes."""
    env, found = Cutting(), []
    for seed in range(TRIES):
        env.begin(graph, np.random.default_rng(seed))
        for _ in env.order:
            env.step(int(policy.act(env.observe()[None])[0]))
        found.append((float(env.loads.seconds.max()), tuple(env.loads.stage)))
    return np.array(min(found)[1])


def compare(policy: pearl.Policy, nodes: tuple[int, int], graphs: int, limit_s: float) -> dict:
    """Bottlenecks of the policy over those of the solver, and CPU-seconds a graph of both."""
    random = np.random.default_rng(HELD_OUT)
    ratios, proven, learned_s, solved_s = [], 0, 0.0, 0.0
    for _ in range(graphs):
        graph = draw_graph(random, int(random.integers(nodes[0], nodes[1] + 1)))
        begin = time.process_time()
        stage = cut(policy, graph)
        middle = time.process_time()
        plan = solve_exactly(graph, limit_s)
        solved_s += time.process_time() - middle
        learned_s += middle - begin
        proven += plan.status == "optimal"
        ratios.append(bottleneck_s(graph, stage) / plan.period_s)
    return {
        "mean": statistics.mean(ratios), "worst": max(ratios), "proven": proven,
        "learned_s": learned_s / graphs, "solved_s": solved_s / graphs,
    }  # fmt: skip


def main(folder: str) -> None:
    policy = pearl.Policy.load(folder, trust=True)  # the run names this example's environment
    for nodes, graphs, limit_s in (((8, 16), 100, 20.0), ((350, 350), 3, 20.0)):
        found = compare(policy, nodes, graphs, limit_s)
        print(
            f"{graphs} graphs of {nodes[0]} to {nodes[1]} nodes: bottleneck {found['mean']:.3f} × "
            f"the solver's (worst {found['worst']:.3f}; {found['proven']} proven optimal); CPU "
            f"{found['learned_s']:.4f} s a graph, the solver {found['solved_s']:.3f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1])
