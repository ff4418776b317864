"""Seeded graphs with cycles: rings, pipelines, nested loops and small cyclic graphs."""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.solver.instances import mode, unrelated
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl_devices import Device, Kernel, Link, Platform

Loop = tuple[TaskGraph, CostTable]


def ring(seed: int, ratio: float, tokens: int, *, tasks: int = 200, devices: int = 8) -> Loop:
    """A ring of tasks on unrelated devices, in the manner of `instances.large`.

    A task takes 1 to 10 s, on each device 0.5 to 1.5 times that. Copies go through a host that runs
    nothing; the lane at a link's device end pays. Memory of the devices together is 1.3 times what
    the tasks need. tokens: on the edge from the last task to the first. ratio: seconds of copying,
    at both ends, if every edge crossed between devices, over the seconds of work with every task
    where it is quickest.
    """
    pairs = [(i, (i + 1) % tasks, tokens if i + 1 == tasks else 0) for i in range(tasks)]
    return unrelated(f"ring{seed}", seed, ratio, tasks, devices, lambda _: pairs)


def nested(
    seed: int, ratio: float, inner: int, outer: int, *, rings: int, each: int, devices: int
) -> Loop:
    """Rings of `each` tasks with `inner` tokens, joined by an outer ring with `outer` tokens.

    The outer ring goes through the first task of each; costs, copies and memory as in `ring`.
    """
    pairs = []
    for k in range(rings):
        first = k * each
        pairs += [
            (first + i, first + (i + 1) % each, inner if i + 1 == each else 0) for i in range(each)
        ]
        last = k + 1 == rings
        pairs.append((first + each - 1, 0 if last else first + each, outer if last else 0))
    return unrelated(f"nested{seed}", seed, ratio, rings * each, devices, lambda _: pairs)


def feedbacks(seed: int, ratio: float, *, tasks: int, backs: int, devices: int) -> Loop:
    """A chain with edges that lead back over 4 to 12 tasks, of 1 to 3 tokens each; costs, copies
    and memory as those of `ring`."""
    r = np.random.default_rng(seed + 1000)
    pairs = [(i, i + 1, 0) for i in range(tasks - 1)]
    starts = sorted(r.choice(tasks - 4, size=backs, replace=False).tolist())
    pairs += [
        (min(tasks - 1, i + int(r.integers(4, 13))), int(i), int(r.integers(1, 4))) for i in starts
    ]
    return unrelated(f"feedbacks{seed}", seed, ratio, tasks, devices, lambda _: pairs)


def small_cycles(seed: int) -> Loop:
    """6 to 9 tasks on 2 or 3 unrelated devices: a ring of 1 to 3 tokens with up to 4 chords, of
    which those that lead back carry 1 or 2 tokens; copies 0.1, 0.5 or 2 times the work."""
    r = np.random.default_rng(seed)
    tasks, devices = int(r.integers(6, 10)), int(r.integers(2, 4))
    pairs = [(i, i + 1, 0) for i in range(tasks - 1)] + [(tasks - 1, 0, int(r.integers(1, 4)))]
    for _ in range(int(r.integers(0, 5))):
        a, b = (int(k) for k in r.choice(tasks, size=2, replace=False))
        if (a, b) not in [(i, j) for i, j, _ in pairs]:
            pairs.append((a, b, int(r.integers(1, 3)) if b < a else 0))
    return unrelated(
        f"small{seed}", seed, float(r.choice([0.1, 0.5, 2.0])), tasks, devices, lambda _: pairs
    )


