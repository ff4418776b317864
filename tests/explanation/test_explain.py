"""Explanations: every figure is that of a fresh solve, and what is said is what was computed."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pearl
from pearl import explanation, solve
from pearl.errors import SpecError
from pearl.explanation import Explanation
from pearl.explanation.bound import bound_of
from pearl.explanation.crossover import crossover
from pearl.explanation.diagnosis import answers
from pearl.explanation.near_optimal import runner_ups
from pearl.explanation.resolve import Resolver, classes, devices_of, restrict
from pearl.explanation.what_if import WhatIf, speed_up
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planner.planner import build_problem
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl.solvers.methods import milp
from pearl.solvers.solver import solve_problem
from pearl.spec.system import System
from pearl.testing.graphs import devices, loop, mode, random_problem, star
from pearl.time_limit import OutOfTimeError
from pearl_devices import Platform, Refused, offers
from tests.explanation.kept_explanations import LONG_S, US, two_devices
from tests.graphs import dqn, dqn_costs
from tests.solvers import test_pearl_original as original

FAST = {"platform": "cpu_gpu", "limits": {}}


def explain(plan: Plan, *problem: Any, **more: Any) -> Explanation:
    """In all the time that it takes, unless told otherwise."""
    return explanation.explain(plan, *problem, **{"time_limit_s": LONG_S, **more})


@cache
def shipped() -> tuple[System, Plan, Explanation]:
    """dqn_cartpole on a CPU and a GPU, its plan and why it is so."""
    system = pearl.load("dqn_cartpole", set=FAST)
    plan = pearl.plan(system)
    return system, plan, explain(plan)


def explained(graph: TaskGraph, costs: CostTable, **more: object) -> Explanation:
    return explain(solve(graph, costs), **more)  # type: ignore[arg-type]


def by_name(e: Explanation, kind: str, name: str) -> WhatIf:
    return next(w for w in e.what_ifs if (w.kind, w.name) == (kind, name))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("objective", ["throughput", "power_efficiency"])
def test_what_ifs_are_fresh_solves_of_the_changed_problem(objective: str) -> None:
    graph = dqn(2, fused=True)
    platform = star(devices("cpu", "acc", lanes=1, idle_power_w=20.0, active_power_w=90.0), 2e-6)
    table = dqn_costs(platform, {"cpu": 1.0, "acc": 3.0})
    learn = ("sample", "learn", "priorities")
    modes = tuple(
        replace(m, estimate=replace(m.estimate, energy_j=50 * m.estimate.latency_s))
        for m in (*table.modes, mode(learn, "cpu", 60 * US))
    )
    costs, limits = CostTable(platform, modes), Limits(policy_lag=1)
    plan = solve(graph, costs, limits=limits, objective=objective)
    e = explain(plan)
    assert e.left_out == ()

    def check(kind: str, name: str, fresh: Plan) -> None:
        w = by_name(e, kind, name)
        assert w.throughput == pytest.approx(fresh.rates["env_steps_per_s"])
        assert w.efficiency == pytest.approx(fresh.env_steps_per_j)
        assert w.gain == pytest.approx(fresh.value / plan.value - 1)

    def again(**changed: object) -> Plan:
        given: dict[str, object] = {"graph": graph, "costs": costs, "limits": limits, **changed}
        return solve(**given, objective=objective)  # type: ignore[arg-type]

    check("slack", "policy_lag", again(limits=replace(limits, policy_lag=2)))
    both = replace(limits, prefetch=1, priority_staleness=1)
    check("slack", "prefetch", again(limits=both))
    check("slack", "priority_staleness", again(limits=replace(limits, priority_staleness=1)))
    slow = platform.links[0]
    fast = replace(slow, latency_s=slow.latency_s / 2, bytes_per_s=2 * slow.bytes_per_s)
    table = replace(costs, platform=replace(platform, links=(fast,)))
    check("link", slow.name, again(costs=table))
    alone = Platform("star", platform.devices[:1])
    left = tuple(m for m in modes if m.device == "cpu")
    check("device", "acc", again(costs=CostTable(alone, left)))
    # A fused call of 2 firings each: apart they take 2 · (9 + 30 + 3) us, of which learn 60.
    fields = ("latency_s", "occupancy_s", "low_s", "high_s", "energy_j")

    def scaled(m: Mode) -> Mode:
        share = 1.0 if "learn" not in m.tasks else 1 - 0.2 * 30 / 42 if m.fused else 0.8
        quick = {n: share * getattr(m.estimate, n) for n in fields}
        return replace(m, estimate=replace(m.estimate, **quick))

    check("task", "learn", again(costs=CostTable(platform, tuple(map(scaled, modes)))))


def test_one_more_lane_is_one_more_lane() -> None:
    graph = dqn(1)
    costs = dqn_costs(Platform("one", devices("cpu", lanes=1, width=1)), {"cpu": 1.0})
    limits = Limits(policy_lag=2, insertion_lag=2, prefetch=1, priority_staleness=2, max_lanes=1)
    plan = solve(graph, costs, limits=limits)
    w = by_name(explain(plan), "lanes", "cpu")
    more = Platform("one", devices("cpu", lanes=2, width=2))
    fresh = solve(graph, replace(costs, platform=more), limits=replace(limits, max_lanes=2))
    assert w.throughput == pytest.approx(fresh.rates["env_steps_per_s"])
    assert w.gain is not None
    assert w.gain > 0.1
    assert "max_lanes 1 → 2" in w.text


def test_pair_terms_of_a_faster_task_shrink_with_it() -> None:
    graph, costs = original.graph(), original.costs()
    quick = speed_up(costs, graph, "train", 0.5)
    for pair, seconds in costs.pair_extra_s.items():
        factor = 0.5 if pair[0][0] == "train" else 1.0
        assert quick.pair_extra_s[pair] == seconds * factor
    plan = solve(graph, quick)
    assert plan.rates["samples_per_s"] == pytest.approx(512e3 / (0.03 + 0.1))


def test_the_runner_ups_of_the_composers_table_are_its_next_best_pairs() -> None:
    e = explained(original.graph(), original.costs(), within=0.31)
    found = [
        ((r.plan.task("sample").device, r.plan.task("train").device), r.loss)
        for r in e.runner_ups.plans
    ]
    pairs = [("FPGA", "GPU1"), ("CPU", "GPU2")]
    assert [p for p, _ in found] == pairs
    for pair, loss in found:
        assert loss == pytest.approx(1 - original.SAMPLES_PER_MS[pair] / 2226.087, abs=1e-6)
    assert e.runner_ups.complete


@pytest.mark.parametrize("seed", range(12))
def test_runner_ups_are_all_assignments_of_devices_within_the_share(seed: int) -> None:
    graph, costs = random_problem(seed, most_tasks=4)
    within = 0.25
    limits = Limits()
    best = solve(graph, costs)
    whole = Problem(graph, costs, limits)
    groups = classes(whole)
    values = {}
    for choice in itertools.product(*(devices_of(g, whole) for g in groups)):
        try:
            plan = solve_problem(restrict(whole, dict(zip(groups, choice, strict=True)), {}))
        except pearl.InfeasibleError:
            continue
        values[choice] = plan.value
    found = runner_ups(Resolver(best, Problem(graph, costs, limits), float("inf")), within)
    own = tuple(best.task(g[0]).device for g in groups)
    close = {c: v for c, v in values.items() if v >= best.value * (1 - within) and c != own}
    got: dict[tuple[str, ...], float] = {}
    for r in found.plans:
        where = tuple(r.plan.task(g[0]).device for g in groups)
        if where != own:
            got[where] = max(r.plan.value, got.get(where, 0.0))
    if found.complete:
        assert set(got) == set(close)
    assert set(got) <= set(close)
    for where, value in got.items():
        assert value == pytest.approx(close[where], rel=1e-5)
    assert found.complete or len(found.plans) >= 8


@pytest.mark.sweep(3)
@pytest.mark.parametrize("seed", [s for s in range(40, 61) if s != 43])  # 43 has no plan
def test_the_parts_of_the_bound_add_up_to_the_period(seed: int) -> None:
    graph, costs = random_problem(seed)
    plan = solve(graph, costs)
    b = bound_of(plan, Problem(graph, costs))
    assert b.kind == plan.bottleneck.kind
    assert b.seconds / b.tokens == pytest.approx(plan.period_s, rel=1e-6)
    assert sum(p.seconds for p in b.parts) == pytest.approx(b.seconds)
    assert sum(p.share for p in b.parts) == pytest.approx(1, rel=1e-6)
    named = {t for p in b.parts for t in p.task.split("+")}
    assert named <= set(plan.bottleneck.tasks) or b.kind == "cycle"
    if b.next_share is not None:
        assert 0 <= b.next_share <= 1 + 1e-6


def test_without_time_a_change_is_worth_what_the_plan_is_worth_in_it(monkeypatch) -> None:
    """No method finds anything: the plan itself, its task 20 % faster, is what there is, or all
    tasks on one device where a change forbids the plan."""
    graph, costs = two_devices(0.0)
    plan = solve(graph, costs)

    def late(problem, search):
        raise OutOfTimeError

    monkeypatch.setattr(milp, "solve", late)
    e = explain(plan)
    a = by_name(e, "task", "a")
    assert a.value == pytest.approx(1 / (14 * US))
    lag = by_name(e, "slack", "policy_lag")
    assert lag.value == pytest.approx(e.value)
    assert not lag.proven  # 1 / 10 us is the best
    assert "none proved the best: policy_lag 0 → 1" in " ".join(str(e).split())
    alone = by_name(e, "device", "d1")
    assert alone.value == pytest.approx(1 / (19 * US))
    assert alone.proven  # nothing else is left


def test_a_plan_from_a_file_asks_for_its_problem(tmp_path: Path) -> None:
    graph, costs = two_devices()
    plan = solve(graph, costs)
    plan.save(tmp_path / "plan.json")
    assert "problem" not in plan.to_json()
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded == plan
    with pytest.raises(SpecError, match=r"comes from a file.*explain\(plan, graph, costs"):
        explain(loaded)
    for given in ({"graph": graph}, {"costs": costs}, {"limits": Limits(max_lanes=1)}):
        with pytest.raises(SpecError, match="give both, or nothing"):
            explain(plan, **given)  # type: ignore[arg-type]
    mine, other = explain(plan), explain(loaded, graph, costs)
    assert mine.what_ifs == other.what_ifs
    assert mine.bound == other.bound


@pytest.mark.parametrize(
    ("given", "why"),
    [({"within": -0.1}, "within is -0.1"), ({"time_limit_s": 0.0}, "time_limit_s is 0.0")],
)
def test_wrong_arguments_are_refused(given: dict[str, float], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        explained(*two_devices(), **given)


def test_a_plan_of_another_problem_is_refused() -> None:
    graph, costs = two_devices()
    with pytest.raises(SpecError, match="not in the graph"):
        explain(solve(graph, costs), loop("a", "c"), costs)


def test_what_time_did_not_allow_is_listed_and_not_guessed() -> None:
    _, plan, whole = shipped()
    e = explain(plan, time_limit_s=1e-3)
    assert not e.runner_ups.complete
    assert len(e.what_ifs) + len(e.left_out) == len(whole.what_ifs)
    assert {w.text for w in e.what_ifs}.isdisjoint(e.left_out)
    assert set(e.left_out)
    assert "No time was left for: " in str(e)
    assert whole.left_out == ()


def test_the_replays_home_is_compared_with_the_best_plan_elsewhere() -> None:
    system = pearl.load("dqn_cartpole", set={**FAST, "platform": "cpu_gpu_fpga"})
    whole = build_problem(system)
    graph, costs = whole.graph, whole.costs
    plan = pearl.plan(system)
    found = {a.question: a.answer for a in answers(Resolver(plan, whole, float("inf")))}
    asked = ["Why is gpu slower than the CPU?", "Why does gpu idle?"]  # not of a simulated device
    assert list(found) == [*asked, "Where should the replay live?", "What can fpga not run?"]
    said = found["What can fpga not run?"]
    unable = [t for t in graph.tasks if not any(m.device == "fpga" for m in costs.of(t.name))]
    assert unable
    for task in unable:
        offered = offers(task.kernel, system.platform.device("fpga"))
        why = offered.why if isinstance(offered, Refused) else f"offers {offered[0][0]}"
        assert re.search(rf"\b{task.name}\b[^;]*: {re.escape(why)}", said)
    said = found["Where should the replay live?"]
    replay = ("store", "sample", "priorities")
    homes = {d: Limits(pin=dict.fromkeys(replay, d)) for d in ("cpu", "gpu")}
    plans = {d: solve(graph, costs, limits=limits) for d, limits in homes.items()}
    here = plan.task("sample").device
    assert plans.pop(here).value == pytest.approx(plan.value)
    device, there = max(plans.items(), key=lambda item: item[1].value)
    assert said.startswith(f"On {here}: on {device} the best plan gives")
    assert f"{there.value:,.0f} env steps/s instead of {plan.value:,.0f}" in said


def test_the_update_moves_at_the_batch_size_that_is_named() -> None:
    system = pearl.load("dqn_cartpole", set=FAST)
    with pytest.raises(SpecError, match="no task 'updates'"):
        crossover(system, "updates")
    found = crossover(system, most=4096, time_limit_s=LONG_S)
    assert found is not None
    assert (found.batch, found.device, found.least, found.most) == (64, "cpu", 1, 4096)
    (move,) = found.moves
    assert (move.src, move.dst) == ("cpu", "gpu")
    for batch, device in ((move.batch - 1, "cpu"), (move.batch, "gpu")):
        start = max(batch, system.algorithm.learning_starts)
        sized = {"algorithm.batch_size": batch, "algorithm.learning_starts": start}
        at = pearl.load("dqn_cartpole", set={**FAST, **sized})
        assert pearl.plan(at).task("learn").device == device
