"""The trace of a run: calls nest in their lanes, flows join calls, counters count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pearl.planning.plans import Plan
from pearl.planning.runs import Run, load_run
from pearl.report.run_trace import run_trace
from tests.examples import example_run, recorded, two_device_plan
from tests.lanes import planned, replay_spec, trained

Event = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three lanes in threads, with a policy lag of 1."""
    system, plan = planned(replay_spec("dqn", {"policy_lag": 1}))
    assert len([k for k in plan.lanes if k.width]) > 1
    out = tmp_path_factory.mktemp("traced") / "run"
    trained(system, plan, "threads", out=out)
    return out


def events_of(folder: Path) -> list[Event]:
    found: list[Event] = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return found


def groups(events: list[Event]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def test_flows_go_from_the_end_of_a_call_to_a_later_call_that_needs_it(folder: Path) -> None:
    events = events_of(folder)
    calls = [e for e in events if e["ph"] == "X"]
    flows: dict[int, dict[str, Event]] = {}
    for e in events:
        if e["ph"] in "sf":
            flows.setdefault(e["id"], {})[e["ph"]] = e
    assert len(flows) > 20
    for ends in flows.values():
        one, other = ends["s"], ends["f"]
        assert one["ts"] <= other["ts"] + 1e-3, "a result is used after it is there"
        assert one["pid"] == other["pid"]
        assert one["tid"] != other["tid"]
        for e in (one, other):  # the call that is open at the time of an end, to the nanosecond
            open_then = [
                c
                for c in calls
                if (c["pid"], c["tid"]) == (e["pid"], e["tid"])
                and int(1e3 * c["ts"]) <= int(1e3 * e["ts"]) < int(1e3 * (c["ts"] + c["dur"]))
            ]
            call = max(open_then, key=lambda c: c["ts"])
            assert e["name"].split(" → ")[e["ph"] == "f"] == call["name"]
            assert call["args"][f"firing of {call['name']}"] >= 0
            at = call["ts"] if e["ph"] == "f" else call["ts"] + call["dur"]
            assert e["ts"] == pytest.approx(at, abs=3e-3)


def test_counters_are_queues_lags_and_power(folder: Path) -> None:
    events, plan = events_of(folder), load_run(folder).plan
    counters: dict[tuple[str, str], list[float]] = {}
    for e in events:
        if e["ph"] == "C":
            key = groups(events)[e["pid"]], e["name"]
            counters.setdefault(key, []).append(e["args"]["value"])
    assert set(counters["measured: lags", "policy lag"]) == {1}
    capacity = {f"queue {e.src} → {e.dst}": e.capacity for e in plan.edges if e.bytes}
    shown = {name for group, name in counters if group == "measured: queues"}
    assert shown == {name for group, name in counters if group == "predicted: queues"}
    assert shown
    for (group, name), values in counters.items():
        if "queues" in group:
            assert min(values) >= 0
            assert max(values) <= (capacity[name] or max(values))
    for group in ("predicted: power", "measured: power"):
        (values,) = (v for (g, _), v in counters.items() if g == group)
        assert min(values) >= 0
        assert len(set(values)) > 1, "power rises with the lanes that are busy"


def test_a_trace_says_the_numbers_of_the_run(folder: Path) -> None:
    run, events = load_run(folder), events_of(folder)
    measured = [e for e in events if e["ph"] == "X" and groups(events)[e["pid"]] == "measured: cpu"]
    assert sorted((e["name"], round(e["ts"] * 1e3), round(e["dur"] * 1e3)) for e in measured) == (
        sorted(
            (c.call, round(c.start_s * 1e9), round((c.end_s - c.start_s) * 1e9)) for c in run.calls
        )
    )
    predicted = {
        e["name"]: e["dur"] for e in events
        if e["ph"] == "X" and groups(events)[e["pid"]] == "predicted: cpu"
    }  # fmt: skip
    assert predicted == {
        t.task: pytest.approx(1e6 * t.occupancy_s, abs=1.1e-3) for t in run.plan.tasks
    }


def test_names_cannot_leave_the_text_of_a_trace() -> None:
    name = '</script><script>alert("x")\u2028'
    plan = two_device_plan()
    tasks = tuple(replace(t, task=name) if t.task == "learn" else t for t in plan.tasks)
    orders = tuple(
        replace(k, order=tuple(replace(e, task=name) if e.task == "learn" else e for e in k.order))
        for k in plan.lanes
    )
    renamed = replace(plan, tasks=tasks, lanes=orders)
    text = json.dumps(run_trace(kept(renamed)))
    found = {e["name"] for e in json.loads(text)["traceEvents"] if e["ph"] == "X"}
    assert name in found
    assert "\u2028" not in text


def kept(plan: Plan | None = None) -> Run:
    plan = plan or two_device_plan()
    return example_run(plan, **recorded(plan))
