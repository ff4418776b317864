"""What a run counts and says of itself, computed by hand from numbers that the test gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace as Given
from typing import Any

import numpy as np
import pytest

from pearl.planning.runs import StoppedBy, TaskTiming, TimeToSolution
from pearl.runtime.environments.external_envs import FailureLog
from pearl.training import loop, outcome, run_clock
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.evaluations.evaluator import FinalEvaluations
from pearl.training.lane_accounts import lane_times, measured_calls
from pearl.training.metrics import Metrics
from pearl.training.milestones import Milestones
from pearl.training.run_clock import RunClock
from pearl_devices.system import host_system, part, portable
from tests.examples import two_device_plan


def rounded(value: Any) -> Any:
    """Tuples with their floats to nine digits after the point."""
    if isinstance(value, tuple):
        return tuple(map(rounded, value))
    return round(value, 9) if isinstance(value, float) else value


def record(lane: str, names: str, **other: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"rounds": 1, "timed_rounds": 1, "copied_ns": {}, "held_ns": 0}
    return {"lane": lane, "names": names.split(), "wall_ns": 0, "kept": [], **plain, **other}


def timed_run(*lanes: str, home: int = 0, external: tuple[str, ...] = ()) -> Any:
    """A run of 10 s in its loop, 7 s of them in lanes, 2 s in evaluations and checkpoints."""
    jobs = {n: Given(name=n, steps_external_envs=n in external) for n in ("step", "learn")}
    protocol = Given(home=home, lanes=[Given(name=name) for name in lanes])
    session = Given(compiled=Given(jobs=jobs, protocol=protocol))
    plan = Given(lanes=[Given(lane=name) for name in lanes])
    return Given(session=session, plan=plan, loop_s=10.0, in_lanes_s=7.0, paused_s=2.0)


def test_the_time_of_lanes_is_added_up_by_hand() -> None:
    """Two lanes of the training thread, and one of two sessions in a process of its own."""
    records = [
        record("c0", "step act act", rounds=40, timed_rounds=10,
               busy_ns=[100_000_000, 200_000_000, 100_000_000], calls=[10, 10, 11],
               waiting_ns=[0, 100_000_000, 200_000_000], copied_ns={"act": 300_000_000},
               held_ns=500_000_000, stamp_s=1e-3),
        record("c1", "learn", rounds=40, timed_rounds=0, busy_ns=[1_500_000_000], calls=[40],
               waiting_ns=[200_000_000], stamp_s=0.01),
        record("c2", "learn", rounds=3, timed_rounds=2, busy_ns=[2_000_000_000], calls=[4],
               waiting_ns=[1_000_000_000], copied_ns={"learn": 9_000_000_000},
               held_ns=500_000_000, stamp_s=1.0, wall_ns=6_000_000_000),
        record("c2", "learn sync", busy_ns=[800_000_000, 200_000_000], calls=[1, 2],
               waiting_ns=[0, 300_000_000], held_ns=200_000_000, stamp_s=0.5,
               wall_ns=1_000_000_000),
    ]  # fmt: skip
    found = lane_times(timed_run("c0", "c1", home=1, external=("step",)), records)
    assert rounded(tuple(map(astuple, found))) == (
        # 4 x the timed rounds; 10 s = 0.4 + 1.5 in calls, 3.069 between them (with its profiler,
        # 7 - 0.5 - 1.9 - 1.5 of the other lane), held 0.5 + 3 of the loop + 1.5 of the other lane
        ("c0", 10.0, (("step", 40, 0.0, 0.4, 0.0, 0.0), ("act", 84, 0.9, 0.0, 0.3, 0.3)),
         3.069, 0.0, 5.0, 0.031),
        # the loop: 10 - 7 - 2 in Python; held 2, and 1.6 of the other lane
        ("c1", 10.0, (("learn", 40, 1.5, 0.0, 0.0, 0.2),), 3.3, 1.0, 3.6, 0.4),
        # 1.5 x the timed rounds, of which no more is copied than was spent; 6 + 1 s
        ("c2", 7.0, (("learn", 7, 0.8, 0.0, 3.0, 1.0), ("sync", 2, 0.2, 0.0, 0.0, 0.3)),
         0.0, 0.0, 0.7, 1.5),
    )  # fmt: skip


@pytest.mark.parametrize("lane", ["", "other"])
def test_a_lane_without_a_name_is_that_of_the_loop_and_the_first_one_is_if_none_is_known(lane):
    alone = record(lane, "a", busy_ns=[6_000_000_000], calls=[2], waiting_ns=[0], stamp_s=0.0)
    run = timed_run("cpu.0", "cpu.1")
    (found,) = lane_times(run, [alone])
    assert astuple(found)[:2] == (lane or "cpu.0", 10.0)
    assert rounded(astuple(found)[3:]) == (1.0, 1.0, 2.0, 0.0)
    run.paused_s = 3.5  # longer than the loop was outside of its lanes
    assert lane_times(run, [alone])[0].python_s == 0.0
    run.paused_s = 2.0
    second = {**alone, "lane": "two"}
    assert [each.python_s > 0 for each in lane_times(run, [second, alone])] == (
        [lane == "other", lane == ""]
    )


def test_kept_calls_are_in_order_of_time_from_the_first() -> None:
    kept = [(0, 7, 2_000, 5_000, -1), (1, 3, 9_000, 9_500, 0)]
    records = [record("c1", "a b", kept=kept), record("", "u", kept=[(0, 4, 1_000, 3_000, 2)])]
    found = measured_calls(timed_run("c0", "c1"), records)
    assert rounded(tuple(map(astuple, found))) == (
        ("c0", "u", 4, 0.0, 2e-6, 2),
        ("c1", "a", 7, 1e-6, 4e-6, None),
        ("c1", "b", 3, 8e-6, 8.5e-6, 0),
    )
    assert measured_calls(timed_run("c0"), []) == ()


class Clock:
    """A clock that only the test moves."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any) -> None:
        self.now_s, self.cpu_s = 100.0, 5.0
        clock = Given(perf_counter=lambda: self.now_s, process_time=lambda: self.cpu_s)
        patch.setattr(module, "time", clock)

    def spend(self, wall_s: float, cpu_s: float) -> None:
        self.now_s, self.cpu_s = self.now_s + wall_s, self.cpu_s + cpu_s


