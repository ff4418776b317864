"""The parts of a run, each by itself: records of times, arrays in slots, messages, recovery, the
order of one lane, environments that hang, programs of children. Clocks are the test's."""

from __future__ import annotations

import signal
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.cluster.messages import TEXT, header_words, pack, unpack
from pearl.errors import SpecError
from pearl.planning.replicas import ReplicaSplit, split_graph
from pearl.runtime import child_process, clock
from pearl.runtime.environments import external_envs
from pearl.runtime.environments.external_envs import EVENTS, FailureLog
from pearl.runtime.lanes.async_actor import slot_of
from pearl.runtime.protocol import binding, channels, lane_recorder, recovery, single_lane
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.lane_recorder import LaneRecorder, Place, Sampling, plan_sampling
from pearl.runtime.protocol.lane_schedule import Firing, Slots
from pearl.runtime.protocol.single_lane import (
    one_lane_order,
)
from pearl.spec.reading import load
from pearl.spec.user_code import build_graph
from pearl_devices import buffers
from pearl_devices.kernels import kind_of
from pearl_devices.primitives.envs.asked import SINCE, Asked
from tests.lanes import replay_spec

# --- times of a lane


@pytest.mark.parametrize(
    ("calls", "period_s", "begin", "total", "found"),
    [
        (10, 1e-3, 100, 1000, (1, 100, 108)),  # 10 × 50 ns are half of a thousandth of 1 ms
        (20, 1e-3, 100, 1000, (2, 100, 108)),
        (200, 1e-3, 100, 1000, (10, 100, 103)),  # 600 // 200 iterations are kept
        (301, 1e-3, 0, 1000, (16, 0, 2)),
        (10, 1e-3, 998, 1000, (1, 992, 1000)),
        (10, 1e-3, 9, 3, (1, 0, 8)),
        (0, 1.0, 5, 99, (1, 5, 13)),
        (1, 0.0, 5, 99, (50_000, 5, 13)),
    ],
)
def test_rounds_are_timed_as_rarely_as_their_share_asks(
    calls, period_s, begin, total, found, monkeypatch
):
    monkeypatch.setattr(lane_recorder, "stamp_s", lambda: 50e-9)
    assert plan_sampling(calls, period_s, begin, total) == Sampling(*found)


@pytest.mark.parametrize(
    ("sampling", "due"),
    [
        (Sampling(4, 6, 8), [0, 4, 4, 4, 4, 6, 6, 7, 8, 12]),
        (Sampling(1, 3, 4), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Sampling(lane_recorder.NEVER, 3, 5), [3, 3, 3, 3, 4, *[lane_recorder.NEVER] * 5]),
        (lane_recorder.UNTIMED, [lane_recorder.NEVER] * 10),
    ],
)
def test_the_next_round_that_is_timed(sampling, due):
    recorder = LaneRecorder("", [Place("a")], sampling)
    assert [recorder.next_timed(n) for n in range(10)] == due


def test_of_many_times_the_newest_stay(monkeypatch):
    monkeypatch.setattr(lane_recorder, "TIMES", 4)
    times = {}
    for n in range(6):
        lane_recorder.record_time(times, "a", n)
    assert times == {"a": [4, 5]}  # 0, 1 went with the fourth, 2, 3 with the sixth
    assert lane_recorder.medians_s({"a": [10**9, 3 * 10**9]}) == {"a": (2.0, 2)}


# --- clocks


def test_an_emulated_plan_takes_the_time_of_its_simulation(monkeypatch):
    virtual = clock.VirtualClock(np.array([1.0, 3.0, 6.0, 10.0]), 1)
    virtual.start()
    assert [virtual.stop(3), virtual.stop(3), virtual.stop(4)] == [5.0, 0.0, 4.0]
    assert (virtual.simulated, clock.RealClock.simulated) == (True, False)
    now = iter([5.0, 7.5])
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    real = clock.RealClock()
    real.start()
    assert real.stop(9) == 2.5


# --- arrays


