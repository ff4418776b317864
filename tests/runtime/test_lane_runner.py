"""One lane step by step: which calls it makes, which counts it publishes, when it waits, where it
goes on. Its calls and the clock are the test's."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.runtime.lanes import call_timer, lane_runner
from pearl.runtime.lanes.call_timer import CallTimer
from pearl.runtime.lanes.lane_runner import LaneRunner, ParkRequested, StopRequested
from pearl.runtime.protocol import lane_recorder
from pearl.runtime.protocol.binding import BoundFiring
from pearl.runtime.protocol.control_block import PARKED, ControlBlock
from pearl.runtime.protocol.lane_recorder import Sampling
from pearl.runtime.protocol.progress_counters import CELL
from pearl.runtime.protocol.single_lane import STOP, StopWord

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

    def __init__(self, monkeypatch, *, sampling=None, number=0, jitter_s=0.0, **changes):
        self.log, self.now, self.polled, self.then = [], 0, 0, {}
        words = CELL // 8
        size = ControlBlock.size(3, 2)
        whole = np.zeros(size + words, np.int64)
        first = -(whole.ctypes.data // 8) % words
        self.control = ControlBlock(TASKS, 2, whole[first : first + size])
        self.events = [Event(), Event()]
        self.control.write(self.control.sleep_cell(1 - number), 1)
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
            wake_events=self.events,
            sampling=sampling or Sampling(),
            arrays=self.arrays,
            jitter_s=jitter_s,
        )
        self.runner = LaneRunner(context, number, self.control, self.poll, spins=2)
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


def test_calls_sleep_at_random_where_that_is_asked(lane):
    x, drawn = lane(jitter_s=0.5), random.Random(0)
    x.runner.run(1)
    assert x.now == 30 + round(drawn.uniform(0, 0.5) * 1e9)
    y = lane()
    y.runner.run(1)
    assert y.now == 30


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


def test_in_a_partial_round_too_it_waits(lane):
    x = lane()
    x.runner.run(1)
    x.events[0].then = [lambda: (x.let(1), x.sleep(2e-6))]
    x.runner.finish_segment(1)
    assert (x.called(), x.counts()) == ("a1 b0", [1, 1, 1])
    assert x.runner.recorder.waiting_ns == [0, 2000]


def test_a_lane_goes_on_after_the_firings_that_are_complete(lane):
    x = lane()
    x.let(9)
    for cell, count in enumerate((5, 2)):
        x.control.write(cell, count)
    x.runner.resume_segment(1)
    assert x.at() == (1, 2, 0, 4)
    x.runner.run(7)
    assert (x.called(), x.counts()) == ("b0 b1 a0 b0 a1 b1", [7, 6, 9])


@pytest.mark.parametrize("way", ["full", "serial"])
def test_a_call_of_two_firings_counts_both_and_needs_twice_the_tokens(lane, way):
    x = lane(b={"published": ((1, 2, 2),), "step": np.array([2])})
    x.let(5)
    x.runner.run(3)
    assert x.counts() == [3, 4, 5]
    x.runner.finish_segment(3)
    assert x.counts() == [3, 6, 5]
    x.runner.entry = 1
    assert x.runner.waits_for() == []  # round 2 needs 1 + 2 · 2
    x.runner.round = 3
    assert x.runner.waits_for() == ["other"]
    for cell, count in enumerate((5, 4, 99)):
        x.control.write(cell, count)
    x.runner.resume_segment(1)
    assert x.at() == (1, 2, 0, 4)
    x.called()
    if way == "full":
        x.runner.run(7)
    else:
        x.runner.try_advance(7, 6, 0, flush=False)
    assert (x.called(), x.counts()) == ("b0 b1 a0 b0 a1 b1", [7, 12, 99])


def test_rounds_of_the_sample_are_timed_and_those_of_the_window_kept(lane):
    x = lane(sampling=Sampling(4, 5, 7))
    x.let(99)
    x.runner.run(11)
    record = x.runner.record()
    assert (record["rounds"], record["timed_rounds"]) == (11, 1 + 5)  # −1; 0, 4, 5, 6, 8
    assert record["calls"] == [6, 5]
    assert record["busy_ns"] == [6 * 30, 5 * 500]
    begin = 30 + 5 * 530
    assert record["kept"] == [
        (0, 6, begin, begin + 30, -1), (1, 5, begin + 30, begin + 530, -1),
        (0, 7, begin + 530, begin + 560, -1), (1, 6, begin + 560, begin + 1060, -1),
    ]  # fmt: skip
    assert (record["lane"], record["names"]) == ("x", ["a", "b"])


def test_the_last_round_is_timed_on_request(lane):
    x = lane()
    x.let(99)
    x.runner.run(4, timed=True)
    assert x.called() == "a1 a0 b0 a1 b1 a0 b0"
    assert x.runner.times_ns == {"a": [30], "b": [500]}
    x.runner.run(4, timed=True)
    assert x.runner.times_ns == {"a": [30], "b": [500]}
    before = x.runner.steps
    x.runner.run(5, timed=True)
    assert x.runner.times_ns == {"a": [30, 30], "b": [500, 500]}
    assert x.runner.steps is before


def test_the_lag_of_a_kept_call_is_asked_for(lane):
    asked = []
    lag = {"lag": lambda number: asked.append(number) or 7}
    x = lane(sampling=Sampling(1, 1, 2), b=lag)
    x.let(99)
    x.runner.run(4)
    x.runner.finish_segment(4)
    assert asked == [1]
    assert [(k[0], k[1], k[4]) for k in x.runner.recorder.kept] == [(0, 2, -1), (1, 1, 7)]
    y = lane(sampling=Sampling(1, 0, 9), b=lag)
    y.let(99)
    y.runner.run(1)
    y.runner.finish_segment(1)
    assert y.runner.recorder.kept[-1][4] == 7


def stopping(x, steps=0):
    def stop():
        x.arrays[STOP][:] = 1, steps

    return stop


@pytest.mark.parametrize("way", ["full", "partial", "serial"])
@pytest.mark.parametrize(("task", "done"), [("a", 0), ("a", 3), ("b", 0), ("b", 3)])
def test_a_stop_word_ends_a_round_where_it_is_set(lane, way, task, done):
    """Of round 1. With gradient steps done, the next call continues the firing."""
    x = lane(**{task: {"interruptible": True}})
    x.let(9)
    x.runner.run(2)
    x.called()
    x.then[task] = stopping(x, done)
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


def test_a_stop_word_is_heeded_by_calls_that_can_be_interrupted_alone(lane):
    x = lane()
    x.let(9)
    x.then["a"] = stopping(x)
    x.runner.run(3)
    assert (x.called(), x.runner.interrupted) == ("a1 a0 b0 a1 b1", False)


def test_the_rest_of_an_interrupted_round_is_timed(lane):
    x = lane(a={"interruptible": True})
    x.let(9)
    x.runner.run(2)
    x.then["a"] = stopping(x, 3)
    x.runner.run(4)
    x.arrays[STOP][0], x.runner.interrupted, x.then["a"] = 0, False, lambda: stopping(x, 0)()
    x.arrays[STOP][1] = 3
    x.then["a"] = lambda: x.arrays[STOP].__setitem__(1, 0)
    x.called()
    x.runner.run(4, timed=True)
    assert x.called() == "a1 b1 a0 b0"
    # a began untimed, so that its first time is that of the last round
    assert x.runner.times_ns == {"b": [500, 500], "a": [30]}


def test_a_lane_alone_goes_as_far_as_it_can(lane):
    x = lane()
    assert x.runner.try_advance(3, 2, 0, flush=False)
    assert (x.called(), x.at()[1:3]) == ("a1 a0", (0, 1))  # b has no token
    assert not x.runner.try_advance(3, 2, 0, flush=False)
    x.let(9)
    assert x.runner.try_advance(3, 2, 0, flush=False)
    assert (x.called(), x.at()[1:3]) == ("b0 a1 b1", (2, 0))
    assert not x.runner.try_advance(3, 3, 0, flush=False)
    assert (x.called(), x.at()[1:3]) == ("", (2, 0))  # a would be of iteration 3
    assert x.runner.try_advance(3, 3, 3, flush=True)
    assert (x.called(), x.at()[1:3]) == ("b0", (3, 0))
    assert x.runner.times_ns == {"b": [500]}
    x.runner.begin_segment(3)
    for cell, count in enumerate((4, 4)):
        x.control.write(cell, count)
    x.runner.resume_segment(3)
    assert x.at() == (3, 3, 0, 4)
    x.runner.round, x.runner.resumed = 2, 4
    assert x.runner.try_advance(6, 5, 0, flush=False)
    assert x.called() == "a1 a0 b0"


def test_calls_from_the_asked_round_on_are_timed(lane):
    x = lane()
    x.let(9)
    x.runner.try_advance(9, 4, 5, flush=False)
    assert x.called() == "a1 a0 b0 a1 b1 a0 b0 a1 b1"
    assert x.runner.times_ns == {"a": [30], "b": [500]}  # of round 3, iteration 4 ahead


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
    if timed:
        return
    x.then["a"] = lambda: Pending(2)
    assert x.runner.try_advance(4, 4, 0, flush=True)
    x.runner.round = 9
    now = x.now
    assert x.runner.try_advance(4, 4, 0, flush=False) == (x.counts()[0] == 3)


def test_a_lane_that_waits_looks_at_its_asynchronous_calls(lane):
    x = lane(a={"asynchronous": True})
    x.then["a"] = lambda: Pending(4)
    x.events[0].then = [lambda: x.let(1)]
    x.runner.run(2)
    assert x.called() == "a1 a0 b0"
    assert x.counts()[:2] == [2, 1]
    assert x.events[0].waits == [0.05]


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
    y = lane()
    y.let(99)
    y.control.write(y.control.limit_cell, 100)
    y.control.write(y.control.flushed_cell(0), 0)
    runs = []
    y.runner.run = lambda limit, timed: (
        runs.append((limit, timed)) or y.control.write(y.control.stop_cell, 1)
    )
    y.runner.serve()
    assert runs == [(lane_runner.MAX_ITERATIONS_AHEAD, True)]


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
    with pytest.raises(ParkRequested):
        x.runner._raise_if_parked()


# --- the time of a call that the stop word interrupts


def test_a_call_that_is_continued_has_the_time_of_all_its_parts(monkeypatch):
    now, times, words = [0], {}, np.zeros(2, np.int64)
    monkeypatch.setattr(call_timer, "perf_counter_ns", lambda: now[0])
    timer = CallTimer(StopWord({STOP: words}), times)
    lags = []

    def call(takes, done):
        def run():
            now[0] += takes
            words[1] = done

        firing = BoundFiring(
            "update", 0, None, NOTHING, NOTHING, [run], 0, 9, (), interruptible=True,
            lag=lags.append,
        )  # fmt: skip
        (timed,) = timer.timers(firing, 4)
        assert timed() is None

    call(10, 0)
    call(20, 3)
    call(30, 5)
    call(40, 0)
    assert times == {"update": [10, 90]}
    assert lags == [4, 4]
    words[1] = 2  # it began untimed
    call(50, 3)
    call(60, 0)
    call(70, 0)
    assert times == {"update": [10, 90, 70]}
