"""Plans: their JSON, their check against graph and costs, and their timing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pearl import solve
from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plan_validation import completions, costs_from_plan, unfold_replicas
from pearl.planning.plans import Plan, load_plan, rename_former_tasks
from pearl.planning.problem import Problem
from pearl.task_names import FORMER
from pearl.testing.graphs import devices, loop, mode, star
from pearl.verification import check_plan
from tests.graphs import dqn, dqn_costs

PLATFORM = star(devices("cpu", "gpu"), 2e-6, 16e9)
COSTS = dqn_costs(PLATFORM, {"cpu": 1.0, "gpu": 1.7})
GRAPH = dqn(4)


@pytest.fixture(scope="module")
def plan() -> Plan:
    pinned = Limits(pin={"learn": "gpu", "step": "cpu", "store": "cpu"})
    return solve(GRAPH, COSTS, limits=pinned)


def test_a_self_timed_run_of_a_plan_attains_its_period(plan: Plan) -> None:
    ends = completions(plan, GRAPH, PLATFORM, 600)
    assert ends.shape == (600,)
    assert np.all(np.diff(ends) >= 0)
    found = [(ends[500] - ends[500 - c]) / c for c in range(1, 61)]
    assert any(np.isclose(x, plan.period_s, rtol=1e-9, atol=0) for x in found)


def test_a_plan_of_former_names_gets_those_of_its_graph(plan: Plan) -> None:
    """It lacks a certificate, which would be of former names. Names of a graph are left alone."""
    former = {now: name for name, now in FORMER.items()}
    value = plan.to_json()
    for entry in (*value["tasks"], *(e for lane in value["lanes"] for e in lane["order"])):
        task, to, device = entry["task"].partition(">")  # of a link: a transfer
        entry["task"] = former[task] + to + device
    for edge in value["edges"]:
        edge["src"], edge["dst"] = former[edge["src"]], former[edge["dst"]]
    for task in value["tasks"]:
        task["fused_with"] = [former[t] for t in task["fused_with"]]
    value["bottleneck"]["tasks"] = [former.get(t, t) for t in value["bottleneck"]["tasks"]]
    read = load_plan(value)
    assert rename_former_tasks(read, former.values()) is read, "a graph with these very names"
    found = rename_former_tasks(read, former)
    assert found == replace(load_plan(plan.to_json()), bottleneck=found.bottleneck)
    assert (found.certified, found.certificate) == ("", None)


def test_a_paced_plan_runs_at_its_pace() -> None:
    found = star(devices("a", idle_power_w=10.0, active_power_w=20.0))
    costs = CostTable(found, (mode("x", "a", 1.0, energy=10.0),))
    paced = solve(loop("x"), costs, limits=Limits(power_w=15.0))
    ends = completions(paced, loop("x"), found, 20)
    assert np.allclose(np.diff(ends), 2.0)
    check_plan(paced, Problem(loop("x"), costs))


def test_without_a_spread_of_times_the_simulated_period_is_the_period(plan: Plan) -> None:
    assert plan.simulated_period_s == plan.period_s


def test_a_spread_of_times_slows_a_loop_between_lanes_down() -> None:
    platform = star(devices("a", "b"))
    modes = (mode("x", "a", 1.0, band=0.5), mode("y", "b", 1.0, band=0.5))
    found = solve(loop("x", "y", tokens=2), CostTable(platform, modes))
    assert found.simulated_period_s > 1.02 * found.period_s
    assert found.simulated_period_s < 1.5 * found.period_s


def test_the_check_names_what_disagrees(plan: Plan) -> None:
    slower = dqn_costs(PLATFORM, {"cpu": 0.9, "gpu": 1.7})
    with pytest.raises(SpecError, match=r"arc .* s short at a period"):
        check_plan(plan, Problem(GRAPH, slower))
    with pytest.raises(SpecError, match="task learn is placed 0 times"):
        check_plan(
            replace(plan, tasks=tuple(t for t in plan.tasks if t.task != "learn")),
            Problem(GRAPH, COSTS),
        )
    with pytest.raises(SpecError, match="edge"):
        check_plan(plan, Problem(dqn(2), COSTS))
    lane = next(k for k in plan.lanes if "learn" in [e.task for e in k.order])
    short = replace(lane, order=lane.order[:-1])
    lanes = tuple(short if k is lane else k for k in plan.lanes)
    with pytest.raises(SpecError, match="order is incomplete"):
        check_plan(replace(plan, lanes=lanes), Problem(GRAPH, COSTS))


def test_the_check_finds_orders_that_deadlock(plan: Plan) -> None:
    lane = max((k for k in plan.lanes if k.width), key=lambda k: len(k.order))
    turned = replace(lane, order=lane.order[::-1])
    lanes = tuple(turned if k is lane else k for k in plan.lanes)
    with pytest.raises(SpecError, match=r"arc|sequence"):
        check_plan(replace(plan, lanes=lanes), Problem(GRAPH, COSTS))


def test_states_apart_are_found() -> None:
    graph = TaskGraph("g", GRAPH.tasks, GRAPH.edges, GRAPH.states)
    found = solve(graph, COSTS, limits=Limits(max_lanes=1, devices={"learn": ("cpu",)}))
    moved = tuple(
        replace(t, device="gpu", lane="gpu.0") if t.task == "priorities" else t for t in found.tasks
    )
    with pytest.raises(SpecError):
        check_plan(replace(found, tasks=moved), Problem(graph, COSTS))


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": 2}', '{"schema": 1}', "null", "1e999"])
def test_files_that_are_no_plan_are_spec_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"plan\.json"):
        load_plan(path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("fused_with", [1], "tasks[0]: fused_with is [1]; a list of str is needed"),
        ("fused_with", "learn", "tasks[0]: fused_with is 'learn'; a list of str is needed"),
        ("shares", [0.5], "tasks[0]: shares is [0.5]; a list of int is needed"),
        ("shares", None, "tasks[0]: shares is None; a list of int is needed"),
        ("seconds", -1.0, "its times are invalid: "),
        ("occupancy_s", -1e9, "its times are invalid: "),
        ("variant", None, "tasks[0]: variant is None; a str is needed"),
    ],
)
def test_a_plan_of_somebody_else_is_wrong_in_a_sentence(
    plan: Plan, key: str, value: object, says: str
) -> None:
    changed = plan.to_json()
    changed["tasks"][0][key] = value

    def checked() -> None:
        found = load_plan(changed)
        check_plan(found, Problem(GRAPH, costs_from_plan(found, GRAPH, PLATFORM)))

    with pytest.raises(SpecError) as refused:
        checked()
    assert says in str(refused.value)


def test_a_plan_of_more_replicas_than_it_has_is_wrong_however_many(plan: Plan) -> None:
    tasks = [replace(t, environments=4) if t.name == "act" else t for t in GRAPH.tasks]
    graph = replace(GRAPH, tasks=tuple(tasks))
    placed = [replace(t, replicas=10**30) if t.task == "act" else t for t in plan.tasks]
    with pytest.raises(SpecError, match=r"act has replicas \[0\]; they must be 0 to 9{30}$"):
        unfold_replicas(replace(plan, tasks=tuple(placed)), graph)
