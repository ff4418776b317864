"""Small graphs and costs for contracts and tests: fixed ones, and random ones from a seed."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl.planning.costs import Choice, CostTable, Mode
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate

KEYS = ("policy_lag", "prefetch", "insertion_lag", "priority_staleness")
"""The limits on slack in random graphs."""

SHAPES = ("loop", "chain", "fork", "join", "forward", "parts", "mixed")
"""The shapes of random graphs: one cycle through all tasks with chords; a chain; a tree that leaves
one source; a tree that ends in one sink; forward edges alone, with several sources and sinks;
components that no edge joins, some of one task; cycles that forward edges join. Only the first is
strongly connected."""


def mode(
    task: str | tuple[str, ...],
    device: str,
    seconds: float,
    *,
    occupancy: float | None = None,
    energy: float = 0.0,
    width: int = 1,
    variant: str = "v",
    band: float = 0.0,
) -> Mode:
    tasks = (task,) if isinstance(task, str) else task
    estimate = Estimate(
        seconds,
        seconds if occupancy is None else occupancy,
        seconds * (1 - band),
        seconds * (1 + band),
        energy,
    )
    return Mode(tasks, device, variant, width, estimate)


def devices(*names: str, lanes: int = 2, width: int = 4, **more: object) -> tuple[Device, ...]:
    return tuple(
        Device(n, "null", width=width, max_lanes=lanes, **more)  # type: ignore[arg-type]
        for n in names
    )


def star(found: tuple[Device, ...], latency_s: float = 0.0, bytes_per_s: float = 1e12) -> Platform:
    """Return a platform with every device linked to the first, which is the host."""
    host = found[0].name
    links = tuple(Link(host, d.name, latency_s, bytes_per_s) for d in found[1:])
    return Platform("star", found, links)


def tasks(*names: str) -> tuple[Task, ...]:
    return tuple(Task(n, Kernel(n)) for n in names)


def loop(*names: str, tokens: int = 1, size: float = 0.0) -> TaskGraph:
    """Return a ring of tasks with `tokens` on its last edge."""
    pairs = zip(names, [*names[1:], names[0]], strict=True)
    edges = tuple(
        Edge(a, b, tokens_seq=tokens if b == names[0] else 0, bytes=size) for a, b in pairs
    )
    return TaskGraph("loop", tasks(*names), edges)


def random_limited(
    seed: int,
    *,
    most_tasks: int = 8,
    most_devices: int = 4,
    rates: bool = True,
    shape: str = "loop",
) -> tuple[TaskGraph, CostTable, Limits]:
    """Return a graph of at least two tasks with costs and limits: cycles, rates, slack, replicas,
    states, memory, transfers, pair terms, fused modes, lanes and widths, and at most three modes
    per task.

    rates: some tasks fire several times per iteration.
    shape: one of SHAPES.
    """
    r = random.Random(seed if shape == "loop" else f"{shape} {seed}")
    names = [f"t{i}" for i in range(r.randint(2, most_tasks))]
    often = [1, 1, 1, 2] if shape == "loop" else [1, 1, 2, 3]
    q = {n: r.choice(often) if rates else 1 for n in names}
    environments = {n: r.choice([0, 0, 0, 4]) for n in names}
    slack_edges = r.randint(0, 2)

    def edge(a: str, b: str, back: bool) -> Edge:
        least = math.lcm(q[a], q[b])
        tokens = least * r.choice([1, 1, 2]) if back else 0
        return Edge(a, b, least // q[a], least // q[b], tokens, bytes=r.choice([0.0, 1e3, 5e4]))

    if shape == "loop":
        edges = [edge(a, b, False) for a, b in pairwise(names)] + [edge(names[-1], names[0], True)]
        taken = {(e.src, e.dst) for e in edges}
        for _ in range(r.randint(0, 3)):
            i, j = r.sample(range(len(names)), 2)
            if (names[i], names[j]) not in taken:
                taken.add((names[i], names[j]))
                edges.append(edge(names[i], names[j], j < i))
    else:
        edges = []
        for a, b in dict.fromkeys(_pairs(r, len(names), shape)):
            e, many = edge(names[a], names[b], b < a), r.choice([1, 1, 1, 2, 3])
            rate = e.production * many, e.consumption * many
            part = r.randrange(many)  # the least rates cannot express this part of a token
            edges.append(Edge(e.src, e.dst, *rate, e.tokens * many + part, bytes=e.bytes))
        taken = {(e.src, e.dst) for e in edges}
    for n in names:
        if r.random() < (0.4 if shape == "loop" else 0.6):
            edges.append(Edge(n, n, tokens_seq=1))
    slack_edges = min(slack_edges, len(taken))
    keys = r.sample(KEYS, slack_edges)
    between = range(len(names) if shape == "loop" else len(taken))
    for key, i in zip(keys, r.sample(between, slack_edges), strict=True):
        e = edges[i]
        edges[i] = Edge(e.src, e.dst, e.production, e.consumption, e.tokens_seq, 0, e.bytes, key)
    states: dict[str, float] = {}
    holds: dict[str, tuple[str, ...]] = {}
    if r.random() < 0.3:
        states["s"] = 3e6
        holds = {names[0]: ("s",)}
        if shape == "loop":  # tasks that share a state need a path each way
            holds[names[-1]] = ("s",)
            if (names[0], names[-1]) not in taken:
                edges.append(edge(names[0], names[-1], False))
    found = tuple(
        Task(
            n,
            Kernel(n, resident_bytes=r.choice([0.0, 0.0, 1e6, 3e6])),
            writes=holds.get(n, ()),
            environments=environments[n],
        )
        for n in names
    )
    fusions: tuple[Fusion, ...] = ()
    if len(names) > 2 and r.random() < 0.3:
        fusions = (Fusion("f", (names[1], names[2]), Kernel("f")),)
    title = f"seed {seed}" if shape == "loop" else f"{shape}, seed {seed}"
    graph = TaskGraph(title, found, tuple(edges), states, fusions, r.choice([0, 8]))
    platform = _platform(r, most_devices)
    limits = Limits(
        **{key: r.randint(0, 2) for key in keys},  # type: ignore[arg-type]
        replicas={n: 2 for n in names if environments[n] and r.random() < 0.7},
        max_lanes=r.choice([None, None, None, 2, 3]),
    )
    if shape != "loop":
        drawn = [r.sample(names, 2) for _ in range(2)]
        together, apart = (((a, b),) if r.random() < 0.2 else () for a, b in drawn)
        limits = replace(limits, together=together, apart=apart)
    return graph, _costs(r, graph, platform, limits), limits


def _pairs(r: random.Random, n: int, shape: str) -> list[tuple[int, int]]:
    """Return the edges between `n` tasks of a shape other than a loop. An edge that goes back to an
    earlier task closes a cycle."""
    if shape == "chain":
        return list(pairwise(range(n)))
    if shape == "fork":
        return [(r.randrange(i), i) for i in range(1, n)]
    if shape == "join":
        return [(i, r.randrange(i + 1, n)) for i in range(n - 1)]
    if shape == "forward":
        return [(i, j) for j in range(n) for i in range(j) if r.random() < 0.5]
    cuts = sorted(r.sample(range(1, n), min(n - 1, r.choice([1, 1, 2]))))
    groups = [list(range(a, b)) for a, b in pairwise([0, *cuts, n])]
    pairs: list[tuple[int, int]] = []
    for group in groups:
        pairs += pairwise(group)
        if len(group) > 1 and (shape == "mixed" or r.random() < 0.6):
            pairs.append((group[-1], group[0]))
    if shape == "mixed":
        pairs += [(r.choice(a), r.choice(b)) for a, b in pairwise(groups)]
    return pairs


def _platform(r: random.Random, most_devices: int) -> Platform:
    found = tuple(
        Device(
            f"d{i}",
            "null",
            width=r.choice([1, 2, 3]),
            max_lanes=r.choice([1, 1, 2]),
            memory_bytes=r.choice([4e6, 8e6, 1e9]) if i else 1e9,
            idle_power_w=r.choice([0.0, 5.0, 20.0]),
            active_power_w=100.0,
            when_unused=r.choice(["idle", "off"]),
        )
        for i in range(r.randint(1, most_devices))
    )
    links = [
        Link(
            "d0", d.name, r.choice([0.0, 1e-6]), r.choice([1e9, 1e10]), r.choice([0.0, 5e-7]), 1e-10
        )
        for d in found[1:]
    ]
    if len(found) > 2 and r.random() < 0.5:
        links.append(Link("d1", "d2", 1e-6, 1e10))
    return Platform("random", found, tuple(links), "d0")


def _costs(r: random.Random, graph: TaskGraph, platform: Platform, limits: Limits) -> CostTable:
    modes: list[Mode] = []
    for unit in [*((t.name,) for t in graph.tasks), *(f.tasks for f in graph.fusions)]:
        ways: set[tuple[str, str]] = set()
        for _ in range(r.choice([1, 2, 2, 3])):
            device = r.choice(platform.devices)
            variant = r.choice(["v0", "v1"])
            if (device.name, variant) in ways:
                continue
            ways.add((device.name, variant))
            seconds = r.uniform(2e-6, 2e-5) * len(unit)
            joules = r.uniform(5e-5, 1e-3)
            width, pipelined = r.randint(1, device.width), r.choice([1.0, 1.0, 0.5])
            shares: list[int | None] = [None]
            whole = graph.task(unit[0]).environments
            if len(unit) == 1 and limits.replicas.get(unit[0], 1) > 1:
                shares += list(range(1, whole))
            fixed = r.uniform(0.0, 0.6)
            for share in shares:
                part = 1.0 if share is None else fixed + (1 - fixed) * share / whole
                time_s = seconds * part
                estimate = Estimate(
                    time_s, time_s * pipelined, time_s * 0.9, time_s * 1.1, joules * part
                )
                modes.append(Mode(unit, device.name, variant, width, estimate, share))
    pairs: dict[tuple[Choice, Choice], float] = {}
    single = [m for m in modes if not m.fused and m.share is None]
    for _ in range(r.choice([0, 0, 1, 2])):
        a, b = r.sample(single, 2)
        if a.tasks != b.tasks:
            extra = r.uniform(-0.3, 1.0) * 0.3 * a.estimate.occupancy_s
            pairs[(a.tasks[0], a.key), (b.tasks[0], b.key)] = extra
    return CostTable(platform, tuple(modes), pairs)


def random_problem(
    seed: int,
    *,
    most_tasks: int = 5,
    most_devices: int = 3,
    rates: bool = True,
    shape: str = "loop",
) -> tuple[TaskGraph, CostTable]:
    """Return graph and costs of `random_limited`."""
    graph, costs, _ = random_limited(
        seed, most_tasks=most_tasks, most_devices=most_devices, rates=rates, shape=shape
    )
    return graph, costs