def pipeline(seed: int, blocks: int, devices: int, in_flight: int, *, equal: bool) -> Loop:
    """Training of a pipeline: the forward and backward task of a block share a device.

    A forward task takes 0.9 to 1.5 ms, its backward task twice that; of unequal devices every
    second one is 1.6 times slower. 8 MB go between blocks over links of 25 GB/s that move data by
    themselves, between every two devices. in_flight: micro-batches at a time. Memory of the
    devices together is 1.5 times what the blocks need.
    """
    r = np.random.default_rng(seed)
    forward = r.uniform(0.9e-3, 1.5e-3, blocks)
    places = [f"gpu{k}" for k in range(devices)]
    speed = [1.0 if equal or k % 2 == 0 else 1.6 for k in range(devices)]
    bytes_each, room = 1e9, 1.5e9 * blocks / devices
    room = max(room, 2e9)
    tasks, edges, modes = [], [], []
    for i in range(blocks):
        for name, seconds in (f"f{i}", forward[i]), (f"b{i}", 2 * forward[i]):
            kernel = Kernel(name, resident_bytes=bytes_each / 2)
            tasks.append(Task(name, kernel, group=f"block{i}"))
            modes += [mode(name, d, float(seconds * s)) for d, s in zip(places, speed, strict=True)]
        if i:
            edges.append(Edge(f"f{i - 1}", f"f{i}", bytes=8e6))
            edges.append(Edge(f"b{i}", f"b{i - 1}", bytes=8e6))
    edges.append(Edge(f"f{blocks - 1}", f"b{blocks - 1}"))
    edges.append(Edge("b0", "f0", tokens_seq=in_flight))
    found = [Device("host", "null"), *(Device(d, "null", memory_bytes=room) for d in places)]
    links = [Link("host", d, 1e-5, 2.5e10) for d in places]
    links += [Link(a, b, 1e-5, 2.5e10) for k, a in enumerate(places) for b in places[k + 1 :]]
    graph = TaskGraph(f"pipeline{seed}", tuple(tasks), tuple(edges))
    return graph, CostTable(Platform("gpus", tuple(found), tuple(links)), tuple(modes))


def rollout(seed: int, steps: int, *, lag: int = 0, devices: int = 3) -> Loop:
    """The loop of PPO: `act` and `step` fire `steps` times an iteration, `learn` once.

    A step takes 0.1 to 1 ms on each device, an update 0.2 to 3 times `steps` of that. lag: further
    iterations by which the policy may be old. Copies go over links of 1 GB/s.
    """
    r = np.random.default_rng(seed)
    names, places = ("act", "step", "learn"), "abcdefgh"[:devices]
    edges = (
        Edge("act", "step", bytes=8.0),
        Edge("step", "act", tokens_seq=1, bytes=1e3),
        Edge("step", "learn", 1, steps, bytes=1e3),
        Edge("learn", "act", steps, 1, steps * (1 + lag), bytes=1e5),
    )
    modes = []
    for name in names:
        for place in places:
            more = steps * r.uniform(0.2, 3.0) if name == "learn" else 1.0
            modes.append(mode(name, place, float(r.uniform(1e-4, 1e-3) * more)))
    links = tuple(Link(places[0], d, 1e-6, 1e9) for d in places[1:])
    platform = Platform("star", tuple(Device(d, "null") for d in places), links)
    tasks = tuple(Task(n, Kernel(n)) for n in names)
    return TaskGraph(f"rollout of {steps}", tasks, edges), CostTable(platform, tuple(modes))


def fused_pairs(seed: int, pairs: int, tokens: int, *, devices: int = 3) -> Loop:
    """A ring of 2 · pairs + 2 tasks on unrelated devices, of which `pairs` pairs may run as one
    call each. A task takes 1 to 10 ms, a call 0.5 to 1.2 times its tasks; copies 0.2 ms.

    tokens: on the edge from the last task to the first.
    """
    r = np.random.default_rng(seed)
    names, places = [f"t{i}" for i in range(2 * pairs + 2)], "abcdefgh"[:devices]
    edges = [Edge(a, b, bytes=1e4) for a, b in itertools.pairwise(names)]
    edges.append(Edge(names[-1], names[0], tokens_seq=tokens, bytes=1e4))
    calls = [(names[2 * k + 1], names[2 * k + 2]) for k in range(pairs)]
    seconds = {(n, d): float(r.uniform(1e-3, 1e-2)) for n in names for d in places}
    modes = [Mode.of(n, d, s) for (n, d), s in seconds.items()]
    for call in calls:
        for d in places:
            both = sum(seconds[n, d] for n in call)
            modes.append(Mode.of(call, d, float(r.uniform(0.5, 1.2)) * both))
    links = tuple(Link(places[0], d, 1e-4, 1e8) for d in places[1:])
    platform = Platform("star", tuple(Device(d, "null") for d in places), links)
    fusions = tuple(Fusion("+".join(call), call) for call in calls)
    tasks = tuple(Task(n, Kernel(n)) for n in names)
    graph = TaskGraph(f"{pairs} pairs", tasks, tuple(edges), fusions=fusions)
    return graph, CostTable(platform, tuple(modes))
