"""A run says how far it is from its plan; with `replan` it goes on with a better one, whole.

What calls take is invented here: lanes take down times that the test gives, and the clock of the
run says what the present plan takes at those.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pearl
from pearl.errors import SpecError
from pearl.planner import planner
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl.planning.runs import Drift, Run, TaskDrift, TaskTiming, load_run
from pearl.report.report import Report
from pearl.runtime.lanes import call_timer
from pearl.runtime.protocol import single_lane
from pearl.training import plan_change, replanning
from pearl.training.compiled import CompiledPlan
from pearl.training.session import Session
from tests.examples import placement, two_device_plan
from tests.lanes import SECONDS, _costs, differing, planned, replay_spec, told
from tests.schemas.test_schemas import problems

LIMITS = {"policy_lag": 1, "prefetch": 1}
CHECKPOINT = 800


class _Clock:
    """A clock for which every iteration takes what the trainer's plan takes at the true times."""

    simulated = False

    def __init__(self, period_s: float, at: int) -> None:
        self._period_s, self._at = period_s, at

    def start(self) -> None:
        pass

    def stop(self, iteration: int) -> float:
        spent_s = (iteration - self._at) * self._period_s
        self._at = iteration
        return spent_s


class Machine:
    """A host on which calls take the seconds `true` while the planner is told `said`."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        said: Mapping[str, float],
        true: Mapping[str, float] = SECONDS,
        limits: Mapping[str, Any] = LIMITS,
        **options: Any,
    ) -> None:
        spec = replay_spec("dqn", limits, **options)
        spec["train"] |= {"steps": 4000, "checkpoint_every": CHECKPOINT}
        self.system, self.plan = planned(spec, seconds=said)
        self.graph, self.said = _costs(self.system, said, {}, ("native",))
        _, self.true = _costs(self.system, true, {}, ("native",))
        of = self.system
        self.problem = Problem(self.graph, self.said, of.limits, of.objective, of)

        def note(times_ns: dict[str, list[int]], name: str, spent_ns: int) -> None:
            times_ns.setdefault(name, []).append(round(true[name] * 1e9))

        def clock(own: CompiledPlan, iterations: int, at: int) -> _Clock:
            return _Clock(self.takes_s(own.plan), at)

        patch.setattr(single_lane, "record_time", note)
        patch.setattr(call_timer, "record_time", note)
        patch.setattr(plan_change, "build_problem", lambda system: self.problem)
        patch.setattr(planner, "lane_overhead", lambda system: {})
        patch.setattr(CompiledPlan, "clock", clock)

    def takes_s(self, plan: Plan) -> float:
        return replanning.cost(plan, replace(self.problem, costing=self.true))[1]

    def trainer(self, lanes: str = "one") -> pearl.Trainer:
        return pearl.Trainer(told(self.system, lanes=lanes), self.plan, seed=3)


UPDATE_WRONG = {**SECONDS, "learn": SECONDS["learn"] / 3}
TWO_LANES = {**LIMITS, "max_lanes": 2}
SLOWER = {**SECONDS, "act": 60e-6, "store": 100e-6, "sample": 200e-6,
          "learn": 450e-6}  # fmt: skip
"""With two lanes, and the update said to take a third of this, the plan draws batches ahead, so
that work is under way at a checkpoint; at these times the best plan does not."""
PREFETCHING = {**SLOWER, "learn": SLOWER["learn"] / 3}


def off(run: Run) -> set[str]:
    assert run.drift is not None
    return {t.task for t in run.drift.tasks if abs(t.off) > 0.15}


def test_tasks_that_take_three_times_what_was_said_are_named(monkeypatch, tmp_path) -> None:
    machine = Machine(monkeypatch, UPDATE_WRONG)
    own, takes_s = machine.trainer(), machine.takes_s(machine.plan)
    run = own.train(out=tmp_path)
    assert run.drift.predicted_s == machine.plan.period_s
    assert run.drift.measured_s == pytest.approx(takes_s)
    assert run.drift.off == pytest.approx(takes_s / machine.plan.period_s - 1)
    assert off(run) == {"learn"}
    (update,) = (t for t in run.drift.tasks if t.task == "learn")
    assert update.off == pytest.approx(2.0, rel=1e-3)
    assert own.plan is machine.plan
    assert run.drift.decisions == run.events == ()
    assert "off by more than 15 % is learn (3.00 x)." in (tmp_path / "report.html").read_text()
    value = json.loads((tmp_path / "run.json").read_text())
    assert problems(value, "run") == []
    assert value["drift"]["off"] == run.drift.off
    assert load_run(tmp_path).drift == run.drift


def test_a_damaged_drift_is_refused_with_its_key_and_none_is_read(monkeypatch, tmp_path) -> None:
    Machine(monkeypatch, SECONDS).trainer().train(steps=400, out=tmp_path)
    value = json.loads((tmp_path / "run.json").read_text())
    for bad in (3, {"predicted_s": 1}, {**value["drift"], "tasks": "learn"}):
        (tmp_path / "run.json").write_text(json.dumps(value | {"drift": bad}))
        with pytest.raises(SpecError, match="drift"):
            load_run(tmp_path)
    del value["drift"]  # as an older version wrote it
    (tmp_path / "run.json").write_text(json.dumps(value))
    run = load_run(tmp_path)
    assert run.drift is None
    assert "Prediction and measurement" in Report(run.plan, run).text(100, verbose=True)


def beside(machine: Machine, folder: Path, lanes: str = "one") -> tuple[Any, Run]:
    """A trainer whose plan may change and its run, which computed what one without does."""
    own, plain = machine.trainer(lanes), machine.trainer(lanes)
    run = own.train(out=folder / "a", replan=True)
    plain.train(out=folder / "b")
    assert own.plan is machine.plan
    assert differing(own, plain) == []
    assert (run.status, run.restarts) == ("done", 0)
    return own, run


def test_predictions_that_hold_change_nothing_and_no_plan_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(replanning, "decide", lambda *_: pytest.fail("a plan was looked for"))
    _, run = beside(Machine(monkeypatch, SECONDS), tmp_path)
    assert run.drift.decisions == ()


@pytest.mark.parametrize("lanes", ["one", "threads"])
def test_a_plan_that_is_kept_leaves_every_bit_as_without_replan(monkeypatch, tmp_path, lanes):
    slow = {task: seconds / 3 for task, seconds in SECONDS.items()}
    _, run = beside(Machine(monkeypatch, slow), tmp_path, lanes)
    (decision,) = run.drift.decisions  # and not anew at every checkpoint
    assert decision in run.events
    assert "Plan kept: the plan takes" in decision


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("said", "true", "limits"),
    [(UPDATE_WRONG, SECONDS, LIMITS), (PREFETCHING, SLOWER, TWO_LANES)],
    ids=["batches ahead after", "batches ahead before"],
)
@pytest.mark.parametrize("lanes", ["one", "threads"])
def test_a_better_plan_takes_over_with_the_same_replay_streams_and_counters(
    monkeypatch, tmp_path, lanes, said, true, limits
) -> None:
    machine = Machine(monkeypatch, said, true, limits)
    own, plain = machine.trainer(lanes), machine.trainer(lanes)
    carry, at_change = plan_change.transfer_state, []

    def watched(before, old, reached, after, new, iteration):
        carry(before, old, reached, after, new, iteration)
        kept = [n for n in new if not n.startswith(plan_change.PASSING)]
        at_change.append((iteration, {n: (old[n].copy(), new[n].copy()) for n in kept}))

    monkeypatch.setattr(plan_change, "transfer_state", watched)
    run = own.train(out=tmp_path / "a", replan=True)
    plain.train(out=tmp_path / "b")
    assert run.status == "done"

    ((iteration, arrays),) = at_change
    assert iteration * 8 % CHECKPOINT == 0
    assert {"learner.q", "replay.obs", "rng.env_step", "learner.q.m", "env.state"} <= set(arrays)
    for name, (old, new) in arrays.items():
        np.testing.assert_array_equal(old, new, err_msg=name)
    updates = (iteration * 8 - 64) // 4
    assert arrays["learner.step"][1][0] == updates  # nothing was under way any more
    assert arrays["replay.cursor"][1][1] == min(iteration * 8, 1000)

    for name in (
        "learner.step",
        "replay.cursor",
        "rng.env_step",
        "rng.inference",
        "rng.replay_sample",
    ):
        np.testing.assert_array_equal(
            own.session.arrays[name], plain.session.arrays[name], err_msg=name
        )
    assert run.updates == (4000 - 64) // 4

    (decision,) = run.drift.decisions
    assert decision in run.events
    assert f"env step {iteration * 8}: " in decision
    assert "off by more than 15 % is learn (3.00 x)." in decision
    assert "Plan changed: the plan takes" in decision
    assert "moved: " in decision
    assert {own.protocol.drain, plain.protocol.drain} == {0, 1}
    assert machine.takes_s(machine.plan) > replanning.GAIN * machine.takes_s(own.plan)
    assert run.drift.off == pytest.approx(0.0, abs=1e-3)  # the new plan is as predicted
    assert off(run) == set()
    assert run.plan == own.plan == load_plan(tmp_path / "a" / "plan.json")
    assert "Plan changed" in str(own.report(run))
    for lags in run.lags.values():
        assert max(map(int, lags)) <= 1


def test_a_run_that_changed_its_plan_resumes_with_the_plan_it_had(monkeypatch, tmp_path) -> None:
    machine = Machine(monkeypatch, UPDATE_WRONG)
    first = machine.trainer()
    first.train(steps=2400, out=tmp_path, replan=True)
    assert first.plan != machine.plan
    resumed = machine.trainer()
    run = resumed.train(steps=4000, out=tmp_path, resume=True)
    assert resumed.plan == first.plan
    assert run.plan == load_plan(tmp_path / "plan.json")
    assert (run.status, run.env_steps, run.updates) == ("done", 4000, (4000 - 64) // 4)
    assert len(run.drift.decisions) == 1  # told by the run before, and kept


PRIORITISED = {"replay": {"capacity": 1000, "kind": "prioritised", "fanout": 8}}


def _full_disk(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    save = Session.save

    def full(self, path, done):
        if self.compiled.plan != machine.plan:
            raise OSError(28, "No space left on device")
        save(self, path, done)

    monkeypatch.setattr(Session, "save", full)


def _failing_drain(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    def failing(session, milestones):
        assert milestones.total == session.state.iteration
        raise single_lane.LaneError("a lane died")

    monkeypatch.setattr(plan_change, "bind_lanes", failing)


def _other_state(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    monkeypatch.setattr(plan_change, "incompatible_arrays", lambda old, new: ["rng.inference#1"])


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("fault", "options", "said"),
    [(_full_disk, {}, "No space left"),
     (_full_disk, PRIORITISED, "Plan kept, because the run cannot continue with the better one"),
     (_failing_drain, {}, "cannot continue with the better one: a lane died"),
     (_other_state, {}, "cannot continue with the better one: its arrays differ: rng.inference#1")],
)  # fmt: skip
def test_a_change_that_fails_leaves_the_old_plan_and_every_bit(
    fault, options, said, monkeypatch, tmp_path
) -> None:
    """By a checkpoint that cannot be written, a lane that dies amid the drain, and arrays that the
    new plan would not take."""
    limits = TWO_LANES | ({"priority_staleness": 2} if options else {})
    machine = Machine(monkeypatch, PREFETCHING, SLOWER, limits, **options)
    fault(monkeypatch, machine)
    _, run = beside(machine, tmp_path)
    assert said in run.drift.decisions[0]


def test_ctrl_c_while_a_plan_is_looked_for_ends_the_run_with_a_checkpoint(monkeypatch, tmp_path):
    machine = Machine(monkeypatch, UPDATE_WRONG)
    own, decide = machine.trainer(), replanning.decide

    def asked(*given: Any) -> replanning.Decision:
        signal.raise_signal(signal.SIGINT)
        return decide(*given)

    monkeypatch.setattr(replanning, "decide", asked)
    run = own.train(out=tmp_path, replan=True)
    assert run.status == "interrupted"
    assert CHECKPOINT <= run.env_steps < 4000
    (decision,) = run.drift.decisions
    assert decision.endswith("Plan kept: the search for another was interrupted.")
    resumed = machine.trainer()
    assert resumed.train(out=tmp_path, resume=True).status == "done"
    assert resumed.plan == own.plan == machine.plan


def placed(task: str, lane: str, **other: Any) -> Any:
    return placement(task, "cpu", lane, 2.0, **other)


@pytest.mark.parametrize(
    ("period_s", "waited", "widths", "apart"),
    [(1.3, 0.0, (1, 1), 3.0), (1.3, None, (1, 1), 3.0), (1.3, 0.15, (1, 1), 3.0),
     (1.3, 0.16, (1, 1), None),  # a host so busy says nothing of the distance of cores
     (1.149, 0.0, (1, 1), None), (0.8, 0.0, (1, 1), 3.0), (1.3, 0.0, (2, 0), 3.0),
     (1.3, 0.0, (1, 0), None),  # one core
     (None, 0.0, (1, 1), None)],
)  # fmt: skip
def test_a_run_is_compared_with_its_plan(period_s, waited, widths, apart, monkeypatch):
    monkeypatch.setattr(replanning, "_core_exchange_ratio", lambda: 3.0)
    on_cores = [placed(f"t{n}", f"cpu/{n}", width=w) for n, w in enumerate(widths) if w]
    narrow = placed("u", "cpu/0", width=1)
    elsewhere = placed("g", "gpu/0", width=16, width_unit="sm")
    plan = replace(two_device_plan(), tasks=(*on_cores, narrow, elsewhere), period_s=1.0)
    rows = [TaskTiming("a", 2.0, 3.0, 9), TaskTiming("b", 2.0, None, 0),
            TaskTiming("c", 2.0, 1.0, 9, True)]  # fmt: skip
    found = replanning.measure_drift(plan, period_s, rows, ["kept"], waited)
    off = None if period_s is None else pytest.approx(period_s - 1)
    tasks = (TaskDrift("a", 2.0, 3.0, 0.5),)
    assert found == Drift(1.0, period_s, off, tasks, ("kept",), apart, waited)
