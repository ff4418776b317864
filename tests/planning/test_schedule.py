"""Start and end of every firing of a plan, its chart and its trace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pearl import CostTable, Device, Edge, Link, Mode, Plan, Platform, SpecError, TaskGraph, solve
from pearl.graph.task_graph import Task
from pearl.planning.plans import load_plan
from pearl.testing.graphs import random_limited


def two_devices(objective: str = "throughput") -> Plan:
    graph = TaskGraph(
        "two",
        (Task("a"), Task("b<&")),
        (Edge("a", "b<&", bytes=2.0), Edge("b<&", "a", tokens_seq=1)),
    )
    platform = Platform("p", (Device("cpu"), Device("gpu")), (Link("cpu", "gpu", 0.5, 4.0),))
    costs = CostTable(platform, (Mode.of("a", "cpu", 1.0), Mode.of("b<&", "gpu", 2.0)))
    return solve(graph, costs, objective=objective)


@pytest.mark.parametrize("objective", ["throughput", "makespan"])
def test_times_are_those_worked_out_by_hand(objective: str) -> None:
    firings = two_devices(objective).schedule()
    assert [(f.task, f.lane, f.start_s, f.end_s) for f in firings] == [
        ("a", "cpu.0", 0.0, 1.0),
        ("a>gpu", "cpu-gpu", 1.0, 2.0),
        ("b<&", "gpu.0", 2.0, 4.0),
        ("b<&>cpu", "cpu-gpu", 4.0, 4.5),
    ]


def test_a_periodic_schedule_keeps_lanes_apart_and_repeats() -> None:
    for seed in range(6):
        graph, costs, limits = random_limited(seed, most_tasks=5)
        plan = solve(graph, costs, limits=limits, time_limit_s=5)
        if plan.pace_s:
            continue
        firings = plan.schedule(4)
        assert {f.iteration for f in firings} == {0, 1, 2, 3}
        for lane in {f.lane for f in firings}:
            mine = [f for f in firings if f.lane == lane]
            turns = sorted((f.start_s, f.free_s) for f in mine)
            assert all(a[1] <= b[0] + 1e-9 * b[0] for a, b in pairwise(turns))
        first = {(f.task, f.firing): f.start_s for f in firings if f.iteration == 0}
        for f in firings:
            expected = first[f.task, f.firing] + f.iteration * plan.period_s
            assert f.start_s == pytest.approx(expected)


def test_the_chart_has_a_box_for_every_firing_and_escapes_names(tmp_path: Path) -> None:
    plan = two_devices()
    image = ET.fromstring(plan.gantt(tmp_path / "chart.svg", iterations=2))
    assert (tmp_path / "chart.svg").read_text() == plan.gantt(iterations=2)
    hints = [t.text for t in image.iter("{http://www.w3.org/2000/svg}title")]
    assert len(hints) == 8
    assert "b<&, iteration 1, firing 0: 6.5 s to 8.5 s" in hints


def test_the_trace_has_processes_threads_calls_and_flows(tmp_path: Path) -> None:
    two_devices().trace(tmp_path / "trace.json", iterations=2)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"cpu", "gpu", "cpu-gpu"}
    calls = {(e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert len(calls) == 8
    for phase in "sf":  # each end of a flow lies within a call of its thread
        ends = [e for e in events if e["ph"] == phase]
        assert len(ends) == 7  # each firing to its message and that to the next, but for the last
        for e in ends:  # a message of no bytes takes no time
            assert any(
                (pid, tid) == (e["pid"], e["tid"]) and (at <= e["ts"] < at + dur or e["ts"] == at)
                for pid, tid, at, dur in calls
            )


def test_a_plan_from_a_file_says_what_it_lacks(tmp_path: Path) -> None:
    two_devices().save(tmp_path / "plan.json")
    with pytest.raises(SpecError, match="comes from a file"):
        load_plan(tmp_path / "plan.json").schedule()
    with pytest.raises(SpecError, match="iterations is 0"):
        two_devices().gantt(iterations=0)