def rings(*counts, size=4):
    found = {}
    for i, count in enumerate(counts):
        mark = f"#{i}" if len(counts) > 1 else ""
        found[f"episode.count{mark}"] = np.array([count])
        found[f"episode.returns{mark}"] = np.array(
            [next((float(10 * i + n) for n in reversed(range(count)) if n % size == k), -1.0)
             for k in range(size)]
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("arrays", "last", "mean", "count"),
    [
        ({}, 20, None, 0),
        (rings(0), 20, None, 0),
        (rings(3), 20, 1.0, 3),
        (rings(6), 20, 3.5, 6),  # the ring has 2, 3, 4, 5
        (rings(6), 2, 4.5, 6),
        (rings(6, 2), 3, (4 + 5 + 10 + 11) / 4, 8),  # two of each
        (rings(6, 0), 2, 5.0, 6),
    ],
)
def test_the_mean_return_is_that_of_the_last_episodes_of_every_ring(arrays, last, mean, count):
    assert channels.mean_return(arrays, last) == mean
    assert channels.count_episodes(arrays) == count


def test_uneven_copies_share_out_the_rows_of_the_environments_without_gap_or_overlap():
    """8 environments as 5, 2 and 1: the copies have the rows 0 to 4, 5 and 6, and 7."""
    whole = build_graph(load(replay_spec("dqn", num_envs=8)))
    split = SimpleNamespace(graph=split_graph(whole, ReplicaSplit(("act", "step"), (5, 2, 1))))
    kernel = whole.task("act").kernel
    (name,) = [n for n, (shape, _) in kind_of(kernel).arrays(kernel).items() if shape[0] == 8][:1]
    arrays = dict(buffers.allocate([t.kernel for t in whole.tasks]))
    arrays |= {f"{n}#{copy}": array for n, array in arrays.items() for copy in range(3)}
    rows = np.arange(8)
    arrays[name].reshape(8, -1)[:] = rows[:, None]
    seen = []
    for copy in ("act#0", "act#1", "act#2"):
        task = split.graph.task(copy)
        view = channels.task_view(split, arrays, task.kernel, copy, {})[name]
        seen.append(view.reshape(len(view), -1)[:, 0].astype(int).tolist())
    assert seen == [[0, 1, 2, 3, 4], [5, 6], [7]]


def test_the_latest_parameters_lie_in_the_slot_of_the_last_copy():
    protocol = SimpleNamespace(
        slots={"other": 9, "one": 1, "sync": 3},
        sent={"other": (), "one": ("x",), "sync": ("x", "y")},
        graph=SimpleNamespace(repetition={"sync": 2, "one": 1}),
    )
    names = [channels.latest_parameters_name(protocol, "x", n) for n in range(1, 5)]
    assert names == ["x@1", "x", "x@2", "x@1"]  # copies 2, 4, 6, 8 are in slots 1, 0, 2, 1
    assert channels.latest_parameters_name(protocol, "z", 1) == "z"
    assert channels.version_array_name("sync") == "version.sync"
    assert [slot_of(version, 3) for version in (1, 3, 4)] == [0, 2, 0]


def test_lags_of_several_lanes_are_added():
    totals = {"policy_lag": {1: 2}}
    binding.add_lags(totals, {"policy_lag": {"1": 3, 4: 5}, "other": {"0": 1}})
    assert totals == {"policy_lag": {1: 5, 4: 5}, "other": {0: 1}}


def test_a_message_is_its_words_arrays_and_text():
    views = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2], np.array([7], np.int64)
    message = pack([TEXT, 5, -1], views, {"x": 1})
    assert message.size == 64 + 16 + 8 + len('{"x": 1}')
    assert header_words(message) == [TEXT, 5, -1, 0, 0, 0, 0, 0]
    into = np.zeros((2, 2), np.float32), np.zeros(1, np.int64)
    assert unpack(message, into) == {"x": 1}
    assert [a.tolist() for a in into] == [[[0, 2], [3, 5]], [7]]
    assert unpack(pack([TEXT]), []) == {}


