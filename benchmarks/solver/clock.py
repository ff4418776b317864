"""The time limit of a solve: a part of `python -m benchmarks.solver`.

Shapes of 1 to 20,000 firings are solved by one worker with compiled code loaded. The clock
of these solves counts the CPU-seconds of this process and of all below it, so that what else the
machine does changes nothing: on a machine that has nothing else to do both clocks are the same.
Then random problems of all kinds have limits between 0.05 and 5 s of the same clock: each solve
must end with a plan that `check_plan` passes, or with a proof that there is none.
"""

from __future__ import annotations

import math
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from unittest.mock import patch

from benchmarks.bars import Bar, Part, at_most
from benchmarks.processes import below, cpu_s
from benchmarks.solver.instances import large, small
from pearl import solve
from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.solvers import METHODS
from pearl.testing.graphs import devices, mode, random_limited, star
from pearl.verification import check_plan
from pearl_devices import Kernel

SHARE, MORE_S = 0.10, 0.30
"""Asked: CPU-seconds beyond the limit at most, as a share of the limit and besides."""

LIMITS_S = (2.0, 5.0)
"""Time limits of the shapes."""

RANDOM, QUICK = 1_000, 25
"""Random problems, and with --quick."""

LOOK_S = 0.01
"""Seconds between two looks at the processes below."""

SHORTEST_S, LONGEST_S = 0.05, 5.0
"""Time limits of the random problems, whose logarithm is drawn evenly."""

Case = tuple[TaskGraph, CostTable, str]
"""A graph, its costs and an objective."""


def costs_of(graph: TaskGraph, names: str, seed: int = 0, latency_s: float = 1e-6) -> CostTable:
    """Random times of every task on every device, 0.1 to 1 ms; linked to the first device."""
    r = random.Random(seed)
    modes = [
        mode(t.name, d, r.uniform(1e-4, 1e-3), band=0.2, energy=r.uniform(1e-3, 1e-2))
        for t in graph.tasks
        for d in names
    ]
    return CostTable(star(devices(*names, lanes=1), latency_s, 1e9), tuple(modes))


def ring(tasks: int, tokens: int) -> TaskGraph:
    """Each task feeds the next, the last one the first."""
    names = [f"t{i}" for i in range(tasks)]
    edges = [Edge(a, b, bytes=1e4) for a, b in pairwise(names)]
    last = Edge(names[-1], names[0], tokens_seq=tokens, bytes=1e4)
    return TaskGraph("ring", tuple(Task(n, Kernel(n)) for n in names), (*edges, last))


def chain(tasks: int) -> TaskGraph:
    graph = ring(tasks, 1)
    return replace(graph, name="chain", edges=graph.edges[:-1])


def dense(tasks: int, share: float = 0.095) -> TaskGraph:
    """Each task feeds this share of the later ones."""
    r = random.Random(0)
    names = [f"t{i}" for i in range(tasks)]
    pairs = [pair for pair in combinations(names, 2) if r.random() < share]
    edges = tuple(Edge(a, b, bytes=1e4) for a, b in pairs)
    return TaskGraph("dense", tuple(Task(n, Kernel(n)) for n in names), edges)


