"""What a run counts and says of itself, computed by hand from numbers that the test gives."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace as Given
from typing import Any

import numpy as np
import pytest

from pearl.planning.runs import TimeToSolution
from pearl.runtime.environments.external_envs import FailureLog
from pearl.training import run_clock
from pearl.training.checkpoints.state import RunState
from pearl.training.lane_accounts import lane_times
from pearl.training.metrics import Metrics
from pearl.training.milestones import Milestones
from pearl.training.run_clock import RunClock


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
