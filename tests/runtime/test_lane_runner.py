"""One lane step by step: which calls it makes, which counts it publishes, when it waits, where it
goes on. Its calls and the clock are the test's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pearl.runtime.lanes import call_timer, lane_runner
from pearl.runtime.lanes.lane_runner import LaneRunner, StopRequested
from pearl.runtime.protocol import lane_recorder
from pearl.runtime.protocol.binding import BoundFiring
from pearl.runtime.protocol.control_block import PARKED, ControlBlock
from pearl.runtime.protocol.lane_recorder import Sampling
from pearl.runtime.protocol.progress_counters import CELL
from pearl.runtime.protocol.single_lane import STOP

TASKS = ("a", "b", "other")
NOTHING = np.zeros(0, np.int64)


class Event:
    """A wake event whose wait does what the test says."""

    def __init__(self):
        self.sets, self.waits, self.then = 0, [], []

    def set(self):
        self.sets += 1

    def wait(self, seconds):
        self.waits.append(seconds)
        self.then.pop(0)()


class Lane:
    """A lane "x" with task a, which runs an iteration ahead, and task b, which needs the firing of
    another lane's task of the same iteration. The second lane sleeps.

    log: calls made, by task and round modulo 2. took: nanoseconds that each call takes.
    """

    def __init__(self, monkeypatch, **changes):
        self.log, self.now, self.polled, self.then = [], 0, 0, {}
        words = CELL // 8
        size = ControlBlock.size(3, 2)
        whole = np.zeros(size + words, np.int64)
        first = -(whole.ctypes.data // 8) % words
        self.control = ControlBlock(TASKS, 2, whole[first : first + size])
        self.events = [Event(), Event()]
        self.control.write(self.control.sleep_cell(1), 1)
        self.arrays = {STOP: np.zeros(2, np.int64)}
        needs = np.array([2], np.int64), np.array([1], np.int64), np.array([1], np.int64)
        steps = {
            "a": BoundFiring("a", 1, None, NOTHING, NOTHING, self.calls("a"), -9, 99, ((0, 2, 1),)),
            "b": BoundFiring("b", 0, *needs, self.calls("b"), 0, 99, ((1, 1, 1),)),
        }
        for name, more in changes.items():
            for key, value in more.items():
                setattr(steps[name], key, value)
        firings = [SimpleNamespace(offset=s.offset, index=0, per_round=1) for s in steps.values()]
        given = iter(steps.values())
        binder = SimpleNamespace(lags={}, environments=dict, bind_firing=lambda f: next(given))
        monkeypatch.setattr(lane_runner, "Binder", lambda context, control, lane: binder)
        for module in (lane_runner, lane_recorder, call_timer):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(lane_runner, "time", SimpleNamespace(sleep=self.sleep))
        context = SimpleNamespace(
            protocol=SimpleNamespace(lanes=[SimpleNamespace(name="x", firings=firings)] * 2),
            wake_events=self.events, sampling=Sampling(), arrays=self.arrays, jitter_s=0.0,
        )  # fmt: skip
        self.runner = LaneRunner(context, 0, self.control, self.poll, spins=2)
        self.control.reset(dict.fromkeys(TASKS, 0), 0, limit=0)
        self.runner.begin_segment(0)

    def calls(self, name):
        def call(parity):
            self.log.append(f"{name}{parity}")
            self.now += {"a": 30, "b": 500}[name]
            return self.then.get(name, lambda: None)()

        return [lambda: call(0), lambda: call(1)]

    def poll(self):
        self.polled += 1
        if self.control.read(self.control.stop_cell):
            raise StopRequested

    def sleep(self, seconds):
        self.now += round(seconds * 1e9)

    def counts(self):
        return [self.control.read(cell) for cell in range(3)]

    def let(self, count):
        """The other lane's task has so many firings."""
        self.control.write(2, count)

    def called(self):
        found, self.log[:] = " ".join(self.log), []
        return found

    def at(self):
        r = self.runner
        return r.begin, r.round, r.entry, r.resumed