def test_the_clock_of_a_run_adds_up_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch, run_clock)
    held = {"wall_s": 3.0, "plan_s": 1.0, "evaluation_cpu_s": 0.25}
    clock = RunClock(held, 2.0)
    for what, wall_s, cpu_s in (
        ("bind", 1.0, 9.0), ("evaluation", 2.0, 1.5), ("evaluation", 4.0, 1.0),
        ("checkpoint", 0.25, 0.125),
    ):  # fmt: skip
        with clock.timing(what):
            time.spend(wall_s, cpu_s)
    clock.add_worker_cpu_s(0.5)
    assert (clock.now_s, clock.paused_s) == (5.0 + 7.25, 7.25)
    clock.record_milestone("threshold", 40)
    time.spend(0.5, 0.0)
    clock.record_milestone("best", 80)
    clock.stamp()
    assert held["wall_s"] == 12.75
    time.spend(0.25, 0.0)
    assert clock.solution(475.0, 480.0) == TimeToSolution(
        475.0, 12.25, 40, 480.0, 12.75, 80, 13.0, 3.0, 1.0, 6.0, 3.25, 0.25
    )
    assert RunClock({}, 0.0).solution(None, None) == TimeToSolution(
        *(None,) * 6,
        *(0.0,) * 6,  # type: ignore[arg-type]
    )


def counted_run(tmp_path: Path, **state: Any) -> Any:
    arrays = {
        "loss.q": np.array([0.5]), "loss.actor": np.array([-2.0]),
        "episode.returns": np.arange(4.0) + 1 / 3, "episode.count": np.array([2]),
    }  # fmt: skip
    marks = Milestones(100, 10, 20, 0, 0, 1)
    return Given(
        metrics_file=tmp_path / "metrics.csv", state=RunState(**state), arrays=arrays,
        graph=Given(env_steps=8, updates=4), milestones=marks, plan=Given(period_s=0.125),
    )  # fmt: skip


HEADER = (
    "env_steps,updates,wall_s,cpu_s,mean_return_20,episodes,eval_mean,eval_low,eval_high,"
    "loss_actor,loss_q,period_s,predicted_period_s"
)


