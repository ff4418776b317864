"""SAGA's side of `benchmarks.solver.saga`: run by an interpreter that has `anrg-saga`, without us.

Draws instances with SAGA's own generators and schedules each with all its polynomial schedulers.
Reads {"seeds": [...]} on standard input, writes one JSON object on standard output: the version,
and for each instance tasks, dependencies, nodes, edges, and makespan or problem by scheduler. A
schedule counts only if it is valid by SAGA's own cost model, checked here.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
import saga
from saga import schedulers
from saga.schedulers.data.random import (
    gen_in_trees,
    gen_out_trees,
    gen_parallel_chains,
    gen_random_networks,
)
from saga.schedulers.data.riotbench import (
    get_etl_task_graphs,
    get_fog_networks,
    get_predict_task_graphs,
    get_stats_task_graphs,
    get_train_task_graphs,
)
from saga.utils.random_graphs import (
    get_branching_dag,
    get_chain_dag,
    get_diamond_dag,
    get_fork_dag,
    get_network,
)

NAMES = (
    *("BIL", "Cpop", "DPS", "Duplex", "ETF", "FastestNode", "FCP", "FLB", "GDL", "Hbmct", "Heft"),
    *("MaxMin", "MCT", "MET", "MinMin", "Msbc", "MST", "OLB", "Sufferage", "WBA"),
)
"""All of `saga.schedulers` but brute force and SMT (exponential) and the wrapper Hybrid."""

SAME = 1e-9


class Uniform:
    """Weights from 0.1 to 1, SAGA's default distribution, whose own samples are arrays of one
    number that its data classes refuse."""

    def sample(self) -> float:
        return random.uniform(0.1, 1.0)


def instances(seed: int) -> dict[str, tuple[Any, Any]]:
    """Name → (task graph, network). Trees and chains get uniform weights: SAGA's own default for
    them is 2 for every weight."""
    random.seed(seed)
    np.random.seed(seed)

    weights = Uniform()

    def draw(*_: object) -> float:
        return weights.sample()

    drawn = {"get_task_weight": draw, "get_dependency_weight": draw}
    levels, factor = random.choice([(2, 2), (3, 2), (2, 3)])
    chains, length = random.randint(2, 5), random.randint(2, 5)
    plain = gen_random_networks(1, random.randint(3, 6), draw, draw)[0]
    fog = get_fog_networks(1, num_edges_nodes=4, num_fog_nodes=2, num_cloud_nodes=2)[0]
    return {
        "diamond": (get_diamond_dag(weights), get_network(random.randint(3, 5), weights)),
        "chain": (get_chain_dag(random.randint(4, 8), weights), get_network(4, weights)),
        "fork": (get_fork_dag(weights), get_network(random.randint(3, 5), weights)),
        "branching": (get_branching_dag(random.randint(3, 4), 2, weights), get_network(4, weights)),
        "branching, compute bound": (get_branching_dag(4, 2, weights), fast_network(4, weights)),
        "out-tree": (gen_out_trees(1, levels, factor, **drawn)[0], plain),
        "in-tree": (gen_in_trees(1, levels, factor, **drawn)[0], plain),
        "parallel chains": (gen_parallel_chains(1, chains, length, **drawn)[0], plain),
        "riotbench etl": (get_etl_task_graphs(1)[0], fog),
        "riotbench stats": (get_stats_task_graphs(1)[0], fog),
        "riotbench train": (get_train_task_graphs(1)[0], fog),
        "riotbench predict": (get_predict_task_graphs(1)[0], fog),
    }


def fast_network(nodes: int, weights: Uniform) -> Any:
    """SAGA's random network with links five times as fast, so that spreading out pays."""
    network = get_network(nodes, weights)
    edges = [
        (e.source, e.target, e.speed * (1 if e.source == e.target else 5)) for e in network.edges
    ]
    return saga.Network.create(nodes=[(n.name, n.speed) for n in network.nodes], edges=edges)


def problem(schedule: Any, graph: Any, network: Any) -> str:
    """What is wrong with a schedule by the cost model time = cost / speed, transfer = size / speed
    of the edge; empty if nothing."""
    speed = {n.name: n.speed for n in network.nodes}
    link = {frozenset((e.source, e.target)): e.speed for e in network.edges}
    cost = {t.name: t.cost for t in graph.tasks}
    placed = {t.name: t for row in schedule.mapping.values() for t in row}
    end = max((t.end for t in placed.values()), default=0.0)
    small = SAME * max(end, 1e-9)
    if set(placed) != set(cost):
        return f"{len(cost) - len(placed)} tasks are missing"
    for t in placed.values():
        if t.start < -small or t.end - t.start < cost[t.name] / speed[t.node] - small:
            return f"{t.name} is too short"
    for row in schedule.mapping.values():
        row = sorted(row, key=lambda t: (t.start, t.end))
        for a, b in pairwise(row):
            if b.start < a.end - small:
                return f"{a.name} and {b.name} overlap"
    for d in graph.dependencies:
        a, b = placed[d.source], placed[d.target]
        if b.start < a.end - small:
            return f"{d.target} starts before {d.source} ends"
        if (
            a.node != b.node
            and b.start < a.end + d.size / link[frozenset((a.node, b.node))] - small
        ):
            return f"{d.target} starts before the data of {d.source} is there"
    return ""


def solved(graph: Any, network: Any) -> dict[str, float | str]:
    """Scheduler → makespan, or why there is none that counts."""
    found: dict[str, float | str] = {}
    for name in NAMES:
        try:
            schedule = getattr(schedulers, f"{name}Scheduler")().schedule(network, graph)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        found[name] = problem(schedule, graph, network) or float(schedule.makespan)
    return found


def main() -> None:
    logging.disable(logging.CRITICAL)
    rows = []
    for seed in json.load(sys.stdin)["seeds"]:
        for name, (graph, network) in instances(seed).items():
            rows.append(
                {
                    "name": f"{name} {seed}",
                    "tasks": sorted((t.name, t.cost) for t in graph.tasks),
                    "dependencies": sorted(
                        (d.source, d.target, d.size) for d in graph.dependencies
                    ),
                    "nodes": sorted((n.name, n.speed) for n in network.nodes),
                    "edges": sorted(
                        (e.source, e.target, e.speed) for e in network.edges if e.source != e.target
                    ),
                    "makespans": solved(graph, network),
                }
            )
    json.dump({"version": version("anrg-saga"), "instances": rows}, sys.stdout)


if __name__ == "__main__":
    main()
