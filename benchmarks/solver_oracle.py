"""The solver against exhaustive search on random problems small enough for it.

Two comparisons. Bounds: the least cost of any assignment with the orders of its lanes left out, by
the programs and by enumeration of every replica count, slack, fused mode, mode and lane. Plans:
values with lane orders and the least slack that reaches them, where enumeration proves the optimum
(lanes of at most three firings, so that all orders are tried). Makespans likewise.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.bars import AbsentError, Bar, Part
from pearl import solve
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl.planning.costs import Choice, CostTable, Mode
from pearl.planning.plan_validation import check_plan
from pearl.planning.plans import Plan
from pearl.planning.timing import timing
from pearl.solvers.methods import cpsat, enumeration, milp
from pearl.solvers.model.search_space import cost_of, programs
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate

COUNT, QUICK_COUNT = 300, 20
"""Random problems per objective."""

ORDERED = 400
"""Plans at most of problems whose orders are enumerated too."""

TOLERANCE = 1e-6
OBJECTIVES = ("throughput", "power_efficiency")
KEYS = ("policy_lag", "prefetch", "insertion_lag", "priority_staleness")


@dataclass(frozen=True)
class Problem:
    """What is solved. plans: assignments to be enumerated, before rules that couple tasks."""

    seed: int
    graph: TaskGraph
    costs: CostTable
    limits: Limits
    plans: int


def problems(count: int, *, first: int = 0, most: int = enumeration.PLANS) -> Iterator[Problem]:
    """`count` problems of 4 to `most` plans from the seeds `first`, `first` + 1, …; a size is drawn
    for each, evenly on a logarithmic scale, and problems far from theirs are passed over."""
    seed = first
    while count:
        size = math.exp(random.Random(f"size {seed}").uniform(math.log(16), math.log(most)))
        graph, costs, limits = problem(seed)
        seed += 1
        try:
            plans = enumeration.count(enumeration.every_program(graph, costs, limits))
        except (InfeasibleError, SpecError):
            continue
        if max(4, size / 8) <= plans <= size:
            count -= 1
            yield Problem(seed - 1, graph, costs, limits, plans)


def problem(seed: int) -> tuple[TaskGraph, CostTable, Limits]:
    """Two to eight tasks on one to four devices, at most three modes a task: cycles, rates, slack,
    replicas, states, memory, transfers, pair terms, fused modes, lanes and widths."""
    r = random.Random(seed)
    names = [f"t{i}" for i in range(r.randint(2, 8))]
    q = {n: r.choice([1, 1, 1, 2]) for n in names}
    environments = {n: r.choice([0, 0, 0, 4]) for n in names}
    slack_edges = r.randint(0, 2)

    def edge(a: str, b: str, back: bool) -> Edge:
        least = math.lcm(q[a], q[b])
        tokens = least * r.choice([1, 1, 2]) if back else 0
        return Edge(a, b, least // q[a], least // q[b], tokens, bytes=r.choice([0.0, 1e3, 5e4]))

    edges = [edge(a, b, False) for a, b in pairwise(names)] + [edge(names[-1], names[0], True)]
    taken = {(e.src, e.dst) for e in edges}
    for _ in range(r.randint(0, 3)):
        i, j = r.sample(range(len(names)), 2)
        if (names[i], names[j]) not in taken:
            taken.add((names[i], names[j]))
            edges.append(edge(names[i], names[j], j < i))
    for n in names:
        if r.random() < 0.4:
            edges.append(Edge(n, n, tokens_seq=1))
    keys = r.sample(KEYS, slack_edges)
    for key, i in zip(keys, r.sample(range(len(names)), slack_edges), strict=True):
        e = edges[i]
        edges[i] = Edge(e.src, e.dst, e.production, e.consumption, e.tokens_seq, 0, e.bytes, key)
    states: dict[str, float] = {}
    holds: dict[str, tuple[str, ...]] = {}
    if r.random() < 0.3:
        states["s"] = 3e6
        holds = {names[0]: ("s",), names[-1]: ("s",)}
        if (names[0], names[-1]) not in taken:
            edges.append(edge(names[0], names[-1], False))
    tasks = tuple(
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
    graph = TaskGraph(f"seed {seed}", tasks, tuple(edges), states, fusions, r.choice([0, 8]))
    platform = _platform(r)
    limits = Limits(
        **{key: r.randint(0, 2) for key in keys},  # type: ignore[arg-type]
        replicas={n: 2 for n in names if environments[n] and r.random() < 0.7},
        max_lanes=r.choice([None, None, None, 2, 3]),
    )
    return graph, _costs(r, graph, platform, limits), limits


def _platform(r: random.Random) -> Platform:
    devices = tuple(
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
        for i in range(r.randint(1, 4))
    )
    links = [
        Link(
            "d0", d.name, r.choice([0.0, 1e-6]), r.choice([1e9, 1e10]), r.choice([0.0, 5e-7]), 1e-10
        )
        for d in devices[1:]
    ]
    if len(devices) > 2 and r.random() < 0.5:
        links.append(Link("d1", "d2", 1e-6, 1e10))
    return Platform("random", devices, tuple(links), "d0")


def _costs(r: random.Random, graph: TaskGraph, platform: Platform, limits: Limits) -> CostTable:
    modes: list[Mode] = []
    for tasks in [*((t.name,) for t in graph.tasks), *(f.tasks for f in graph.fusions)]:
        ways: set[tuple[str, str]] = set()
        for _ in range(r.choice([1, 2, 2, 3])):
            device = r.choice(platform.devices)
            variant = r.choice(["v0", "v1"])
            if (device.name, variant) in ways:
                continue
            ways.add((device.name, variant))
            seconds = r.uniform(2e-6, 2e-5) * len(tasks)
            joules = r.uniform(5e-5, 1e-3)
            width, pipelined = r.randint(1, device.width), r.choice([1.0, 1.0, 0.5])
            shares: list[int | None] = [None]
            whole = graph.task(tasks[0]).environments
            if len(tasks) == 1 and limits.replicas.get(tasks[0], 1) > 1:
                shares += list(range(1, whole))
            fixed = r.uniform(0.0, 0.6)
            for share in shares:
                part = 1.0 if share is None else fixed + (1 - fixed) * share / whole
                time_s = seconds * part
                estimate = Estimate(
                    time_s, time_s * pipelined, time_s * 0.9, time_s * 1.1, joules * part
                )
                modes.append(Mode(tasks, device.name, variant, width, estimate, share))
    pairs: dict[tuple[Choice, Choice], float] = {}
    single = [m for m in modes if not m.fused and m.share is None]
    for _ in range(r.choice([0, 0, 1, 2])):
        a, b = r.sample(single, 2)
        if a.tasks != b.tasks:
            extra = r.uniform(-0.3, 1.0) * 0.3 * a.estimate.occupancy_s
            pairs[(a.tasks[0], a.key), (b.tasks[0], b.key)] = extra
    return CostTable(platform, tuple(modes), pairs)


def least_costs(p: Problem) -> dict[str, float]:
    """Objective → least cost (seconds or joules of an iteration) of any assignment by enumeration,
    orders left out."""
    found = dict.fromkeys(OBJECTIVES, math.inf)
    for a in enumeration.assignments(enumeration.every_program(p.graph, p.costs, p.limits)):
        bound = timing(a).order_bound_s
        for objective in OBJECTIVES:
            cost, _ = cost_of(objective, a, bound, p.limits)
            found[objective] = min(found[objective], cost)
    return found


def same(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=TOLERANCE)


@dataclass
class Tally:
    """Of one comparison: problems, how many of them could be compared, and what disagreed."""

    problems: int = 0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=lambda: {"enumeration": 0.0, "method": 0.0})

    @contextmanager
    def timed(self, who: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.cpu_s[who] += time.process_time() - began

    @property
    def met(self) -> bool:
        return self.compared > 0 and not self.wrong

    @property
    def shown(self) -> str:
        equal = self.compared - len(self.wrong)
        return f"{equal} of {self.compared}" + (f": not {self.wrong[0]}" if self.wrong else "")


def compare_bounds(found: Iterable[Problem]) -> dict[str, Tally]:
    """Least order bounds of `milp` against enumeration, by objective."""
    tallies = {objective: Tally() for objective in OBJECTIVES}
    for p in found:
        half = tallies[OBJECTIVES[0]]
        with half.timed("enumeration"):
            expected = least_costs(p)
        for objective, tally in tallies.items():
            with tally.timed("method"):
                given = milp.least_cost(programs(p.graph, p.costs, p.limits), objective, p.limits)
            tally.problems += 1
            tally.compared += 1
            if not same(given, expected[objective]):
                tally.wrong.append(f"{p.graph.name}: {given!r} against {expected[objective]!r}")
    return tallies


def plan_of(p: Problem, objective: str, method: str | None) -> Plan | None:
    """A checked plan, or None where no plan meets the limits."""
    try:
        plan = solve(p.graph, p.costs, objective=objective, limits=p.limits, method=method)
    except InfeasibleError:
        return None
    check_plan(plan, p.graph, p.costs)
    return plan


def slack_of(plan: Plan) -> int:
    return sum(e.slack for e in plan.edges)


def compare_plans(found: Iterable[Problem], objective: str, enough: int) -> tuple[Tally, Tally]:
    """Values of the default method, and the slack it takes, against enumeration of plans and
    orders; compared where enumeration proves its optimum (or that there is no plan), until that was
    so `enough` times."""
    values, slack = Tally(), Tally()
    for p in found:
        if values.compared == enough:
            break
        with values.timed("enumeration"):
            oracle = plan_of(p, objective, "exhaustive")
        with values.timed("method"):
            ours = plan_of(p, objective, None)
        values.problems += 1
        if oracle is None or ours is None:
            values.compared += 1
            if oracle is not ours:
                values.wrong.append(f"{p.graph.name}: only one finds that there is no plan")
        elif oracle.status == "optimal":
            values.compared += 1
            if not same(ours.value, oracle.value):
                values.wrong.append(f"{p.graph.name}: {ours.value!r} against {oracle.value!r}")
            elif slack_of(oracle) or slack_of(ours):
                slack.compared += 1
                if slack_of(ours) != slack_of(oracle):
                    what = f"{slack_of(ours)} tokens against {slack_of(oracle)}"
                    slack.wrong.append(f"{p.graph.name}: {what}")
    return values, slack


def run(quick: bool, data: Path | None) -> Part:
    """The tables. Needs no data of others; the makespans need OR-Tools."""
    if not cpsat.installed():
        raise AbsentError("the comparison of makespans needs OR-Tools: pip install '.[cpsat]'")
    count = QUICK_COUNT if quick else COUNT
    bars: list[Bar] = []
    rows: list[list[str]] = []
    drawn = list(problems(count, most=1000 if quick else enumeration.PLANS))
    tallies = {f"bound, {name}": t for name, t in compare_bounds(drawn).items()}
    for objective in OBJECTIVES:
        small = problems(2 * count, first=100_000, most=ORDERED)
        values, slack = compare_plans(small, objective, count)
        tallies[f"plan, {objective}"] = values
        tallies[f"least slack, {objective}"] = slack
    tiny = problems(4 * count, first=200_000, most=ORDERED // 4)
    tallies["plan, makespan"], _ = compare_plans(tiny, "makespan", count)
    for name, tally in tallies.items():
        cpu = [f"{tally.cpu_s[who]:.1f}" for who in ("enumeration", "method")]
        rows.append([name, str(tally.compared), str(len(tally.wrong)), *cpu])
        if name.startswith("least slack") and tally.compared == 0:
            continue
        asked = "all, within 1e-6" if not name.startswith("least slack") else "all"
        bars.append(Bar(f"{name}: equal to enumeration", tally.shown, asked, tally.met))
    sizes = Counter(len(p.graph.tasks) for p in drawn)
    return Part(
        "Against exhaustive search",
        ["what", "compared", "different", "enumeration, CPU s", "method, CPU s"],
        rows,
        bars,
        [f"{COUNT} problems an objective instead of {count}"] if quick else [],
        {
            "problems": count,
            "tasks": dict(sorted(sizes.items())),
            "plans_enumerated": sum(p.plans for p in drawn),
            "compared": {name: t.compared for name, t in tallies.items()},
            "wrong": {name: t.wrong for name, t in tallies.items()},
        },
    )
