"""Where the time of a lane goes: by a clock of the test, and over whole runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.planning.lane_times import LaneTime
from pearl.runtime.protocol import lane_recorder, single_lane
from pearl.runtime.protocol.lane_recorder import (
    UNTIMED,
    Sampling,
)
from pearl.runtime.protocol.single_lane import BoundCall, Job, SingleLaneRunner
from tests.lanes import differing, planned, replay_spec, trained


class FakeClock:
    """A clock that only the calls of the test move, in nanoseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        monkeypatch.setattr(single_lane, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(lane_recorder, "perf_counter_ns", lambda: self.now)

    def takes(self, nanoseconds: int) -> Any:
        def call() -> None:
            self.now += nanoseconds

        return call


def lane(clock: FakeClock, sampling: Sampling) -> SingleLaneRunner:
    """A lane of two calls, of 30 and 500 ns, with no kernels behind them."""
    tasks = algorithm("dqn").graph(pearl.load("dqn_cartpole")).tasks
    calls = [
        BoundCall(Job((tasks[i].name,), tasks[i].kernel, "cpu", "native"), clock.takes(t), False)
        for i, t in enumerate((30, 500))
    ]
    residency: Any = SimpleNamespace(
        upload_all=lambda: None, download_all=lambda: None, download=None
    )
    return SingleLaneRunner(calls, {}, 0, residency, sampling=sampling)


@pytest.mark.parametrize("every", [1, 4])
def test_the_time_of_calls_is_that_of_the_clock(every: int, monkeypatch) -> None:
    clock = FakeClock(monkeypatch)
    runner = lane(clock, Sampling(every, 8, 10))
    runner.run(40, 40)
    (record,) = runner.records
    scale = record["rounds"] / record["timed_rounds"]
    assert record["rounds"] == 40
    assert record["timed_rounds"] == (40 if every == 1 else 11)  # 8 is timed in any case, and 9
    assert [ns * scale for ns in record["busy_ns"]] == pytest.approx([40 * 30, 40 * 500])
    assert record["waiting_ns"] == [0, 0]
    kept = [(place, firing, end - begin) for place, firing, begin, end, _ in record["kept"]]
    assert kept == [(0, 8, 30), (1, 8, 500), (0, 9, 30), (1, 9, 500)]


def parts_s(k: LaneTime) -> float:
    of_calls = sum(c.busy_s + c.python_s + c.transfer_s + c.waiting_s for c in k.calls)
    return of_calls + k.runtime_s + k.python_s + k.held_s + k.profiler_s


@pytest.mark.parametrize("hosting", ["one", "threads", "processes"])
def test_the_times_of_every_lane_add_up_to_its_wall_time(hosting, monkeypatch) -> None:
    """Every round is timed: a busy host may stop the lane in one that would stand for others."""
    monkeypatch.setattr(
        "pearl.training.lane_binding.plan_sampling",
        lambda *given: replace(lane_recorder.plan_sampling(*given), every=1),
    )
    spec = replay_spec("dqn", {"policy_lag": 1})
    spec["train"]["evaluate_every"] = 1000
    system, plan = planned(spec)
    run = trained(system, plan, hosting).run  # type: ignore[attr-defined]
    assert len(run.lanes) == len([k for k in plan.lanes if k.width]) > 1
    whole = [k.wall_s for k in run.lanes]
    for k in run.lanes:
        assert parts_s(k) == pytest.approx(k.wall_s, rel=0.01)
        assert min(k.runtime_s, k.python_s, k.held_s, k.profiler_s) >= 0
        assert all(c.calls > 0 and c.busy_s > 0 for c in k.calls)
    home = [k for k in run.lanes if k.python_s > 0]
    assert "learn" in [c.call for k in home for c in k.calls], "the lane of the training loop"
    assert home[0].held_s > 0, "evaluations hold the lanes"
    assert max(whole) <= run.wall_s
    firings = {c.call: c.calls for k in run.lanes for c in k.calls}
    assert firings["step"] == 250
    kept = [c for c in run.calls if c.call == "act"]
    assert len(kept) == lane_recorder.KEPT_ITERATIONS
    assert [c.firing for c in kept] == list(range(kept[0].firing, kept[0].firing + len(kept)))
    assert {c.lag for c in kept} == {1}


def test_timing_changes_no_bit(monkeypatch) -> None:
    system, plan = planned(replay_spec("dqn", {"policy_lag": 1}))
    timed = trained(system, plan, "threads")
    monkeypatch.setattr("pearl.training.lane_binding.plan_sampling", lambda *_: UNTIMED)
    assert differing(timed, trained(system, plan, "threads")) == []


def test_environments_of_python_are_python_time() -> None:
    spec = replay_spec("dqn")
    spec["limits"]["variants"] = {"step": ["gymnasium"]}
    system, plan = planned(spec, variants=("native", "gymnasium"))
    run = trained(system, plan, "threads", steps=400).run  # type: ignore[attr-defined]
    calls = {c.call: c for k in run.lanes for c in k.calls}
    assert calls["step"].python_s > 0 == calls["step"].busy_s
    assert calls["learn"].busy_s > 0 == calls["learn"].python_s
