"""Seeded problems for the solver's benchmarks, in the manner stated with each."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import networkx as nx
import numpy as np

from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate


def mode(task: str, device: str, seconds: float) -> Mode:
    """The one way to run a task on a device, busy all the time and without joules."""
    return Mode((task,), device, "v", 1, Estimate(seconds, seconds, seconds, seconds, 0.0))


def small(
    seed: int, *, tasks: int = 8, devices: int = 6, modes: int = 4
) -> tuple[TaskGraph, CostTable]:
    """A ring with chords, pairwise transfers and memory.

    Every task feeds the next and the last one the first; four chords join random tasks. One to
    three tokens lie on the ring's last edge, one on every chord that leads back. Each device has
    one lane, a speed, memory for any one task but not for all, and a link of its own to every other
    device, which moves data itself. Of a task's modes on a device some are pipelined (occupancy
    below latency), some frugal: of four modes two or three are left after dominated ones are
    dropped.
    """
    r = random.Random(seed)
    names = [f"t{i}" for i in range(tasks)]
    places = [f"d{k}" for k in range(devices)]
    tokens = r.randint(1, 3)

    def edge(a: int, b: int) -> Edge:
        m = tokens if (a, b) == (tasks - 1, 0) else int(b <= a)
        return Edge(names[a], names[b], tokens_seq=m, bytes=r.choice([0.0, 1e3, 1e4, 1e5]))

    pairs = [*pairwise(range(tasks)), (tasks - 1, 0)]
    while len(pairs) < tasks + 4:
        a, b = r.randrange(tasks), r.randrange(tasks)
        if a != b and (a, b) not in pairs:
            pairs.append((a, b))
    resident = [r.uniform(1e6, 1e7) for _ in names]
    room = max(0.35 * sum(resident), *resident)
    found = [Device(d, "null", memory_bytes=room if d != places[0] else 2 * room) for d in places]
    links = [
        Link(a, b, r.uniform(1e-6, 1e-5), r.choice([1e9, 4e9, 1.6e10]), r.uniform(0.0, 2e-6))
        for k, a in enumerate(places)
        for b in places[k + 1 :]
    ]
    speed = {d: r.uniform(0.5, 2.0) for d in places}
    table = []
    for n in names:
        work = r.uniform(1e-5, 1e-4)
        for d in places:
            base = work / speed[d] * r.uniform(0.7, 1.4)
            for v in range(modes):
                latency = base * r.uniform(1.0, 1.6)
                occupancy = latency * r.choice([1.0, 1.0, 0.6])
                joules = r.uniform(1.0, 3.0) * latency
                estimate = Estimate(latency, occupancy, latency, latency, joules)
                table.append(Mode((n,), d, f"v{v}", 1, estimate))
    kernels = [Kernel(n, resident_bytes=size) for n, size in zip(names, resident, strict=True)]
    graph = TaskGraph(
        f"ring{seed}",
        tuple(Task(k.kind, k) for k in kernels),
        tuple(edge(a, b) for a, b in pairs),
    )
    return graph, CostTable(Platform("mesh", tuple(found), tuple(links), places[0]), tuple(table))


Pairs = list[tuple[int, int]]
"""Edges, as numbers of tasks, each to a later one."""

Arcs = list[tuple[int, int, int]]
"""Edges, as numbers of tasks, with the tokens on each."""

LAYER = 50
"""Tasks of a layer."""


def _sparse(r: np.random.Generator, tasks: int) -> Pairs:
    """Each task has none, one or two producers drawn from all earlier ones."""
    pairs: Pairs = []
    for j in range(1, tasks):
        some = r.integers(0, j, size=r.integers(0, 3))
        pairs += [(int(i), j) for i in sorted(set(some.tolist()))]
    return pairs


def _random(r: np.random.Generator, tasks: int) -> Pairs:
    """Each task has two producers drawn from all earlier ones."""
    some = [r.choice(j, size=min(j, 2), replace=False) for j in range(1, tasks)]
    return [(int(i), j) for j, producers in enumerate(some, 1) for i in sorted(producers)]


def _layered(r: np.random.Generator, tasks: int) -> Pairs:
    """Each task has two producers drawn from the layer before its own."""
    pairs: Pairs = []
    for j in range(LAYER, tasks):
        first = (j // LAYER - 1) * LAYER
        pairs += [(first + int(i), j) for i in sorted(r.choice(LAYER, size=2, replace=False))]
    return pairs


def _series_parallel(r: np.random.Generator, tasks: int) -> Pairs:
    """An edge is drawn and gets a task in its middle, or a second way through a new task, until
    there are enough (Valdes, Tarjan and Lawler 1982); tasks are numbered along the edges."""
    edges: Pairs = [(0, 1)]
    for new in range(2, tasks):
        k = int(r.integers(len(edges)))
        a, b = edges[k]
        if r.random() < 0.5:
            edges[k] = (a, new)
            edges.append((new, b))
        else:
            edges += [(a, new), (new, b)]
    order = {t: i for i, t in enumerate(nx.topological_sort(nx.DiGraph(edges)))}
    return sorted((order[a], order[b]) for a, b in edges)


SHAPES = {
    "sparse": _sparse, "random": _random, "layered": _layered, "series-parallel": _series_parallel,
}  # fmt: skip
"""Shape of a graph without cycles → its edges."""


BYTE = 2.0**-20
"""Bytes of a message, for each second of its copy; a power of two, so that times are exact."""


def large(
    seed: int, ratio: float, *, tasks: int = 1000, devices: int = 16, shape: str = "sparse"
) -> tuple[TaskGraph, CostTable]:
    """Many tasks without cycles on unrelated devices.

    A task takes 1 to 10 s, on each device 0.5 to 1.5 times that. Devices are
    joined through a host that runs nothing; the lane at a link's device end pays for copies, the
    sender's once a producer, the receiver's once a producer, as in the published placement
    instances. Sizes differ by a factor of up to nine. Memory of the devices together is 1.3 times
    what the tasks need; messages are so small, on links so slow, that data in flight hardly counts.

    ratio: seconds of copying, at both ends, if every edge crossed between devices, over the seconds
    of work with every task where it is quickest.
    shape: one of `SHAPES`.
    """

    def draw(r: np.random.Generator) -> Arcs:
        return [(i, j, 0) for i, j in SHAPES[shape](r, tasks)]

    return unrelated(f"large{seed}", seed, ratio, tasks, devices, draw)


def unrelated(
    name: str,
    seed: int,
    ratio: float,
    tasks: int,
    devices: int,
    draw: Callable[[np.random.Generator], Arcs],
) -> tuple[TaskGraph, CostTable]:
    """Tasks on unrelated devices, costs as `large` says. draw: the edges with their tokens."""
    r = np.random.default_rng(seed)
    names = [f"t{i}" for i in range(tasks)]
    places = [f"d{k}" for k in range(devices)]
    work = r.uniform(1.0, 10.0, (tasks, 1)) * r.uniform(0.5, 1.5, (tasks, devices))
    arcs = draw(r)
    cost = r.uniform(0.2, 1.8, tasks)
    crossing = 2 * sum(cost[i] for i, _, _ in arcs)
    cost *= ratio * work.min(axis=1).sum() / crossing
    resident = r.uniform(1.0, 10.0, tasks)
    room = float(1.3 * resident.sum() / devices)
    host = Device("host", "null")
    found = [host, *(Device(d, "null", memory_bytes=room) for d in places)]
    links = [Link("host", d, 0.0, BYTE, paid_by="lane") for d in places]
    graph = TaskGraph(
        name,
        tuple(
            Task(n, Kernel(n, resident_bytes=float(s)))
            for n, s in zip(names, resident, strict=True)
        ),
        tuple(
            Edge(names[i], names[j], tokens_seq=m, bytes=BYTE * float(cost[i])) for i, j, m in arcs
        ),
    )
    table = [
        mode(n, d, float(work[i, k])) for i, n in enumerate(names) for k, d in enumerate(places)
    ]
    return graph, CostTable(Platform("star", tuple(found), tuple(links)), tuple(table))


def blocks(
    subject: str, count: int, devices: int, *, bytes_per_s: float = 1e9
) -> tuple[TaskGraph, CostTable]:
    """A product of arrays that are partitioned by rows, on equal devices joined in pairs.

    A row block of X has 64 MB, one of y 0.5 MB, a partial result 4 MB, weights 64 kB; a task takes
    a second for 4 GB of what it reads and writes (assumed). Partial results are added in pairs.

    subject: `product`, Xᵀ Y with blocks of Y as large as those of X, or `gradient`,
        Xᵀ (σ(X w) − y).
    """
    x, y, part, w = 64e6, 64e6 if subject == "product" else 0.5e6, 4e6, 64e3
    sizes: dict[str, float] = {}
    edges: list[Edge] = []

    def add(name: str, size: float, *before: str) -> str:
        edges.extend(Edge(b, name, bytes=sizes[b]) for b in before)
        sizes[name] = size
        return name

    weights = add("w", w) if subject == "gradient" else ""
    made = []
    for i in range(count):
        rows, labels = add(f"x{i}", x), add(f"y{i}", y)
        if subject == "gradient":
            scores = add(f"scores{i}", 0.5e6, rows, weights)
            labels = add(f"errors{i}", 0.5e6, scores, labels)
        made.append(add(f"part{i}", part, rows, labels))
    while len(made) > 1:
        pairs = zip(made[::2], made[1::2], strict=False)
        added = [add(f"{a}s", part, a, b) for a, b in pairs]
        made = added + made[2 * len(added) :]
    names = [f"d{k}" for k in range(devices)]
    links = [Link(a, b, 1e-4, bytes_per_s) for i, a in enumerate(names) for b in names[i + 1 :]]
    read = dict.fromkeys(sizes, 0.0)
    for edge in edges:
        read[edge.dst] += edge.bytes
    seconds = {t: (read[t] + size) / 4e9 for t, size in sizes.items()}
    table = [mode(t, d, s) for t, s in seconds.items() for d in names]
    graph = TaskGraph(subject, tuple(Task(t, Kernel(t)) for t in sizes), tuple(edges))
    return graph, CostTable(
        Platform("pairs", tuple(Device(d, "null") for d in names), tuple(links)), tuple(table)
    )


def branches(count: int, length: int, lanes: int) -> tuple[TaskGraph, CostTable]:
    """Branches of equal tasks between a first and a last task, on one device with `lanes` lanes."""
    names = [[f"b{i}.{k}" for k in range(length)] for i in range(count)]
    pairs = [p for row in names for p in pairwise(["first", *row, "last"])]
    tasks = ["first", *(t for row in names for t in row), "last"]
    device = Device("cpu", "null", width=lanes, max_lanes=lanes)
    table = [mode(t, "cpu", 1.0) for t in tasks]
    graph = TaskGraph(
        "branches", tuple(Task(t, Kernel(t)) for t in tasks), tuple(Edge(*p) for p in pairs)
    )
    return graph, CostTable(Platform("one", (device,)), tuple(table))