# --- recovery


def firing(task, base, offset=0, waits=()):
    nothing = Slots(1, 0, 0)
    return Firing((task,), offset, 0, waits, {task: base}, {}, {}, nothing, False, 0, 1)


@pytest.mark.parametrize(
    ("counts", "found"),
    [((0, 0), (-1, 0)), ((1, 0), (0, 0)), ((2, 0), (0, 1)), ((2, 2), (1, 0)), ((3, 2), (1, 1))],
)
def test_the_next_firing_is_the_first_that_is_incomplete(counts, found):
    """Task a runs one iteration ahead; b fires twice an iteration, in one call."""
    c = ControlBlock(("a", "b"), 1, np.zeros(ControlBlock.size(2, 1), np.int64))
    for cell, count in enumerate(counts):
        c.write(cell, count)
    firings = firing("a", 2, 1), firing("b", 2)
    graph = SimpleNamespace(repetition={"a": 1, "b": 2})
    protocol = SimpleNamespace(graph=graph, lanes=[SimpleNamespace(firings=firings)])
    at, of = recovery.next_firing(protocol, 0, c)
    assert (at, firings.index(of)) == found


# --- one lane in this thread


def test_an_order_of_one_lane_must_find_its_tokens(monkeypatch):
    def entries(text):
        order = [SimpleNamespace(task=t) for t in text]
        lanes = [SimpleNamespace(width=0, order=()), SimpleNamespace(width=1, order=order)]
        return SimpleNamespace(lanes=lanes)

    def blocking(graph, counts, task):
        return "no token" if task == "b" and not counts["a"] else None

    monkeypatch.setattr(single_lane, "blocking_reason", blocking)
    graph = SimpleNamespace(repetition={"a": 2, "b": 1})
    assert one_lane_order(entries("aba"), graph) == ("a", "b", "a")
    with pytest.raises(SpecError, match="b cannot fire at its place in the order: no token"):
        one_lane_order(entries("baa"), graph)
    with pytest.raises(SpecError, match=r"are \{'a': 1, 'b': 1\}; the graph needs"):
        one_lane_order(entries("ab"), graph)


# --- environments


def test_failures_are_counted_and_the_first_ones_told():
    log = FailureLog()
    for n in range(EVENTS + 2):
        log.note(f"{n}", lost=2)
    log.note("no restart", restarts=0)
    assert (log.restarts, log.lost_transitions) == (EVENTS + 2, 2 * EVENTS + 4)
    assert log.events == [f"{n}" for n in range(EVENTS)]
    for restart, failure in ((True, None), (False, "one")):
        log = FailureLog()
        listen = external_envs.failure_listener(log, restart=restart)
        listen("one", 3)
        listen("two", 1)
        assert (log.failure, log.events, log.lost_transitions) == (failure, ["one", "two"], 4)


