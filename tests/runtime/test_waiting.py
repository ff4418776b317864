"""The time that a run was ready to compute and had no core: measured, kept, and said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pearl.planning.runs import load_run
from pearl.report.report import Report
from pearl.runtime import cpu_wait
from pearl_devices.system import host_system
from tests.lanes import planned, replay_spec, trained
from tests.needs import needs_linux
from tests.processes import until
from tests.schemas.test_schemas import problems

HERE = (os.getpid(), threading.get_native_id())
counted = needs_linux("counts of waits for a core")


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
