"""Seeded graphs with cycles: rings, pipelines, nested loops and small cyclic graphs."""

from __future__ import annotations

import numpy as np

from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate

Loop = tuple[TaskGraph, CostTable]


def _mode(task: str, device: str, seconds: float) -> Mode:
    return Mode((task,), device, "v", 1, Estimate(seconds, seconds, seconds, seconds, 0.0))


def ring(seed: int, ratio: float, tokens: int, *, tasks: int = 200, devices: int = 8) -> Loop:
    """A ring of tasks on unrelated devices, in the manner of `instances.large`.

    A task takes 1 to 10 s, on each device 0.5 to 1.5 times that. Copies go through a host that runs
    nothing; the lane at a link's device end pays. Memory of the devices together is 1.3 times what
    the tasks need. tokens: on the edge from the last task to the first. ratio: seconds of copying,
    at both ends, if every edge crossed between devices, over the seconds of work with every task
    where it is quickest.
    """
    pairs = [(i, (i + 1) % tasks, tokens if i + 1 == tasks else 0) for i in range(tasks)]
    return _unrelated(f"ring{seed}", seed, ratio, tasks, devices, pairs)


def _unrelated(
    name: str, seed: int, ratio: float, tasks: int, devices: int, pairs: list[tuple[int, int, int]]
) -> Loop:
    r = np.random.default_rng(seed)
    names = [f"t{i}" for i in range(tasks)]
    places = [f"d{k}" for k in range(devices)]
    work = r.uniform(1.0, 10.0, (tasks, 1)) * r.uniform(0.5, 1.5, (tasks, devices))
    cost = r.uniform(0.2, 1.8, tasks)
    crossing = 2 * sum(cost[i] for i, _, _ in pairs)
    cost *= ratio * work.min(axis=1).sum() / crossing
    resident = r.uniform(1.0, 10.0, tasks)
    room = float(1.3 * resident.sum() / devices)
    found = [Device("host", "null"), *(Device(d, "null", memory_bytes=room) for d in places)]
    links = [Link("host", d, 0.0, 1.0, paid_by="lane") for d in places]
    graph = TaskGraph(
        name,
        tuple(
            Task(n, Kernel(n, resident_bytes=float(s)))
            for n, s in zip(names, resident, strict=True)
        ),
        tuple(Edge(names[i], names[j], tokens_seq=m, bytes=float(cost[i])) for i, j, m in pairs),
    )
    table = [
        _mode(n, d, float(work[i, k])) for i, n in enumerate(names) for k, d in enumerate(places)
    ]
    return graph, CostTable(Platform("star", tuple(found), tuple(links)), tuple(table))