def test_rows_of_metrics_are_written_by_hand(tmp_path: Path) -> None:
    run = counted_run(tmp_path, iteration=9, wall_s=1.0, cpu_s=0.123456789)
    with Metrics(run) as metrics:
        run.state.iteration, run.state.wall_s = 10, 1.25
        metrics.append_row()  # not before learning
        run.arrays["episode.count"][0] = 0
        run.state.iteration, run.state.wall_s = 14, 2.25
        run.state.last_mean, run.state.last_low, run.state.last_high = 1 / 3, -1.0, 2.0
        metrics.append_row()
        metrics.append_row()  # no iteration later
        lines = run.metrics_file.read_text().splitlines()
    assert lines == [HEADER, "80,0,1.25,0.123457,0.8333,2,,,,-2.0,0.5,,0.125",
                     "112,16,2.25,0.123457,,0,0.3333,-1.0,2.0,-2.0,0.5,0.25,0.125",
                     "112,16,2.25,0.123457,,0,0.3333,-1.0,2.0,-2.0,0.5,,0.125"]  # fmt: skip
    run.metrics_file.write_text("\n".join([*lines, "104,1,2", "x,1", ",", "72,0"]) + "\n")
    run.state.iteration = 10
    with Metrics(run) as metrics:
        run.state.iteration = 11
        metrics.append_row()
    kept = [line.partition(",")[0] for line in run.metrics_file.read_text().splitlines()]
    assert kept == ["env_steps", "80", "88"]
    metrics.append_row()  # closed: nothing is written
    assert len(run.metrics_file.read_text().splitlines()) == 3
    run.state.iteration = 0
    with Metrics(run):
        assert run.metrics_file.read_bytes() == f"{HEADER}\r\n".encode()
    run.metrics_file = None
    with Metrics(run) as metrics:
        metrics.append_row()
    assert run.state.log.events == []


def test_metrics_end_where_the_disk_is_full(tmp_path: Path) -> None:
    run = counted_run(tmp_path)

    def full() -> None:
        raise OSError(28, "No space left on device")

    with Metrics(run) as metrics:
        metrics._file = Given(write=lambda _: 0, flush=full, close=full)  # type: ignore[assignment]
        metrics.append_row()
        metrics.append_row()
    assert run.state.log == FailureLog(events=["metrics.csv ends here: No space left on device"])


