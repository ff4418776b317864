"""The solver against exhaustive search on random problems small enough for it, of every shape.

Bounds: the least cost of any assignment with the orders of its lanes left out, by the programs and
by enumeration of every replica count, slack, fused mode, mode and lane. Plans: value, bound, status
and infeasibility by the default method, and the bound of `heft`, against enumeration of plans and
orders. Where enumeration proves its optimum, the same problem is solved under limits 2 % looser and
2 % tighter than the optimum: the first must have a plan, the second must have none.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.bars import AbsentError, Bar, Part
from benchmarks.solver.clock import counted
from pearl import solve
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning import problem as planning
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.timing import build_timed_graph
from pearl.solvers.makespan import cpsat
from pearl.solvers.methods import enumeration
from pearl.solvers.model.search_space import cost_of, search_spaces
from pearl.solvers.period.period_form import PeriodForm
from pearl.testing.graphs import SHAPES, random_limited
from pearl.verification import check_plan

COUNT, QUICK_COUNT = 300, 21
"""Random problems whose bounds are compared."""

PLANS, QUICK_PLANS = 2_000, 42
"""Random problems whose plans are compared."""

ORDERED = 400
"""Plans at most of problems whose orders are enumerated too."""

TOLERANCE = 1e-6
OBJECTIVES = ("throughput", "power_efficiency")

NEAR = 0.02
"""Share by which a limit is looser or tighter than the optimum."""

CAPPED = 0.2
"""Share of the problems with a limit on power, drawn between half and twice the mean power of the
most frugal modes one after another."""


@dataclass(frozen=True)
class Problem:
    """What is solved. plans: assignments to be enumerated, before rules that couple tasks."""

    seed: int
    graph: TaskGraph
    costs: CostTable
    limits: Limits
    plans: int


def problems(count: int, *, first: int = 0, most: int = enumeration.PLANS) -> Iterator[Problem]:
    """`count` problems of 4 to `most` plans from the seeds `first`, `first` + 1, …, of each shape
    in turn; a size is drawn for each, evenly on a logarithmic scale, and problems far from theirs
    are passed over."""
    seed = first
    while count:
        r = random.Random(f"size {seed}")
        size = math.exp(r.uniform(math.log(16), math.log(most)))
        graph, costs, limits = random_limited(seed, shape=SHAPES[count % len(SHAPES)])
        if r.random() < CAPPED:
            limits = replace(limits, power_w=r.uniform(0.5, 2.0) * frugal_w(graph, costs))
        seed += 1
        try:
            plans = enumeration.count(
                enumeration.every_space(planning.Problem(graph, costs, limits))
            )
        except (InfeasibleError, SpecError):
            continue
        if max(4, size / 8) <= plans <= size:
            count -= 1
            yield Problem(seed - 1, graph, costs, limits, plans)


def frugal_w(graph: TaskGraph, costs: CostTable) -> float:
    """Mean watts of the most frugal modes one after another, with all devices that stay on."""
    frugal = [
        min((m.estimate for m in costs.of(t.name)), key=lambda e: e.energy_j) for t in graph.tasks
    ]
    busy_w = math.fsum(e.energy_j for e in frugal) / math.fsum(e.latency_s for e in frugal)
    return busy_w + math.fsum(costs.platform.idle_w().values())


def least_costs(p: Problem) -> dict[str, float]:
    """Objective → least cost (seconds or joules of an iteration) of any assignment by enumeration,
    orders left out."""
    found = dict.fromkeys(OBJECTIVES, math.inf)
    whole = planning.Problem(p.graph, p.costs, p.limits)
    for a in enumeration.assignments(enumeration.every_space(whole)):
        bound = build_timed_graph(a).order_bound_s
        for objective in OBJECTIVES:
            cost, _ = cost_of(replace(whole, objective=objective), a, bound)
            found[objective] = min(found[objective], cost)
    return found


def least_cost(problem: planning.Problem) -> float:
    """The same cost by the period form."""
    least = math.inf
    for space in search_spaces(problem):
        _, a, _ = PeriodForm(space, problem, None).run(least, 600.0)
        if a:
            least = min(least, cost_of(problem, a, build_timed_graph(a).order_bound_s)[0])
    return least


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
    """Least order bounds of the period form against enumeration, by objective."""
    tallies = {objective: Tally() for objective in OBJECTIVES}
    for p in found:
        half = tallies[OBJECTIVES[0]]
        with half.timed("enumeration"):
            expected = least_costs(p)
        for objective, tally in tallies.items():
            with tally.timed("method"):
                whole = planning.Problem(p.graph, p.costs, p.limits, objective)
                given = least_cost(whole)
            tally.problems += 1
            tally.compared += 1
            if not same(given, expected[objective]):
                tally.wrong.append(f"{p.graph.name}: {given!r} against {expected[objective]!r}")
    return tallies


def plan_of(
    p: Problem, objective: str, method: str | None, limits: Limits | None = None
) -> Plan | None:
    """A checked plan, or None where no plan meets the limits.

    Raises:
        InfeasibleError: no plan was found, and none is proved to be out of reach.
    """
    whole = planning.Problem(p.graph, p.costs, limits or p.limits, objective)
    try:
        with counted():  # other processes decide nothing
            plan = solve(p.graph, p.costs, objective=objective, limits=whole.limits, method=method)
    except InfeasibleError as error:
        if not error.conflict:
            raise
        return None
    check_plan(plan, whole)
    return plan


def exceeds(value: float, bound: float, objective: str) -> bool:
    """Whether a value is better than a bound allows."""
    if objective == "makespan":
        return value < bound * (1 - TOLERANCE)
    return value > bound * (1 + TOLERANCE)


def faults_of(p: Problem, objective: str, tally: Tally) -> list[str]:
    """What is wrong with the plans of a problem by the default method and by `heft`."""
    with tally.timed("enumeration"):
        oracle = plan_of(p, objective, "pearl.testing.exhaustive")
    with tally.timed("method"):
        ours = plan_of(p, objective, None)
    if oracle is None or ours is None:
        return [] if oracle is ours else ["only one finds that there is no plan"]
    plans = {"enumeration": oracle, "method": ours}
    if objective != "power_efficiency":
        quick = plan_of(p, objective, "heft")
        if quick is None:
            return ["heft finds no plan"]
        plans["heft"] = quick
    found = [
        f"the bound {plan.bound_value!r} of {who} is beaten by {other.value!r} of {whom}"
        for who, plan in plans.items()
        for whom, other in plans.items()
        if exceeds(other.value, plan.bound_value, objective)
    ]
    if oracle.status != "optimal":
        return found
    if ours.status != "optimal":
        found.append(f"the status is {ours.status}, the gap {ours.gap!r}")
    if not same(ours.value, oracle.value):
        found.append(f"{ours.value!r} against {oracle.value!r}")
    if slack_of(ours) != slack_of(oracle) and objective != "makespan":
        found.append(f"{slack_of(ours)} tokens of slack against {slack_of(oracle)}")
    if objective == "throughput":
        for name, sign in (("period_s", 1), ("min_throughput_per_s", -1)):
            best = oracle.period_s if sign == 1 else oracle.value
            loose = replace(p.limits, **{name: best * (1 + sign * NEAR)})  # type: ignore[arg-type]
            tight = replace(p.limits, **{name: best * (1 - sign * NEAR)})  # type: ignore[arg-type]
            with tally.timed("method"):
                if plan_of(p, objective, None, loose) is None:
                    found.append(f"{name} {NEAR:.0%} looser than the optimum: no plan")
                if plan_of(p, objective, None, tight) is not None:
                    found.append(f"{name} {NEAR:.0%} tighter than the optimum: a plan")
    return found


def slack_of(plan: Plan) -> int:
    return sum(e.slack for e in plan.edges)


def compare_plans(found: Iterable[Problem]) -> dict[str, Tally]:
    """Plans against enumeration, by objective: three of six problems are for throughput, two for
    power efficiency, one for makespan."""
    kinds = ("throughput", "power_efficiency", "throughput", "makespan", "throughput")
    tallies = {kind: Tally() for kind in sorted(set(kinds))}
    for k, p in enumerate(found):
        objective = (*kinds, "power_efficiency")[k % 6]
        if objective == "makespan":  # allows neither
            p = replace(p, limits=replace(p.limits, power_w=None, apart=()))
        tally = tallies[objective]
        tally.problems += 1
        tally.compared += 1
        try:
            wrong = faults_of(p, objective, tally)
        except Exception as error:  # whatever a solve raises is its fault, and is counted
            wrong = [f"{type(error).__name__}: {error}"]
        tally.wrong += [f"{p.graph.name}: {text}" for text in wrong]
    return tallies


def run(quick: bool, data: Path | None) -> Part:
    """The tables. Needs no data of others; the makespans need OR-Tools."""
    if not cpsat.installed():
        raise AbsentError("the comparison of makespans needs OR-Tools: pip install '.[cpsat]'")
    count, plans = (QUICK_COUNT, QUICK_PLANS) if quick else (COUNT, PLANS)
    drawn = list(problems(count, most=1000 if quick else enumeration.PLANS))
    tallies = {f"bound, {name}": t for name, t in compare_bounds(drawn).items()}
    small = list(problems(plans, first=100_000, most=ORDERED))
    tallies |= {f"plan, {name}": t for name, t in compare_plans(small).items()}
    rows, bars = [], []
    for name, tally in tallies.items():
        cpu = [f"{tally.cpu_s[who]:.1f}" for who in ("enumeration", "method")]
        rows.append([name, str(tally.compared), str(len(tally.wrong)), *cpu])
        bars.append(Bar(f"{name}: equal to enumeration", tally.shown, "all", tally.met))
    shapes = Counter(p.graph.name.partition(",")[0] for p in small)
    return Part(
        "Against exhaustive search",
        ["what", "compared", "different", "enumeration, CPU s", "method, CPU s"], rows, bars,
        [f"{PLANS} problems instead of {plans}"] if quick else [],
        {
            "bounds": count, "plans": plans,
            "shapes": {name: n for name, n in shapes.items() if not name.startswith("seed")},
            "plans_enumerated": sum(p.plans for p in drawn),
            "compared": {name: t.compared for name, t in tallies.items()},
            "wrong": {name: t.wrong for name, t in tallies.items()},
        },
    )  # fmt: skip
