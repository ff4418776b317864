"""Start and end of every firing of a plan, its chart and its trace."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pearl import CostTable, Device, Edge, Link, Mode, Plan, Platform, SpecError, TaskGraph, solve
from pearl.graph.task_graph import Task
from pearl.planning.plans import load_plan


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
        ("a", "cpu.0", 0.0, 1.0), ("a>gpu", "cpu-gpu", 1.0, 2.0), ("b<&", "gpu.0", 2.0, 4.0),
        ("b<&>cpu", "cpu-gpu", 4.0, 4.5),
    ]  # fmt: skip


def test_the_chart_has_a_box_for_every_firing_and_escapes_names(tmp_path: Path) -> None:
    plan = two_devices()
    image = ET.fromstring(plan.gantt(tmp_path / "chart.svg", iterations=2))
    assert (tmp_path / "chart.svg").read_text() == plan.gantt(iterations=2)
    hints = [t.text for t in image.iter("{http://www.w3.org/2000/svg}title")]
    assert len(hints) == 8
    assert "b<&, iteration 1, firing 0: 6.5 s to 8.5 s" in hints


def test_a_plan_from_a_file_says_what_it_lacks(tmp_path: Path) -> None:
    two_devices().save(tmp_path / "plan.json")
    with pytest.raises(SpecError, match="comes from a file"):
        load_plan(tmp_path / "plan.json").schedule()
    with pytest.raises(SpecError, match="iterations is 0"):
        two_devices().gantt(iterations=0)
