"""The time that a run was ready to compute and had no core: measured, kept, and said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from pearl.planning.runs import Drift, load_run
from pearl.report.report import Report
from pearl.report.tables import drift_sentence
from pearl.runtime import cpu_wait
from pearl.training import loop
from pearl.training.checkpoints.state import RunState
from pearl_devices.system import host_system
from tests.lanes import planned, replay_spec, trained
from tests.needs import needs_linux
from tests.processes import until
from tests.schemas.test_schemas import problems

HERE = (os.getpid(), threading.get_native_id())
counted = needs_linux("counts of waits for a core")
CORES = len(host_system.usable_cpus())


@contextmanager
def shared_core() -> Iterator[None]:
    """This thread on one core, with another process there that always computes."""
    before = host_system.usable_cpus()
    core = min(before)
    host_system.pin([core])
    command = [sys.executable, "-c", "while True: pass"]  # of this thread's affinity and niceness
    other = subprocess.Popen(command)
    try:
        yield
    finally:
        other.kill()
        other.wait()
        host_system.pin(before)


@counted
def test_a_run_says_what_was_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that says that it waited for half of all time."""
    monkeypatch.setattr(host_system, "queued_s", lambda *thread: 0.5 * time.perf_counter())
    system, plan = planned(replay_spec("dqn", {"max_lanes": 1}))
    run = trained(system, plan, "one", out=tmp_path).run
    assert run.drift.waited is not None
    assert 0.5 <= run.drift.waited <= 1.0
    assert run.steady["waited_s"] == pytest.approx(run.drift.waited * run.steady["wall_s"])
    assert problems(run.to_json(), "run") == []
    assert load_run(tmp_path).drift == run.drift
    share = f"for {100 * run.drift.waited:.1f} % of that time, the lane was ready and had no core"
    assert share in " ".join(str(Report(plan, run, system)).split())
    assert share in (tmp_path / "report.html").read_text().replace("&#39;", "'")


class Spent(NamedTuple):
    """Clocks of this thread: the time before and after the others were read, seconds computed, and
    seconds waited."""

    begin_s: float
    cpu_s: float
    waited_s: float
    end_s: float

    @staticmethod
    def now() -> Spent:
        begin_s = time.perf_counter()
        return Spent(begin_s, time.thread_time(), host_system.queued_s(*HERE), time.perf_counter())


@counted
def test_sleeping_is_not_waiting() -> None:
    before = Spent.now()
    time.sleep(0.2)
    after = Spent.now()
    wall_s = after.end_s - before.begin_s
    assert after.waited_s - before.waited_s <= wall_s - 0.2 + 1e-3  # it slept at least that long


@counted
def test_computing_beside_others_is_waiting() -> None:
    """Whoever never sleeps computes or waits; and waits as soon as another has had its core."""
    with shared_core():
        before = Spent.now()

        def waited_s() -> float:
            end_s = time.thread_time() + 0.01
            while time.thread_time() < end_s:
                pass
            return Spent.now().waited_s - before.waited_s

        until(lambda: waited_s() > 0.05, "a share of the core for the other", pause_s=0.0)
        after = Spent.now()
    wall_s, cpu_s = after.end_s - before.begin_s, after.cpu_s - before.cpu_s
    assert after.waited_s - before.waited_s <= wall_s - cpu_s + 0.02


@counted
def test_nothing_is_said_where_threads_wait_for_each_other_or_nothing_is_counted() -> None:
    before = host_system.usable_cpus()
    host_system.pin([min(before)])
    try:
        assert cpu_wait.read_waits({"a": [HERE], "b": [HERE]}) == {}
        assert len(cpu_wait.read_waits({"a": [HERE]})) == 1
    finally:
        host_system.pin(before)
    assert cpu_wait.read_waits({"a": [(HERE[0], 2**22 + 1)]}) == {}
    assert cpu_wait.lane_wait_s({}, {}, "a") is None


def test_of_several_lanes_the_one_that_bounds_the_period_counts() -> None:
    then = {("a", (1, 1)): 5.0, ("a", (1, 2)): 1.0, ("b", (2, 2)): 0.0}
    now = {("a", (1, 1)): 6.0, ("a", (1, 2)): 3.0, ("b", (2, 2)): 9.0, ("b", (3, 3)): 70.0}
    assert cpu_wait.lane_wait_s(then, now, "a") == 2.0  # of its threads that which waited longer
    assert cpu_wait.lane_wait_s(then, now, "b") == 9.0  # not that which began since
    assert cpu_wait.lane_wait_s(then, now, "a link") == 9.0


@counted
@pytest.mark.skipif(CORES < 2, reason="two lanes need two cores")
@pytest.mark.parametrize("lanes", ["threads", "processes"])
def test_every_lane_is_watched_by_its_name(lanes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, plan = planned(replay_spec("dqn", {"max_lanes": 2, "prefetch": 1}), cores=2)
    names = {each.lane for each in plan.lanes if each.order}
    assert len(names) == 2
    assert plan.bottleneck.name in names
    seen: list[Mapping[str, Any]] = []
    plain = cpu_wait.read_waits
    monkeypatch.setattr(cpu_wait, "read_waits", lambda given: (seen.append(given), plain(given))[1])
    run = trained(system, plan, lanes, steps=1000).run
    assert set(seen[-1]) == names
    processes = {thread[0] for own in seen[-1].values() for thread in own}
    assert len(processes) == (2 if lanes == "processes" else 1)
    assert len({thread for own in seen[-1].values() for thread in own}) == 2
    assert run.drift.waited is not None


def test_a_stretch_that_was_not_watched_leaves_nothing_to_say() -> None:
    state = RunState(iteration=1)
    run: Any = SimpleNamespace(
        state=state,
        milestones=SimpleNamespace(steady=0),
        lane_clock=SimpleNamespace(simulated=False),
        graph=SimpleNamespace(env_steps=1, updates=1),
    )
    loop._count(run, 1, 2.0, 1.0, 0.5, 0.0)
    loop._count(run, 1, 2.0, 1.0, 9.0, 0.0)  # no more than the stretch took
    assert state.steady["waited_s"] == 2.5
    loop._count(run, 1, 2.0, 1.0, None, 0.0)
    loop._count(run, 1, 2.0, 1.0, 0.5, 0.0)
    assert "waited_s" not in state.steady


def test_the_sentence_gives_what_is_left_without_the_share() -> None:
    drift = Drift(1e-3, 0.97e-3, -0.03, (), (), None, 0.25)
    text = drift_sentence(drift)
    assert "0.97 x the predicted 1.00 ms; for 25.0 % of that time, the lane was ready" in text
    assert "without that time, the ratio is 0.73 x" in text
    for quiet in (None, 0.0, 0.009):
        assert "had no core" not in drift_sentence(replace(drift, waited=quiet))