@pytest.fixture
def awake(monkeypatch):
    """A clock, and a process that has run all the time."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(external_envs, "monotonic", lambda: now.s)
    monkeypatch.setattr(external_envs, "_awake", {"checked_s": 999.0, "since_s": 0.0})
    return now


class Silent(Asked):
    """An environment that is asked something since a time that a test sets."""

    def __init__(self, name, since_s=0.0):
        super().__init__()
        self.name, self.slot[:] = name, memoryview(array("d", [since_s, 3, 17, 2]))


def test_a_step_is_overdue_after_its_limit_of_time_in_which_the_process_ran(awake):
    env = Silent("E")
    envs = {"x": Silent("X"), "y": env}
    for seconds, since_s, overdue in (
        (0.0, None, False),
        (0.0, 998.0, False),
        (0.5, 998.0, True),
        (2.0, 998.0, True),
        (2.5, 998.0, False),  # it was stopped in between
        (2.0, 998.0, False),
        (0.5, 998.0, True),
        (0.0, 1006.0, False),
    ):
        awake.s, env.slot[SINCE] = awake.s + seconds, since_s or 0.0
        found = external_envs.describe_overdue_env(envs, 2.0)
        where = "environment 'E' of y, number 3, episode 2, step 17,"
        assert found == (f"{where} has not answered for 2 s" if overdue else None)


def test_the_timer_interrupts_a_step_and_leaves_the_one_before(awake):
    external_envs._awake["checked_s"] = awake.s = 10_000.0
    env = Silent("E", 1.0)
    before = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 50_000.0, 60_000.0)
    try:
        with external_envs.interrupting_overdue_envs({"y": env}, 4000.0):
            left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
            assert (left_s, every_s) == (pytest.approx(1000.0, abs=500.0), pytest.approx(1000.0))
            with pytest.raises(TimeoutError, match=r"not answered for 4000 s \(train.env_time_l"):
                signal.raise_signal(signal.SIGALRM)
            env.slot[SINCE] = 0.0
            signal.raise_signal(signal.SIGALRM)
        assert signal.getsignal(signal.SIGALRM) is before
        assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(60_000.0)
        with external_envs.interrupting_overdue_envs({}, 4000.0):
            assert signal.getsignal(signal.SIGALRM) is before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Restored:
    name = "E"

    def __init__(self, error=None):
        self.error, self.got = error, []

    def snapshot(self):
        return [{"n": 1}]

    def restore(self, given):
        self.got.append(given)
        if self.error:
            raise self.error
        return ["said"]


def test_environments_come_back_from_their_snapshots_or_are_named():
    env = Restored()
    assert external_envs.snapshot({"x": env}) == {"x": [{"n": 1}]}
    assert external_envs.restore({"x": env}, {"x": [2], "y": [3]}) == ["said"]
    assert env.got == [[2]]
    for given, error, text in (
        ({}, None, "environments 'E' of x are not in the checkpoint, so it cannot be resumed"),
        ({"x": 1}, ValueError("other"), "^other$"),
        ({"x": 1}, KeyError("k"), "'E' of x cannot be restored from the checkpoint: KeyError: 'k'"),
    ):
        with pytest.raises(ValueError, match=text):
            external_envs.restore({"x": Restored(error)}, given)


# --- children


@pytest.mark.parametrize(
    ("request_", "status", "replies"),
    [
        (None, 1, []),
        ({"sources": "mine"}, 0, []),
        ({"sources": "mine", "fails": True}, 1, [{"error": "ValueError"}]),
        ({"sources": "other"}, 1, [{"error": "RuntimeError"}]),
    ],
)
def test_a_program_of_a_child_ends_with_its_status(request_, status, replies, monkeypatch):
    ignored, said, ran = [], [], []
    parent = SimpleNamespace(next_request=lambda: request_, reply=lambda **v: said.append(v))
    monkeypatch.setattr(child_process, "ParentConnection", lambda: parent)
    monkeypatch.setattr(child_process, "sources", lambda: SimpleNamespace(digest="mine"))
    monkeypatch.setattr(child_process.signal, "signal", lambda *given: ignored.append(given))

    def program(given, request):
        ran.append(request)
        if "fails" in request:
            raise ValueError

    assert child_process.serve(program, lambda error: type(error).__name__) == status
    assert said == replies
    assert len(ran) == (request_ is not None and request_["sources"] == "mine")
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    assert ignored == [(n, signal.SIG_IGN) for n in names]


def test_a_pace_is_held_until_its_time(monkeypatch):
    now, slept = [2_000_000_000], []
    monkeypatch.setattr(lane_recorder, "perf_counter_ns", lambda: now[0])

    def sleep(seconds):
        slept.append(seconds)
        now[0] += round(seconds * 1e9)

    monkeypatch.setattr(lane_recorder, "time", SimpleNamespace(sleep=sleep))
    recorder = LaneRecorder("", [], Sampling())
    recorder.hold(2.5)
    recorder.hold(1.0)
    assert (slept, recorder.held_ns) == ([0.5, 0.0], 500_000_000)
    with recorder.running():
        now[0] += 7
    with recorder.running():
        now[0] += 8
    assert recorder.wall_ns == 15
