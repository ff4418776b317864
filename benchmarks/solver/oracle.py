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
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.bars import AbsentError, Bar, Part
from pearl import solve
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning import problem as planning
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.timing import build_timed_graph
from pearl.solvers.methods import cpsat, enumeration
from pearl.solvers.model.search_space import cost_of, search_spaces
from pearl.solvers.period.period_form import PeriodForm
from pearl.testing.graphs import random_limited
from pearl.verification import check_plan

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
        graph, costs, limits = random_limited(seed)
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


def plan_of(p: Problem, objective: str, method: str | None) -> Plan | None:
    """A checked plan, or None where no plan meets the limits."""
    try:
        plan = solve(p.graph, p.costs, objective=objective, limits=p.limits, method=method)
    except InfeasibleError:
        return None
    check_plan(plan, planning.Problem(p.graph, p.costs, p.limits))
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
        ["what", "compared", "different", "enumeration, CPU s", "method, CPU s"], rows, bars,
        [f"{COUNT} problems an objective instead of {count}"] if quick else [],
        {
            "problems": count, "tasks": dict(sorted(sizes.items())),
            "plans_enumerated": sum(p.plans for p in drawn),
            "compared": {name: t.compared for name, t in tallies.items()},
            "wrong": {name: t.wrong for name, t in tallies.items()},
        },
    )  # fmt: skip
