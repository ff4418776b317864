"""Plans and proofs are checked by a program that believes neither, and forgeries are refused."""

from __future__ import annotations

import copy
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pearl import (
    CostTable,
    Edge,
    InfeasibleError,
    Limits,
    Mode,
    Plan,
    SpecError,
    Task,
    TaskGraph,
    solve,
    verify,
)
from pearl.cli.application import app
from pearl.planning.plans import load_plan
from pearl.planning.problem import Problem
from pearl.planning.problem_files import problem_from_json
from pearl.solvers.period import period_form
from pearl.testing.graphs import SHAPES, devices, mode, random_limited, star
from pearl.verification import RefusedError, Verified, check_plan
from pearl.verification.proof import check_bound
from tests.sources import ROOT

STEADY = ("throughput", "power_efficiency")


def verified(plan: Plan, problem: Problem) -> Verified:
    return verify(plan, problem.graph, problem.costs, problem.limits, objective=problem.objective)


def read_back(plan: Plan) -> Plan:
    return load_plan(json.loads(json.dumps(plan.to_json())))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_optimal_plan_of_a_random_problem_is_certified(shape: str) -> None:
    compared = 0
    for seed in range(8):
        graph, costs, limits = random_limited(seed, most_tasks=4, most_devices=3, shape=shape)
        for objective in STEADY:
            problem = Problem(graph, costs, limits, objective)
            try:
                plan = solve(graph, costs, objective=objective, limits=limits, certify=True)
            except InfeasibleError:
                continue
            found = verified(read_back(plan), problem)
            assert found.bound <= found.cost * (1 + 1e-9)
            if plan.status == "optimal":
                compared += 1
                assert (plan.certified, found.gap <= 1.01e-6) == ("optimal", True), (
                    seed,
                    objective,
                )
    assert compared >= 8


TERMS: dict[str, Callable[[int], tuple[TaskGraph, CostTable, Limits]]] = {}
"""Problems with what random ones lack, by name."""


def term(name: str, **more: Any) -> None:
    def build(seed: int) -> tuple[TaskGraph, CostTable, Limits]:
        graph, costs, limits = random_limited(seed, most_tasks=4, most_devices=3, shape="mixed")
        names, r = [t.name for t in graph.tasks], random.Random(seed)
        if "paid_by" in more:
            links = tuple(replace(k, paid_by=more["paid_by"]) for k in costs.platform.links)
            costs = replace(costs, platform=replace(costs.platform, links=links))
        if "lanes" in more:
            terms = {pair: r.uniform(0, 4e-6) for pair in pairwise(names)}
            costs = replace(costs, **{more["lanes"]: terms})
        if "unit" in more:
            few = tuple(replace(d, unit_memory_bytes=2e6) for d in costs.platform.devices)
            costs = replace(
                costs,
                platform=replace(costs.platform, devices=few),
                modes=tuple(replace(m, unit_bytes=r.uniform(0, 9e5)) for m in costs.modes),
            )
        return graph, costs, limits

    TERMS[name] = build


term("lanes pay for messages", paid_by="lane")
term("nobody pays for messages", paid_by="nobody")
term("seconds between lanes", lanes="apart_extra_s")
term("seconds of sharing a lane", lanes="shared_extra_s")
term("memory of units", unit=True)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("objective", STEADY)
def test_a_certificate_covers_every_term_of_a_cost_table(name: str, objective: str) -> None:
    compared = 0
    for seed in range(5):
        problem = Problem(*TERMS[name](seed), objective)
        given: dict[str, Any] = {"objective": objective, "limits": problem.limits}
        try:
            plan = solve(problem.graph, problem.costs, certify=True, **given)
        except (InfeasibleError, SpecError):
            continue
        compared += plan.status == "optimal"
        found = verified(plan, problem)
        assert plan.status != "optimal" or found.gap <= 1.01e-6, seed
        watts = plan.power_w * 0.97
        slower = replace(problem.limits, power_w=watts)
        try:
            paced = solve(problem.graph, problem.costs, certify=True, **{**given, "limits": slower})
        except InfeasibleError:
            continue
        found = verified(paced, replace(problem, limits=slower))
        assert paced.status != "optimal" or found.gap <= 1.01e-6, seed
    assert compared


