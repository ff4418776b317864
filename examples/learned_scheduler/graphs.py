"""Graphs to be cut into stages, and what a cut costs by PEARL's own model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pearl import CostTable, Edge, Kernel, Limits, Mode, Plan, Task, TaskGraph, solve
from pearl_devices import Device, Link, Platform

STAGES = 3
RATIO = 0.3
"""Seconds of sending and receiving, if every edge crossed, over seconds of work."""


@dataclass(frozen=True)
class Dataflow:
    """A graph without cycles.

    work_s: node → seconds on a stage. send_s: node → seconds that its
    output takes its own stage, and each other stage that reads the output. edges: node, reader.
    """

    work_s: np.ndarray
    send_s: np.ndarray
    edges: tuple[tuple[int, int], ...]

    @property
    def least_s(self) -> float:
        """No cut has a shorter bottleneck: work shared evenly, and the largest node."""
        return float(max(self.work_s.sum() / STAGES, self.work_s.max()))


def draw_graph(random: np.random.Generator, nodes: int) -> Dataflow:
    """Each node but the first reads one or two of the five before it."""
    edges = set()
    for i in range(1, nodes):
        near = np.arange(max(0, i - 5), i)
        for j in random.choice(
            near, size=min(len(near), int(random.integers(1, 3))), replace=False
        ):
            edges.add((int(j), i))
    work, send = random.uniform(1.0, 10.0, nodes), random.uniform(0.2, 1.8, nodes)
    crossing = 2 * sum(send[i] for i, _ in edges)
    return Dataflow(work, send * RATIO * work.sum() / crossing, tuple(sorted(edges)))


class Loads:
    """Seconds of each stage as nodes are placed one after the other; `stage` is -1 before."""

    def __init__(self, graph: Dataflow) -> None:
        self.graph = graph
        self.seconds = np.zeros(STAGES)
        self.stage = np.full(len(graph.work_s), -1)
        self.inputs: list[list[int]] = [[] for _ in graph.work_s]
        self.readers: list[list[int]] = [[] for _ in graph.work_s]
        for i, j in graph.edges:
            self.readers[i].append(j)
            self.inputs[j].append(i)

    def after(self, node: int, stage: int) -> np.ndarray:
        """Seconds of each stage if a node went to a stage."""
        seconds = self.seconds.copy()
        seconds[stage] += self.graph.work_s[node]
        outputs = [(i, [stage]) for i in self.inputs[node] if self.stage[i] >= 0]
        if others := [int(self.stage[j]) for j in self.readers[node] if self.stage[j] >= 0]:
            outputs.append((node, others))
        for source, readers in outputs:
            home = stage if source == node else int(self.stage[source])
            before = {int(self.stage[j]) for j in self.readers[source]} - {home, -1}
            new = set(readers) - before - {home} if source != node else set(readers) - {home}
            for reader in new:
                seconds[reader] += self.graph.send_s[source]
            if new and (source == node or not before):
                seconds[home] += self.graph.send_s[source]
        return seconds

    def place(self, node: int, stage: int) -> None:
        self.seconds = self.after(node, stage)
        self.stage[node] = stage


def to_problem(graph: Dataflow) -> tuple[TaskGraph, CostTable]:
    """The graph with a device for each stage; the lanes at both ends pay for a message."""
    names = [f"n{i}" for i in range(len(graph.work_s))]
    places = [f"stage{k}" for k in range(STAGES)]
    made = TaskGraph(
        "dataflow",
        tuple(Task(n, Kernel(n)) for n in names),
        tuple(Edge(names[i], names[j], bytes=float(graph.send_s[i])) for i, j in graph.edges),
    )
    devices = [Device("host", "null"), *(Device(p, "null") for p in places)]
    links = tuple(Link("host", p, 0.0, 1.0, paid_by="lane") for p in places)
    modes = [
        Mode.of(n, p, float(s)) for n, s in zip(names, graph.work_s, strict=True) for p in places
    ]
    return made, CostTable(Platform("stages", tuple(devices), links), tuple(modes))


def solve_exactly(graph: Dataflow, limit_s: float) -> Plan:
    """The best cut that PEARL's own solver finds, with its proof."""
    return solve(*to_problem(graph), time_limit_s=limit_s)


def bottleneck_s(graph: Dataflow, stage: np.ndarray) -> float:
    """The period of a cut, by the planner."""
    pinned = {f"n{i}": f"stage{k}" for i, k in enumerate(stage)}
    return solve(*to_problem(graph), limits=Limits(pin=pinned), time_limit_s=60.0).period_s