def rates(*counts: int) -> TaskGraph:
    """Tasks in a ring that fire so often an iteration, each edge with the fewest messages."""
    names = [f"t{i}" for i in range(len(counts))]
    total = max(counts)
    edges = []
    for (a, n), (b, k) in pairwise([*zip(names, counts, strict=True), (names[0], counts[0])]):
        production, consumption = (1, n // k) if n >= k else (k // n, 1)
        tokens = max(n, k) if b == names[0] else 0
        edges.append(Edge(a, b, production, consumption, tokens, bytes=8.0))
    assert all(total % n == 0 for n in counts)
    return TaskGraph("rates", tuple(Task(n, Kernel(n)) for n in names), tuple(edges))


def _of(graph: TaskGraph, names: str = "abcd", objective: str = "throughput") -> Case:
    return graph, costs_of(graph, names), objective


def _large(tasks: int, ratio: float, shape: str) -> Case:
    return *large(0, ratio, tasks=tasks, shape=shape), "throughput"


def _alone() -> Case:
    return _of(TaskGraph("one", (Task("t0", Kernel("t0")),), ()))


SHAPES: dict[str, Callable[[], Case]] = {
    "one task": _alone,
    "loop of 2": lambda: _of(ring(2, 1)),
    "mesh of 8": lambda: (*small(0), "throughput"),
    "mesh of 14, energy": lambda: (*small(0, tasks=14), "power_efficiency"),
    "ring of 40, 4 tokens": lambda: _of(ring(40, 4)),
    "ring of 200, 4 tokens": lambda: _of(ring(200, 4), "abcdefgh"),
    "ring of 1,000, 16 tokens": lambda: _of(ring(1_000, 16), "abcdefgh"),
    "chain of 3,000": lambda: _of(chain(3_000)),
    "chain of 300, energy": lambda: _of(chain(300), objective="power_efficiency"),
    "chain of 300, makespan": lambda: _of(chain(300), objective="makespan"),
    "chain of 60, robust": lambda: _of(chain(60), objective="robust"),
    "sparse 125 × 16": lambda: _large(125, 1.0, "sparse"),
    "sparse 1,000 × 16": lambda: _large(1_000, 1.0, "sparse"),
    "layered 1,000 × 16": lambda: _large(1_000, 3.0, "layered"),
    "dense 400 × 8, 7,600 edges": lambda: _of(dense(400), "abcdefgh"),
    "rates 10:60:600": lambda: _of(rates(10, 60, 600)),
    "rates 1:730:1460": lambda: _of(rates(1, 730, 1_460)),
    "rates 1:3000:3000": lambda: _of(rates(1, 3_000, 3_000), "abc"),
    "rates 1:3000:3000, makespan": lambda: _of(rates(1, 3_000, 3_000), "abc", "makespan"),
    "rates 10:100:10000": lambda: _of(rates(10, 100, 10_000), "ab"),
    "rates 1:20000": lambda: _of(rates(1, 20_000), "ab"),
}
"""Name → a graph of this shape, its costs and an objective."""


class CpuClock:
    """A clock that counts the CPU-seconds of this process and of all below it, ended ones that were
    waited for too. Those below are looked at every LOOK_S."""

    def __init__(self) -> None:
        self._looked = self._below_s = -math.inf

    def __call__(self) -> float:
        now = time.perf_counter()
        if now > self._looked + LOOK_S:
            pid = os.getpid()
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            self._below_s = cpu_s(below(pid), waited=True) + ended.ru_utime + ended.ru_stime
            self._looked = now
        return time.process_time() + self._below_s


@contextmanager
def counted() -> Iterator[CpuClock]:
    """`time.monotonic` counts CPU-seconds."""
    clock = CpuClock()
    with patch.object(time, "monotonic", clock):
        yield clock


def _checked(objective: str) -> str:
    """The objective that a plan for this one says."""
    return "throughput" if objective == "robust" else objective


def timed(case: Case, limit_s: float) -> tuple[Plan, float, float]:
    """A checked plan by one worker, with the CPU-seconds and wall-clock seconds of its solve."""
    graph, costs, objective = case
    with counted() as clock:
        wall, cpu = time.perf_counter(), clock()
        plan = solve(graph, costs, objective=objective, time_limit_s=limit_s, workers=1)
        time.sleep(2 * LOOK_S)
        cpu, wall = clock() - cpu, time.perf_counter() - wall
    check_plan(plan, Problem(graph, costs, objective=_checked(objective)))
    return plan, cpu, wall


def random_case(seed: int) -> tuple[TaskGraph, CostTable, Limits, str, str | None, float]:
    """A random problem: graph, costs, limits, objective, method and time limit in seconds."""
    r = random.Random(seed)
    limit_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** r.random()
    limits = Limits()
    kind = r.choice(["limited", "limited", "mesh", "large", "ring", "rates"])
    objective = r.choice(["throughput"] * 4 + ["power_efficiency", "makespan", "robust"])
    if kind == "limited":
        graph, costs, limits = random_limited(seed, most_tasks=r.choice([4, 8, 12]))
    elif kind == "mesh":
        graph, costs = small(seed, tasks=r.randint(4, 20), devices=r.randint(2, 6), modes=2)
    elif kind == "large":
        shape = r.choice(["sparse", "random", "series-parallel"])
        objective = "throughput" if objective == "power_efficiency" else objective  # takes no joule
        tasks, places = r.randint(20, 400), r.randint(2, 16)
        graph, costs = large(seed, r.uniform(0.1, 3), tasks=tasks, devices=places, shape=shape)
    elif kind == "ring":
        graph = ring(r.randint(2, 400), r.randint(1, 16))
        costs = costs_of(graph, "abcdefgh"[: r.randint(1, 8)], seed)
    else:
        few, many = r.choice([1, 2, 5]), r.randint(1, 40)
        graph = rates(few, few * many, few * many * r.randint(1, 40))
        costs = costs_of(graph, "abcd"[: r.randint(1, 4)], seed)
    methods: list[str | None] = [None, None, None]
    methods += [m for m in ("heft", "tabu") if _checked(objective) in METHODS[m].objectives]
    return graph, costs, limits, objective, r.choice(methods), limit_s


def ended(seed: int) -> str:
    """How the solve of a random problem ends: with a plan, with a proof that there is none, or
    undecided. A plan that fails its check raises."""
    graph, costs, limits, objective, method, limit_s = random_case(seed)
    try:
        with counted():
            plan = solve(
                graph, costs, objective=objective, method=method, limits=limits,
                time_limit_s=limit_s, seed=seed, workers=1,
            )  # fmt: skip
    except InfeasibleError as error:
        return "none, proved" if error.conflict else f"undecided: {error}"
    check_plan(plan, Problem(graph, costs, limits, _checked(objective)))
    return "plan" if plan.status != "optimal" else "plan, optimal"


def run(quick: bool, data: Path | None) -> Part:
    timed(_of(chain(60)), 1.0)  # loads what is imported and compiled on first use
    timed(_of(ring(60, 4)), 1.0)
    rows, values = [], []
    for limit_s in LIMITS_S[:1] if quick else LIMITS_S:
        for name, make in SHAPES.items():
            case = make()
            plan, cpu, wall = timed(case, limit_s)
            late = cpu - limit_s * (1 + SHARE)
            firings = sum(case[0].repetition.values())
            values.append({
                "shape": name, "firings": firings, "limit_s": limit_s, "cpu_s": cpu, "wall_s": wall,
                "status": plan.status, "gap": plan.gap, "bound_from": plan.bound_from,
            })  # fmt: skip
            rows.append([
                name, f"{firings:,}", f"{limit_s:g}", f"{cpu:.2f}", f"{late:+.2f}", f"{wall:.1f}",
                plan.status, f"{plan.gap:.1%}", plan.bound_from,
            ])  # fmt: skip
    worst = max(v["cpu_s"] - v["limit_s"] * (1 + SHARE) for v in values)  # type: ignore[operator]
    count = QUICK if quick else RANDOM
    ends = Counter[str]()
    for seed in range(count):
        ends[ended(seed)] += 1
    undecided = sum(n for end, n in ends.items() if end.startswith("undecided"))
    said = ", ".join(f"{n} {end}" for end, n in sorted(ends.items()))
    bars = [
        at_most(f"CPU-seconds beyond 1.1 × the limit, {len(rows)} solves", worst, MORE_S),
        Bar(f"{count} random problems: {said}", str(undecided), "0 undecided", undecided == 0),
    ]
    columns = ["shape", "firings", "limit, s", "CPU, s", "beyond", "wall, s", "status", "gap"]
    left_out = [f"{RANDOM - count} of {RANDOM} random problems, and the limit of 5 s"]
    return Part(
        "the time limit",
        [*columns, "bound from"],
        rows,
        bars,
        left_out if quick else [],
        {"shapes": values, "random": dict(ends)},
    )