def makers(seed: int) -> tuple[TaskGraph, CostTable]:
    """Tasks with a state each, which fire several times and pass on what they make: no cycle joins
    them, so iterations of each may run ahead of the others."""
    r = random.Random(seed)
    names = [f"t{i}" for i in range(r.randint(3, 5))]
    edges = [Edge(name, name, tokens_seq=1) for name in names]
    q = [r.choice([1, 2, 3]) for _ in names]
    for i in range(1, len(names)):
        j = r.randrange(i)
        least = math.lcm(q[i], q[j])
        edges.append(Edge(names[j], names[i], least // q[j], least // q[i]))
    graph = TaskGraph("makers", tuple(Task(name) for name in names), tuple(edges))
    modes = tuple(mode(n, d, float(r.randint(1, 9))) for n in names for d in ("a", "b"))
    return graph, CostTable(star(devices("a", "b", lanes=1)), modes)


FALSE = {1: (24.0, 28.0), 13: (15.0, 25.0), 29: (22.0, 35.0), 47: (7.0, 14.0), 54: (24.0, 34.0)}
"""Seed → the least period, and that of a solver whose windows join components."""


@pytest.mark.parametrize("seed", FALSE)
def test_a_false_proof_gets_no_certificate(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows between tasks that no cycle joins chain their iterations. With this fault in the search
    its plans stay valid and are called optimal, but no proof is found."""
    graph, costs = makers(seed)
    truth = solve(graph, costs, certify=True)
    assert (truth.certified, truth.period_s) == ("optimal", FALSE[seed][0])
    sound = period_form.window_rows

    def faulty(space: Any, linear: Any, potential: Any, component: Any, *rest: Any) -> None:
        sound(space, linear, potential, np.zeros_like(component), *rest)

    monkeypatch.setattr(period_form, "window_rows", faulty)
    plan = solve(graph, costs, certify=True)
    assert (plan.status, plan.period_s) == ("optimal", FALSE[seed][1])
    assert plan.certified == "gap"
    assert verified(plan, Problem(graph, costs)).bound <= FALSE[seed][0]
    with pytest.raises(RefusedError, match="certified"):
        verified(replace(plan, certified="optimal"), Problem(graph, costs))


def test_the_verifier_loads_nothing_of_the_solvers() -> None:
    code = (
        "import sys, pearl.verification, pearl.verification.proof; "
        "print([m for m in sys.modules if m.startswith(('pearl.solvers', 'highspy', 'ortools'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# Forgeries.


@cache
def ring() -> tuple[Problem, Plan]:
    """A ring of four tasks on two devices, whose proof has branches, rows, cycles and orders."""
    for seed in range(100):
        graph, costs, limits = random_limited(seed, most_tasks=5, most_devices=3)
        problem = Problem(graph, costs, limits)
        try:
            plan = solve(graph, costs, limits=limits, certify=True)
        except InfeasibleError:
            continue
        tree = plan.certificate["trees"][0] if plan.certificate else {}
        kinds = {node[0] for node in tree.get("nodes", ())}
        two_lanes = sum(k.width > 0 for k in plan.lanes) > 1
        if {"cut", "rows", "orders", "cycle"} <= kinds and tree["cycles"] and two_lanes:
            return problem, read_back(plan)
    raise AssertionError("no such problem")


Forgery = Callable[[dict[str, Any]], None]
PROOFS: dict[str, Forgery] = {}
PLANS: dict[str, Callable[[Plan], Plan]] = {}


def proof(name: str) -> Callable[[Forgery], Forgery]:
    def add(change: Forgery) -> Forgery:
        PROOFS[name] = change
        return change

    return add


def nodes(p: dict[str, Any], kind: str) -> list[list[Any]]:
    return [n for t in p["trees"] for n in t["nodes"] if n[0] == kind]


def rows(p: dict[str, Any]) -> list[Any]:
    return next(n[1] for n in nodes(p, "rows") if n[1])


def of_cycles(p: dict[str, Any]) -> list[Any]:
    return next(n[2] for n in nodes(p, "rows") if n[2])


for value in (-1e-6, float("nan"), float("inf"), 1e6, "1", None):
    if not isinstance(value, float) or not -1 < value < 1e9:

        @proof(f"multiplier of a row {value}")
        def _(p: dict[str, Any], value: Any = value) -> None:
            rows(p)[1] = value

    @proof(f"multiplier of a cycle {value}")
    def _(p: dict[str, Any], value: Any = value) -> None:
        of_cycles(p)[1] = value


@proof("multipliers negative")
def _(p: dict[str, Any]) -> None:
    for node in nodes(p, "rows"):
        node[1] = [-abs(each) if n % 2 else each for n, each in enumerate(node[1])]


@proof("multipliers dropped")
def _(p: dict[str, Any]) -> None:
    for node in nodes(p, "rows"):
        node[1:] = [], []


for row in (-1, 10**6, 0.5, "lane"):

    @proof(f"row {row}")
    def _(p: dict[str, Any], row: Any = row) -> None:
        rows(p)[0] = row

    @proof(f"cycle {row}")
    def _(p: dict[str, Any], row: Any = row) -> None:
        of_cycles(p)[0] = row


@proof("cycle cut open")
def _(p: dict[str, Any]) -> None:
    p["trees"][0]["cycles"][0] = [p["trees"][0]["cycles"][0][0], 0]


@proof("cycle of no arc")
def _(p: dict[str, Any]) -> None:
    p["trees"][0]["cycles"][0] = []


@proof("way missing")
def _(p: dict[str, Any]) -> None:
    nodes(p, "cut")[0][2][0].pop()


@proof("branch missing")
def _(p: dict[str, Any]) -> None:
    nodes(p, "cut")[0][2].pop()


@proof("node missing")
def _(p: dict[str, Any]) -> None:
    p["trees"][0]["nodes"].pop()


@proof("node added")
def _(p: dict[str, Any]) -> None:
    p["trees"][0]["nodes"].append(["rows", [], []])


@proof("unknown node")
def _(p: dict[str, Any]) -> None:
    p["trees"][0]["nodes"][0] = ["trust", 1]


@proof("tree missing")
def _(p: dict[str, Any]) -> None:
    p["trees"].pop()


@proof("tree added")
def _(p: dict[str, Any]) -> None:
    p["trees"].append(p["trees"][0])


@proof("orders of an open case")
def _(p: dict[str, Any]) -> None:
    p["trees"][0]["nodes"] = [["orders"]]


@proof("orders without their cycle")
def _(p: dict[str, Any]) -> None:
    nodes(p, "cycle")[0][1] = []


@proof("another arc in a cycle of orders")
def _(p: dict[str, Any]) -> None:
    nodes(p, "cycle")[0][1][0] = -1


for factor in (1.01, 0.99, float("nan"), float("inf"), -1.0):

    @proof(f"bound times {factor}")
    def _(p: dict[str, Any], factor: float = factor) -> None:
        p["bound"] *= factor


for key in ("bound", "trees", "sha256", "start"):

    @proof(f"{key} missing")
    def _(p: dict[str, Any], key: str = key) -> None:
        del p[key]


@proof("of another problem")
def _(p: dict[str, Any]) -> None:
    p["sha256"] = "0" * 64


@proof("start moved")
def _(p: dict[str, Any]) -> None:
    name = next(iter(p["start"]))
    p["start"][name] += 1.0


@proof("start missing")
def _(p: dict[str, Any]) -> None:
    p["start"].popitem()


@proof("start no number")
def _(p: dict[str, Any]) -> None:
    p["start"][next(iter(p["start"]))] = float("nan")


def first(plan: Plan, what: str, **change: Any) -> Plan:
    some = getattr(plan, what)
    return replace(plan, **{what: (replace(some[0], **change), *some[1:])})


def busiest(plan: Plan, turn: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Plan:
    lane = max((k for k in plan.lanes if k.width), key=lambda k: len({e.task for e in k.order}))
    lanes = tuple(replace(k, order=turn(k.order)) if k is lane else k for k in plan.lanes)
    return replace(plan, lanes=lanes)


PLANS |= {
    "period shorter": lambda p: replace(p, period_s=p.period_s * 0.98),
    "value better": lambda p: replace(p, value=p.value * 1.05),
    "energy less": lambda p: replace(p, energy_per_iteration_j=p.energy_per_iteration_j / 2),
    "power less": lambda p: replace(p, power_w=p.power_w / 2),
    "bound better": lambda p: replace(p, bound_value=p.bound_value * 2),
    "gap more": lambda p: replace(p, gap=0.1),
    "bound of the period more": lambda p: replace(p, bound_s=p.period_s * 1.1),
    "certified less": lambda p: replace(p, certified="gap"),
    "certified nothing": lambda p: replace(p, certified=""),
    "certified bound": lambda p: replace(p, certified_bound=p.value * 2),
    "no certificate": lambda p: replace(p, certificate=None),
    "order turned": lambda p: busiest(p, lambda order: order[::-1]),
    "entry missing": lambda p: busiest(p, lambda order: order[1:]),
    "entry twice": lambda p: busiest(p, lambda order: (*order, order[0])),
    "entry ahead": lambda p: busiest(
        p, lambda order: (replace(order[0], offset=order[0].offset + 5), *order[1:])
    ),
    "task twice": lambda p: replace(p, tasks=(*p.tasks, p.tasks[0])),
    "task missing": lambda p: replace(p, tasks=p.tasks[1:]),
    "unknown mode": lambda p: first(p, "tasks", variant="other"),
    "wider": lambda p: first(p, "tasks", width=99),
    "on a lane that is not listed": lambda p: first(p, "tasks", lane="d9.9"),
    "on another device": lambda p: first(p, "tasks", device="d9"),
    "slack": lambda p: first(p, "edges", slack=9),
    "tokens": lambda p: first(p, "edges", tokens=9),
    "tokens of the program": lambda p: first(p, "edges", tokens_seq=9),
    "bytes": lambda p: first(p, "edges", bytes=7.0),
    "capacity": lambda p: replace(
        p, edges=tuple(replace(e, capacity=0) if e.capacity else e for e in p.edges)
    ),
    "no capacity": lambda p: replace(p, edges=tuple(replace(e, capacity=None) for e in p.edges)),
    "edge missing": lambda p: replace(p, edges=p.edges[1:]),
    "lane wider": lambda p: first(p, "lanes", width=p.lanes[0].width + 1),
}


@pytest.mark.parametrize("name", PROOFS)
def test_a_forged_proof_is_refused(name: str) -> None:
    problem, plan = ring()
    forged = copy.deepcopy(dict(plan.certificate or {}))
    PROOFS[name](forged)
    with pytest.raises(SpecError):
        verified(replace(plan, certificate=forged), problem)


@pytest.mark.parametrize("name", PLANS)
def test_a_forged_plan_is_refused(name: str) -> None:
    problem, plan = ring()
    verified(plan, problem)
    with pytest.raises(SpecError):
        verified(PLANS[name](plan), problem)


PROBLEMS: dict[str, Callable[[Problem, Plan], Problem]] = {
    "memory": lambda p, plan: replace(
        p, limits=replace(p.limits, memory_bytes={d.name: 1.0 for d in p.costs.platform.devices})
    ),
    "power": lambda p, plan: replace(p, limits=replace(p.limits, power_w=0.1)),
    "period": lambda p, plan: replace(p, limits=replace(p.limits, period_s=plan.period_s / 2)),
    "pin": lambda p, plan: replace(
        p,
        limits=replace(
            p.limits,
            pin={
                plan.tasks[0].task: next(
                    d.name for d in p.costs.platform.devices if d.name != plan.tasks[0].device
                )
            },
        ),
    ),
    "lanes": lambda p, plan: replace(p, limits=replace(p.limits, max_lanes=1)),
    "slack": lambda p, plan: replace(p, limits=replace(p.limits, policy_lag=9)),
    "apart": lambda p, plan: replace(
        p,
        limits=replace(
            p.limits,
            apart=(
                next(
                    (a.task, b.task)
                    for a in plan.tasks
                    for b in plan.tasks
                    if a.task != b.task and a.lane == b.lane
                ),
            ),
        ),
    ),
    "a cheaper mode": lambda p, plan: replace(
        p, costing=replace(p.costs, modes=tuple(m.scale(0.5) for m in p.costs.modes))
    ),
    "a dearer mode": lambda p, plan: replace(
        p, costing=replace(p.costs, modes=tuple(m.scale(1.5) for m in p.costs.modes))
    ),
    "a token more": lambda p, plan: replace(
        p,
        graph=replace(
            p.graph,
            edges=tuple(
                replace(e, tokens_seq=e.tokens_seq + bool(e.tokens_seq)) for e in p.graph.edges
            ),
        ),
    ),
    "another objective": lambda p, plan: replace(p, objective="power_efficiency"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_plan_of_another_problem_is_refused(name: str) -> None:
    problem, plan = ring()
    with pytest.raises(SpecError):
        verified(plan, PROBLEMS[name](problem, plan))


def test_a_number_changed_anywhere_in_a_proof_never_proves_more() -> None:
    """The optimum is known: a proof that is changed, hash and all, may prove less, not more."""
    problem, plan = ring()
    text, r = json.dumps(plan.certificate), random.Random(1)
    cost, proved = check_plan(plan, problem).cost, 0
    for _ in range(150):
        forged = json.loads(text)
        lists: list[list[Any]] = []

        def gather(part: Any, lists: list[list[Any]] = lists) -> None:
            if isinstance(part, list):
                if any(isinstance(each, int | float) for each in part):
                    lists.append(part)
                for each in part:
                    gather(each)

        for tree in forged["trees"]:
            gather(tree["nodes"])
            gather(tree["cycles"])
        some = r.choice(lists)
        place = r.choice([i for i, each in enumerate(some) if isinstance(each, int | float)])
        some[place] += r.choice([-1, 1, 0.5, -some[place], some[place], 1e-3, -1e-3])
        forged["bound"] *= r.choice([1.0, 1.0001])
        try:
            bound = check_bound(forged, problem)
        except (SpecError, ArithmeticError, LookupError, TypeError, ValueError):
            continue
        proved += 1
        assert bound <= cost
    assert proved  # some numbers have room


def test_firings_of_a_task_out_of_order_are_refused() -> None:
    graph = TaskGraph("g", (Task("b"), Task("c")), (Edge("b", "c", consumption=2),))
    costs = CostTable.from_seconds(star(devices("a", lanes=1)), {"b": {"a": 1.0}, "c": {"a": 1.0}})
    plan = solve(graph, costs)
    lane = plan.lanes[0]
    at = [i for i, e in enumerate(lane.order) if e.task == "b"]
    order = list(lane.order)
    order[at[0]] = replace(order[at[0]], offset=order[at[0]].offset - 1)
    with pytest.raises(RefusedError, match="sequence b"):
        check_plan(replace(plan, lanes=(replace(lane, order=tuple(order)),)), Problem(graph, costs))


def test_prefetch_and_deferral_share_their_limit() -> None:
    edges = (
        Edge("x", "y", limit="prefetch"),
        Edge("y", "x", tokens_seq=1, limit="priority_staleness"),
    )
    graph = TaskGraph("g", (Task("x"), Task("y")), edges)
    costs = CostTable.from_seconds(star(devices("a", "b")), {"x": {"a": 1.0}, "y": {"b": 1.0}})
    wide = Limits(prefetch=2, priority_staleness=2)
    plan = solve(graph, costs, limits=wide)
    both = replace(
        plan, edges=tuple(replace(e, slack=2, tokens=e.tokens_seq + 2) for e in plan.edges)
    )
    with pytest.raises(RefusedError, match="slack"):
        check_plan(both, Problem(graph, costs, wide))


def test_data_in_flight_is_memory() -> None:
    """A channel holds its capacity, in bytes, on the device of its consumer."""
    graph = TaskGraph(
        "g", (Task("x"), Task("y")), (Edge("x", "y", bytes=1e6), Edge("y", "x", tokens_seq=1))
    )
    costs = CostTable(star(devices("a", "b")), (mode("x", "a", 1.0), Mode.of("y", "b", 1.0)))
    plan = solve(graph, costs)
    capacity = plan.edges[0].capacity or 0
    room = Limits(memory_bytes={"b": capacity * 1e6})
    check_plan(plan, Problem(graph, costs, room))
    less = Limits(memory_bytes={"b": capacity * 1e6 - 1})
    with pytest.raises(RefusedError, match="memory b"):
        check_plan(plan, Problem(graph, costs, less))


def test_a_plan_file_holds_all_that_its_check_needs(tmp_path: Path) -> None:
    graph, costs, limits = random_limited(3, most_tasks=4, most_devices=3, shape="mixed")
    plan, run = solve(graph, costs, limits=limits, certify=True), CliRunner()
    file = tmp_path / "plan.json"
    plan.save(file)
    assert run.invoke(app, ["verify", str(file)]).exit_code == 0
    loaded = load_plan(file)
    assert loaded.certificate is not None
    kept = problem_from_json(loaded.certificate["problem"])
    assert verified(loaded, kept) == verified(plan, Problem(graph, costs, limits))
    value = json.loads(file.read_text())
    file.write_text(json.dumps(value | {"value": value["value"] * 1.05}))
    assert run.invoke(app, ["verify", str(file)]).exit_code == 1
    bare = {k: v for k, v in value["certificate"].items() if k not in ("bound", "trees")}
    less = {"certificate": bare, "certified": "", "certified_bound": None}
    file.write_text(json.dumps(value | less))
    assert run.invoke(app, ["verify", str(file)]).exit_code == 3
    without = {k: v for k, v in value.items() if not k.startswith("certif")}
    file.write_text(json.dumps(without))
    ran = run.invoke(app, ["verify", str(file)])
    assert (ran.exit_code, "--spec" in ran.stderr) == (2, True)


def test_a_large_certificate_lies_beside_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pearl.planning.certificate_files.INSIDE_BYTES", 10)
    problem, _ = ring()
    plan = solve(problem.graph, problem.costs, limits=problem.limits, certify=True)
    plan.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.proof.json.gz").exists()
    assert json.loads((tmp_path / "plan.json").read_text())["certificate"] is None
    verified(load_plan(tmp_path / "plan.json"), problem)
    (tmp_path / "plan.proof.json.gz").write_bytes(b"no gzip")
    with pytest.raises(SpecError, match=r"plan\.proof\.json\.gz"):
        load_plan(tmp_path / "plan.json")


def test_the_verifier_is_small() -> None:
    files = (ROOT / "pearl" / "verification").glob("*.py")
    assert sum(len(f.read_text().splitlines()) for f in files) <= MOST_LINES


MOST_LINES = 1_325