@pytest.mark.parametrize(
    ("iteration", "stretch", "steady", "expected"),
    [
        # before the steady stretch nothing is counted
        (23, (4, 2.0, 1.5, 0.5, 0.25), {}, {}),
        (24, (4, 2.0, 1.5, 0.5, 0.25), {},
         {"waited_s": 0.5, "stolen_s": 0.25, "wall_s": 2.0, "cpu_s": 1.5, "env_steps": 32,
          "updates": 16}),
        (28, (4, 2.0, 1.5, 3.0, 0.25),
         {"waited_s": 0.5, "stolen_s": 0.25, "wall_s": 2.0, "cpu_s": 1.5, "env_steps": 32,
          "updates": 16},
         {"waited_s": 2.5, "stolen_s": 0.5, "wall_s": 4.0, "cpu_s": 3.0, "env_steps": 64,
          "updates": 32}),
        (28, (4, 2.0, 1.5, None, 0.25), {"waited_s": 0.5, "wall_s": 2.0},
         {"stolen_s": 0.25, "wall_s": 4.0, "cpu_s": 1.5, "env_steps": 32, "updates": 16}),
        (28, (4, 2.0, 1.5, 1.0, 0.25), {"wall_s": 2.0},  # once unknown, unknown
         {"stolen_s": 0.25, "wall_s": 4.0, "cpu_s": 1.5, "env_steps": 32, "updates": 16}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("simulated", [False, True])
def test_a_stretch_is_added_to_the_state(iteration, stretch, steady, expected, simulated, tmp_path):
    run = counted_run(tmp_path, iteration=iteration, wall_s=1.0, cpu_s=0.5)
    run.lane_clock = Given(simulated=simulated)
    run.state.steady |= steady
    before = dict(run.state.steady)
    loop._count(run, *stretch)
    assert (run.state.wall_s, run.state.cpu_s) == (3.0, 2.0)
    unknown = {"waited_s", "stolen_s"} if simulated else set()
    wanted = {k: v for k, v in expected.items() if k not in unknown}
    if simulated and expected:
        wanted |= {k: before[k] for k in before.keys() & {"stolen_s"}}
    assert run.state.steady == (wanted or before)


def test_the_lane_that_bounds_the_period_is_watched() -> None:
    plan = two_device_plan()
    assert loop._pacing_lane(plan) == "gpu0/0"
    lanes = tuple(Given(lane=k.lane, width=k.width, load=k.load) for k in plan.lanes)
    lanes[0].load, lanes[2].load = 1.5, 9.0  # of a link
    other: Any = Given(bottleneck=Given(kind="cycle", name="gpu0/0"), lanes=lanes)
    assert loop._pacing_lane(other) == "cpu/0"


def ended_run(tmp_path: Path, *, simulated: bool = False) -> Any:
    run = counted_run(tmp_path, iteration=50, wall_s=7.0, best_mean=480.0)
    run.state.steady = {"wall_s": 4.0, "cpu_s": 8.0, "env_steps": 160, "updates": 80,
                        "waited_s": 1.0}  # fmt: skip
    run.state.log = FailureLog(2, 16, ["again"], "it failed")
    run.state.decisions = ["kept"]
    run.plan, run.folder = two_device_plan(), tmp_path
    protocol = Given(plan=run.plan, home=0, lanes=[Given(name="cpu/0")])
    system = Given(platform=Given(host="cpu"), env=Given(threshold=475.0))
    kernel = lambda name: Given(bytes_in=3, bytes_out=4, flops=len(name))  # noqa: E731
    compiled = {"system": system, "protocol": protocol, "jobs": {}, "emulate": simulated}
    graph = Given(task=lambda name: Given(kernel=kernel(name)))
    run.session = Given(compiled=Given(**compiled, replica_graph=graph))
    run.lane_clock, run.callbacks = Given(simulated=simulated), Given(stopped=StoppedBy("x", 8))
    run.clock = Given(solution=lambda *given: given)
    run.jobs = [Given(name="step", tasks=("step",)),
                Given(name="sample+learn", tasks=("sample", "learn"))]  # fmt: skip
    return run


@pytest.mark.parametrize("simulated", [False, True])
def test_the_outcome_of_a_run_is_computed_by_hand(simulated, monkeypatch, tmp_path):
    spent, members = iter([1.0, 6.0]), {"sample": (2e-3, 30), "learn": (3e-3, 31)}
    monkeypatch.setattr(outcome, "cpu_seconds", lambda: next(spent))
    rounds: list[int] = []
    profiled = lambda graph, call, arrays, count: rounds.append(count) or members  # noqa: E731
    monkeypatch.setattr(outcome, "member_times", profiled)
    Clock(monkeypatch, outcome)
    measured = outcome.Measurements()
    measured.begin_s = 90.0
    ns = {"step": [4_000_000, 6_000_000, 1_000_000], "sample+learn": [5_000_000]}
    lags = {"policy_lag": Counter({2: 5, 1: 4}), "none": Counter()}
    lanes: Any = Given(times_ns=ns, lags=lags, traffic=[{"host": "b"}], records=[])
    measured.add(lanes)
    measured.add(Given(times_ns={}, lags=lags, traffic=[], records=[record("cpu/0", "")]))  # type: ignore[arg-type]
    assert (len(measured.records), len(measured.session_records)) == (1, 1)
    monkeypatch.setattr(outcome, "lane_times", lambda run, records: (len(records),))
    monkeypatch.setattr(outcome, "measured_calls", lambda run, records: (-len(records),))
    run, meter = ended_run(tmp_path, simulated=simulated), {}
    energies: Any = Given(read=lambda given: meter.update(given) or [Given(joules=9.0, source="n")])
    best, last = Evaluation((1.0, 2.0), 1, 9), Evaluation((0.0, 4.0), 0, 9)
    found = outcome.build_run(run, "failed", FinalEvaluations(best, last), measured, energies)
    assert (meter, rounds) == ({"cpu": 5.0}, [] if simulated else [30])
    assert vars(found) | {"plan": 0, "drift": 0, "platform": 0} == {
        "status": "failed", "env_steps": 400, "updates": 160, "cpu_s": 5.0,
        "wall_s": 7.0 if simulated else 10.0, "steady": run.state.steady,
        "env_steps_per_s": 40.0, "env_steps_per_cpu_s": None if simulated else 20.0,
        "updates_per_s": 20.0, "predicted_env_steps_per_s": 16_000.0,
        "returns": {
            "mean_last_20": pytest.approx(0.5 + 1 / 3), "episodes": 2,
            "eval_mean": 1.5, "eval_returns": [1.0, 2.0], "eval_cut": 1,
            "last_eval_mean": 2.0, "last_eval_returns": [0.0, 4.0], "last_eval_cut": 0,
            "best_is_last": False,
        },
        "peak_rss_bytes": found.peak_rss_bytes, "simulated": simulated,
        "energy_j": pytest.approx(50 * 0.081) if simulated else 9.0,
        "energy_source": "modelled" if simulated else "n",
        "tasks": (
            TaskTiming("step", 120e-6, None, 0, False, 4, 7),
            TaskTiming("sample+learn", pytest.approx(640e-6), None, 0),
            TaskTiming("sample", 20e-6, None, 0, False, 6, 7),
            TaskTiming("learn", 60e-6, None, 0, False, 5, 7),
        ) if simulated else (
            TaskTiming("step", 120e-6, pytest.approx(4e-3), 3, False, 4, 7),
            TaskTiming("sample+learn", pytest.approx(640e-6), pytest.approx(5e-3), 1),
            TaskTiming("sample", 20e-6, 2e-3, 30, True, 6, 7),
            TaskTiming("learn", 60e-6, 3e-3, 31, True, 5, 7),
        ),
        "plan": 0, "drift": 0, "platform": 0, "lags": {"policy_lag": {"1": 8, "2": 10}},
        "traffic": ({"host": "b"},), "message": "it failed", "restarts": 2, "lost_transitions": 16,
        "events": ("again",), "stopped": None, "lanes": () if simulated else (1,),
        "calls": () if simulated else (-1,),
        "solution": None if simulated else (475.0, 480.0), "out": str(tmp_path),
        "schema": found.schema,
    }  # fmt: skip
    if simulated:
        assert found.drift is None
    else:
        assert found.drift is not None
        assert (found.drift.measured_s, found.drift.waited) == (0.2, 0.25)
        assert (found.drift.decisions, len(found.drift.tasks)) == (("kept",), 2)


def test_a_run_that_ended_early_has_no_rates(monkeypatch, tmp_path):
    run = ended_run(tmp_path)
    run.state.steady, run.folder = RunState().steady, None
    measured = outcome.Measurements()
    measured.user_code_failed = True  # so that its calls are not run again
    measured.times_ns = {"step": [1]}
    meter: Any = Given(read=lambda given: [Given(joules=0.0, source="n")])
    found = outcome.build_run(run, "stopped", None, measured, meter)
    assert (found.stopped, found.message, found.out) == (StoppedBy("x", 8), None, None)
    assert (found.env_steps_per_s, found.updates_per_s, found.env_steps_per_cpu_s) == (None,) * 3
    assert (found.energy_j, found.energy_source) == (None, None)
    assert {t.firings for t in found.tasks} == {0}
    assert found.returns["eval_mean"] is None
    assert found.returns["best_is_last"] is None
    assert found.drift is not None
    assert (found.drift.measured_s, found.drift.waited) == (None, None)
    same = Evaluation((3.0,), 0, 9)
    run.state.log.failure = None
    again = outcome.build_run(run, "done", FinalEvaluations(same, same), measured, meter)
    assert (again.returns["best_is_last"], again.returns["last_eval_returns"]) == (True, [3.0])


def test_cpu_seconds_are_those_of_this_process_its_children_and_the_fork_server(monkeypatch):
    usage = {0: Given(ru_utime=1.0, ru_stime=0.5), -1: Given(ru_utime=0.25, ru_stime=2.0)}
    spent = Given(RUSAGE_SELF=0, RUSAGE_CHILDREN=-1, getrusage=usage.__getitem__)
    monkeypatch.setattr(portable, "resource", spent)
    monkeypatch.setattr(host_system, "own_cpu_s", part("portable").own_cpu_s)
    monkeypatch.setattr(outcome.processes, "cpu_s", lambda: 8.0)
    assert outcome.cpu_seconds() == 11.75