@pytest.fixture
def lane(monkeypatch):
    return lambda **given: Lane(monkeypatch, **given)


def test_a_segment_begins_ahead_and_ends_with_all_at_one_iteration(lane):
    x = lane()
    x.let(9)
    ends = []
    x.runner.on_segment_end = lambda at: ends.append(
        (at, x.control.read(x.control.flushed_cell(0)))
    )
    assert (x.runner.ahead, x.at()) == (1, (0, -1, 0, 0))
    x.runner.run(3)
    assert (x.called(), x.counts()) == ("a1 a0 b0 a1 b1", [3, 2, 9])
    assert x.at() == (0, 2, 0, 0)
    x.runner.run(3)
    assert x.called() == ""
    x.runner.finish_segment(3)
    assert (x.called(), x.counts(), x.at()) == ("b0", [3, 3, 9], (3, 2, 0, 0))
    assert (ends, x.control.read(x.control.flushed_cell(0))) == ([(3, 0)], 3)
    x.runner.run(5)
    assert (x.called(), x.counts()) == ("a0 a1 b1", [5, 4, 9])
    r = x.runner.recorder
    assert (r.rounds, r.timed_rounds, r.calls) == (6, 3, [2, 1])  # rounds −1, 2, 2
    assert x.events[1].sets == 5 + 4
    assert x.events[0].sets == 0
    assert x.events[0].waits == []


def test_calls_outside_their_work_count_and_do_nothing(lane):
    x = lane(b={"first": 1, "last": 3})
    x.let(9)
    x.runner.run(6)
    assert (x.called(), x.counts()) == ("a1 a0 a1 b1 a0 b0 a1 a0", [6, 5, 9])
    x.runner.finish_segment(6)
    assert (x.called(), x.counts()) == ("", [6, 6, 9])


def test_who_waits_says_so_sleeps_and_looks_again(lane):
    x = lane()
    asleep = []

    def later():
        asleep.append(x.control.read(x.control.sleep_cell(0)))
        x.now += 1000

    x.events[0].then = [later, lambda: (later(), x.let(1)), lambda: (later(), x.let(2))]
    x.runner.run(2)
    assert (x.called(), x.counts()) == ("a1 a0 b0", [2, 1, 1])
    assert x.events[0].waits == [lane_runner.SLEEP_S] * 2
    assert x.polled == 1
    x.runner.run(3)
    assert (x.called(), x.counts()) == ("a1 b1", [3, 2, 2])
    assert asleep == [1, 1, 1]
    assert x.control.read(x.control.sleep_cell(0)) == 0
    assert x.runner.recorder.waiting_ns == [0, 3000]
    assert x.runner.waits_for() == []
    x.runner.entry = 1
    assert x.runner.waits_for() == ["other"]
    x.let(3)
    assert x.runner.waits_for() == []


def test_a_lane_goes_on_after_the_firings_that_are_complete(lane):
    x = lane()
    x.let(9)
    for cell, count in enumerate((5, 2)):
        x.control.write(cell, count)
    x.runner.resume_segment(1)
    assert x.at() == (1, 2, 0, 4)
    x.runner.run(7)
    assert (x.called(), x.counts()) == ("b0 b1 a0 b0 a1 b1", [7, 6, 9])


