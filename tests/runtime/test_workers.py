"""Lanes of workers that fail, die or hang, and the calls of lanes on other nodes: what is said, and
where a lane is started again. Workers, clocks and Ray are the test's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pearl.runtime.environments.external_envs import FailureLog
from pearl.runtime.lanes import worker_monitor
from pearl.runtime.lanes.worker_monitor import WorkerMonitor
from pearl.runtime.lanes.workers import LaneDiedError, Worker
from pearl.runtime.protocol.single_lane import LaneError


class Watched(Worker):
    """A worker that fails, dies or hangs as the test says."""

    def __init__(self, **given):
        self.fails, self.dies, self.reason, self.told = None, None, None, []
        self.done, self.cpu, self.ready_error = [], 2.0, None
        self.stalled = []
        for name, value in given.items():
            setattr(self, name, value)

    def raise_if_failed(self):
        if self.dies:
            raise LaneDiedError(self.dies)

    def failures(self):
        found, self.told = self.told, []
        return found

    def timeout_reason(self, limit_s, *, stalled_s):
        self.stalled.append(stalled_s)
        return self.reason

    def kill(self):
        self.done.append("kill")

    def cpu_s(self):
        return self.cpu

    def join(self):
        return {"t": [1]}, {}, []

    def wait_ready(self):
        self.done.append("ready")
        if self.ready_error:
            raise self.ready_error

    def begin(self):
        self.done.append("begin")

    def restore_and_replay(self):
        self.done.append("replay")


@pytest.fixture
def monitor(monkeypatch):
    """A monitor of lane 1 with a clock and an engine of the test."""
    engine = SimpleNamespace(
        count=0, now=100.0, obstacle=None, lost=None, waits=False, added=[], made=[], fresh=[],
        context=SimpleNamespace(
            env_time_limit_s=2.0, restart_envs=False, log=FailureLog(), protocol=None
        ),
        control=None,
        lane_name=lambda n: f"lane{n}", describe_blocked_lanes=lambda: "x waits for a",
        add_measurements=lambda *given: engine.added.append(given),
    )  # fmt: skip
    engine.counts = lambda: (engine.count, 5)
    engine.counts_of = lambda number: (engine.count,)
    engine.env_step_under_way = lambda number: engine.waits and "environment 'E'"

    def process(number, *, restarted_envs):
        engine.made.append((number, restarted_envs))
        return engine.fresh.pop(0)

    engine.process = process
    recovery = worker_monitor.recovery
    monkeypatch.setattr(recovery, "restart_obstacle", lambda context, number: engine.obstacle)
    monkeypatch.setattr(recovery, "rebuild_counts", lambda *given: engine.lost)
    clock = SimpleNamespace(monotonic=lambda: engine.now)
    monkeypatch.setattr(worker_monitor, "time", clock)
    told = []
    found = WorkerMonitor(engine, lambda text, lost: told.append((text, lost)))
    found.engine, found.told, found.start_counts = engine, told, object()
    return found


def test_lanes_that_never_fire_again_are_named(monitor):
    engine = monitor.engine
    monitor.poll()
    for seconds, count in ((120.0, 0), (1.0, 1), (120.0, 1)):
        engine.now, engine.count = engine.now + seconds, count
        monitor.poll()
    engine.now += 0.5
    with pytest.raises(LaneError, match=r"^nothing has fired for 120 s: x waits for a$"):
        monitor.poll()
    monitor.reset_stall_detector()
    monitor.poll()


@pytest.mark.parametrize("lost", [None, 8])
def test_a_lane_that_died_is_restarted_and_the_third_death_at_one_firing_ends_the_run(
    monitor, lost
):
    engine, log = monitor.engine, monitor.engine.context.log
    engine.lost = lost
    monitor.workers[1] = Watched(dies="died", cpu=2.5)
    second = Watched(cpu=1.0, ready_error=LaneDiedError("died at once"))
    third = Watched()
    engine.fresh = [second, third]
    monitor.poll()
    assert monitor.workers[1] is third
    assert (second.done, third.done) == (["ready"], ["ready", "begin"])
    assert engine.made == [(1, lost is not None)] * 2
    assert monitor.ended_cpu_s == 3.5
    assert engine.added == [({"t": [1]}, {}, [])] * 2
    assert log.events == ["died; the lane was restarted", "died at once; the lane was restarted"]
    assert (log.restarts, log.lost_transitions) == (2, 2 * (lost or 0))
    third.dies = "again"
    with pytest.raises(LaneError, match=r"^again, for the 3rd time at one firing$"):
        monitor.poll()
    engine.count, engine.fresh = 1, [Watched(), Watched()]
    monitor.poll()  # at another firing
    monitor.workers[1].dies = "again"
    monitor.poll()
    engine.obstacle = "it would be torn"
    monitor.workers[1].dies = "again"
    with pytest.raises(LaneError, match=r"^again; the lane cannot be restarted: it would be torn$"):
        monitor.poll()


# --- the client of a lane server in a Ray actor