@pytest.mark.parametrize("way", ["full", "partial", "serial"])
@pytest.mark.parametrize(("task", "done"), [("a", 0), ("a", 3), ("b", 0), ("b", 3)])
def test_a_stop_word_ends_a_round_where_it_is_set(lane, way, task, done):
    """Of round 1. With gradient steps done, the next call continues the firing."""
    x = lane(**{task: {"interruptible": True}})
    x.let(9)
    x.runner.run(2)
    x.called()
    x.then[task] = lambda: x.arrays[STOP].__setitem__(slice(None), (1, done))
    if way == "full":
        x.runner.run(6)
    elif way == "partial":
        x.runner.finish_segment(6)
    else:
        assert not x.runner.try_advance(6, 6, 0, flush=False)
    assert x.runner.interrupted
    first, counts = {"a": ("a1", [3, 1, 9]), "b": ("a1 b1", [3, 2, 9])}[task]
    if done:
        counts[TASKS.index(task)] -= 1
    assert (x.called(), x.counts()) == (first, counts)
    entry = TASKS.index(task) + (done == 0)
    assert x.at() == (0, 1 + entry // 2, entry % 2, 2)
    x.arrays[STOP][:], x.runner.interrupted = 0, False
    x.then.clear()
    x.runner.run(4)
    again = {"a": "a1 b1", "b": "b1"}[task] if done else {"a": "b1", "b": ""}[task]
    assert x.called() == f"{again} a0 b0".strip()
    assert x.counts() == [4, 3, 9]


class Pending:
    def __init__(self, checks):
        self.checks = checks

    def done(self):
        self.checks -= 1
        return self.checks <= 0


@pytest.mark.parametrize("timed", [False, True])
def test_asynchronous_calls_are_published_in_their_order_once_they_are_complete(lane, timed):
    x, pending = lane(a={"asynchronous": True}), []
    x.let(9)
    checks = iter([3, 1, 9, 1])
    x.then["a"] = lambda: pending.append(Pending(next(checks))) or pending[-1]
    x.runner.run(1, timed=timed)
    assert (x.counts()[:2], pending[0].checks) == ([0, 0], 2)
    x.runner.run(2)
    assert x.counts()[:2] == [2, 1]  # both, when the first was complete
    x.runner.run(3)
    assert (x.counts()[:2], x.called()) == ([2, 2], "a1 a0 b0 a1 b1")
    now = x.now
    x.runner.finish_segment(3)
    assert x.counts() == [3, 3, 9]
    assert x.now - now == 500 + 50_000 * x.polled
    assert x.polled > 0


def test_a_worker_follows_the_limit_until_it_is_stopped(lane):
    x = lane()
    c = x.control
    x.let(99)
    seen = []

    def go(limit=None, flush=None, stop=None):
        def then():
            seen.append((x.called(), c.read(c.sleep_cell(0)), c.read(c.flushed_cell(0))))
            for cell, value in ((c.limit_cell, limit), (c.flush_cell, flush), (c.stop_cell, stop)):
                if value is not None:
                    c.write(cell, value)
            x.now += 100

        return then

    x.events[0].then = [go(limit=2), go(limit=2, flush=2), go(stop=1)]
    with pytest.raises(StopRequested):
        x.runner.serve()
    assert seen == [("", 1, 0), ("a1 a0 b0", 1, 0), ("b1", 1, 2)]
    assert c.read(c.sleep_cell(0)) == 0
    assert x.runner.recorder.held_ns == 300
    assert x.runner.recorder.wall_ns == x.now
    assert x.runner.times_ns == {"a": [30], "b": [500]}
    assert x.polled == 3


def test_a_parked_lane_completes_what_is_under_way_and_stays(lane):
    x = lane(a={"asynchronous": True})
    c, x.then["a"] = x.control, lambda: Pending(4)
    c.write(c.limit_cell, 2)
    ends = []
    x.runner.on_segment_end = ends.append
    x.events[0].then = [
        lambda: c.write(c.park_cell, 1),
        lambda: ends.append(c.read(c.flushed_cell(0))),
        lambda: c.write(c.stop_cell, 1),
    ]
    with pytest.raises(StopRequested):
        x.runner.serve()
    assert (x.called(), x.counts()[:2]) == ("a1 a0", [2, 0])
    assert ends == [PARKED, PARKED]
    assert x.events[0].waits == [0.05] * 3
