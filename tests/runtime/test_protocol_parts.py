"""The parts of a run, each by itself: records of times, arrays in slots, cells, recovery, one lane
in one thread, environments that hang, children. Kernels and clocks are the test's."""

from __future__ import annotations

import os
import signal
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from pearl.errors import SpecError
from pearl.runtime import child_process, clock, cpu_wait
from pearl.runtime.child_process import ChildProcess, ParentConnection
from pearl.runtime.environments import external_envs, watchdog
from pearl.runtime.environments.external_envs import EVENTS, FailureLog
from pearl.runtime.lanes.async_actor import slot_of
from pearl.runtime.protocol import binding, channels, lane_recorder, recovery, single_lane
from pearl.runtime.protocol.channels import SharedArrays
from pearl.runtime.protocol.control_block import ControlBlock, wake_all
from pearl.runtime.protocol.lane_recorder import LaneRecorder, Place, Sampling, plan_sampling
from pearl.runtime.protocol.lane_schedule import Firing, Slots, Wait
from pearl.runtime.protocol.single_lane import (
    STOP,
    BoundCall,
    LaneError,
    SingleLaneRunner,
    one_lane_order,
    split_at_stop_points,
)
from pearl.runtime.remote.messages import TEXT, header_words, pack, unpack

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


def test_a_record_counts_rounds_that_were_one_call_and_knows_each_firing():
    recorder = LaneRecorder.of_calls(["a", "b", "a"], Sampling(1, 2, 4))
    assert recorder.places == (Place("a", 0, 0, 2), Place("b", 0, 0, 1), Place("a", 0, 1, 2))
    for number in (1, 2, 3, 4):
        recorder.add(2, number, 10, 15, lag=7)
    recorder.begin_timed()
    recorder.count(64)
    recorder.places = (*recorder.places[:2], Place("a", 3, 1, 2))
    recorder.keep(2, 5, 1, 2)
    found = recorder.to_json([("a", (call := SimpleNamespace(copied_ns=[9]))), ("a", call)])
    assert found == {
        "lane": "", "names": ["a", "b", "a"], "busy_ns": [0, 0, 20], "calls": [63, 0, 4],
        "waiting_ns": [0, 0, 0], "copied_ns": {"a": 9}, "held_ns": 0, "wall_ns": 0, "rounds": 65,
        "timed_rounds": 65, "stamp_s": lane_recorder.stamp_s(),
        "kept": [(2, 5, 10, 15, 7), (2, 7, 10, 15, 7), (2, 17, 1, 2, -1)],
    }  # fmt: skip
    assert recorder.to_json([("a", print), ("b", call)])["copied_ns"] == {"a": 0, "b": 9}


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


def test_threads_of_a_lane_are_this_one_and_its_helpers(monkeypatch):
    threads = [
        SimpleNamespace(name=name, native_id=n)
        for name, n in ((cpu_wait.HELPER, 5), ("other", 6), (cpu_wait.HELPER, None))
    ]
    known = SimpleNamespace(enumerate=lambda: threads, get_native_id=lambda: 4)
    monkeypatch.setattr(cpu_wait, "threading", known)
    assert cpu_wait.current_threads() == [(os.getpid(), 4), (os.getpid(), 5)]


# --- arrays


def test_arrays_in_shared_memory_begin_at_cache_lines_and_are_those_of_every_map():
    layout = [
        ("a", (3,), "float64"),
        ("b", (), "int8"),
        ("c", (0, 4), "float32"),
        ("d", (9,), "int64"),
    ]
    memory = SharedArrays(layout)
    first = memory.arrays["a"].ctypes.data
    places = [memory.arrays[n].ctypes.data - first for n in "abd"]
    assert places == [0, 64, 192]
    assert os.fstat(memory.handle).st_size == 192 + 128
    memory.arrays["d"][:] = range(9)
    again = SharedArrays(layout, os.dup(memory.handle))
    assert again.arrays["d"].tolist() == list(range(9))
    assert channels.layout_of(again.arrays) == layout
    again.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(again.handle)
    copied = channels.copy_to_shared_memory({"x": np.arange(3), "y": np.ones((2, 2))})
    assert [copied.arrays[n].tolist() for n in "xy"] == [[0, 1, 2], [[1, 1], [1, 1]]]
    assert SharedArrays([]).arrays == {}


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


# --- cells


def test_each_lane_and_task_has_a_cell_of_its_own():
    size = ControlBlock.size(2, 3, 1)
    cells = np.zeros(size, np.int64)
    c = ControlBlock(("a", "b"), 3, cells, 1)
    assert c.sleepers == 4
    lanes = range(3)
    own = [*map(c.count_cell, "ab"), *map(c.flushed_cell, lanes), *map(c.sleep_cell, range(4))]
    whole = [*own, *c.control_cells]
    assert whole == list(range(14))
    assert c.control_cells == [c.limit_cell, c.flush_cell, c.stop_cell, c.park_cell, c.end_cell]
    assert size * 8 == 14 * 64
    for cell in whole:
        c.write(cell, 100 + cell)
    c.reset({"a": 4, "b": 6}, 2, limit=3)
    assert [c.read(cell) for cell in whole] == [
        4, 6, 2, 2, 2, *range(105, 109), 3, 2, 111, 112, 2,
    ]  # fmt: skip
    sets = []
    events = [SimpleNamespace(set=partial(sets.append, n)) for n in range(4)]
    for lane, asleep in enumerate((1, 0, 2, 1)):
        c.write(c.sleep_cell(lane), asleep)
    c.wake_sleepers(events)
    c.wake_sleepers(events, but=2)
    wake_all(events)
    assert sets == [0, 2, 3, 0, 3, 0, 1, 2, 3]


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


@pytest.mark.parametrize(
    ("structure", "count", "waits"),
    [("environment", 5, True), ("environment", 4, False), ("network", 5, False)],
)
def test_a_lane_is_in_an_env_step_once_its_tokens_are_there(structure, count, waits, monkeypatch):
    c = ControlBlock(("a", "b"), 1, np.zeros(ControlBlock.size(2, 1), np.int64))
    c.write(0, 2)
    c.write(1, count)
    kind = SimpleNamespace(structure=structure)
    monkeypatch.setattr(recovery, "kind_of", lambda kernel: kind)
    graph = SimpleNamespace(repetition={"a": 1}, task=lambda t: SimpleNamespace(kernel=None))
    lanes = [SimpleNamespace(firings=(firing("a", 1, waits=(Wait("b", 1, 2),)),))]
    protocol = SimpleNamespace(graph=graph, lanes=lanes)
    assert recovery.waits_in_env_step(protocol, 0, c) is waits  # round 2 needs 1 + 2 · 2


@pytest.mark.parametrize(
    ("before", "count", "learns", "works"),
    [
        (0, 9, False, range(5, 9)),  # iteration 2 on, two firings each, one of delay
        (0, 30, False, range(5, 21)),
        (7, 9, False, range(7, 9)),
        (0, 9, True, range(7, 9)),
        (0, 4, False, range(5, 5)),
    ],
)
def test_firings_do_work_within_the_range_of_iterations(before, count, learns, works):
    protocol = SimpleNamespace(graph=SimpleNamespace(repetition={"a": 2}), delay={"a": 1})
    span = recovery.WorkRange(3, 10, 2)
    assert recovery._works(protocol, "a", before, count, span, learns) == works


def test_counts_at_the_start_are_those_of_streams_and_cursor():
    arrays = {"rng.x": np.array([1, 2]), "replay.cursor": np.array([3]), "other": np.array([4])}
    found = recovery.StartCounts.from_arrays(arrays, {"a": 5})
    assert (found.fired, found.counted) == ({"a": 5}, {"rng.x": (1, 2), "replay.cursor": (3,)})


# --- one lane in this thread


class One:
    """A lane of calls by name; of these, "u" can be interrupted. log: what was called."""

    def __init__(self, monkeypatch, names="abu", learns="", warm=0, more=False, **given):
        self.now, self.log, self.then, self.copied = 1000, [], {}, []
        self.arrays = {STOP: np.zeros(2, np.int64)}
        if more:
            self.arrays["loop.more"] = np.zeros(1, np.int64)
        for module in (single_lane, lane_recorder):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(single_lane, "is_interruptible", lambda kernel: kernel == "u")
        jobs = {n: SimpleNamespace(name=n, kernel=n, tasks=(n,)) for n in names}
        steps = [BoundCall(jobs[n], self.call(n), n in learns) for n in names]
        residency = SimpleNamespace(
            upload_all=lambda: self.copied.append("up"), download="download",
            download_all=lambda: self.copied.append("down"),
        )  # fmt: skip
        self.runner = SingleLaneRunner(steps, self.arrays, warm, residency, **given)

    def call(self, name):
        def call():
            self.log.append(name)
            self.now += 10
            self.then.get(name, lambda: None)()

        return call

    def called(self):
        found, self.log[:] = "".join(self.log), []
        return found

    def stop(self, steps=0):
        self.arrays[STOP][:] = 1, steps


@pytest.fixture
def one(monkeypatch):
    return partial(One, monkeypatch)


def test_iterations_run_to_their_end_and_the_last_is_timed(one):
    x = one(learns="bu", warm=2)
    assert x.copied == ["up"]
    assert (x.runner.run(2, 9), x.runner.run(3, 9)) == (2, 3)
    assert (x.called(), x.copied) == ("aaabu", ["up"])
    assert x.runner.run(5, 5, timed=True) == 5
    assert (x.called(), x.copied) == ("abuabu", ["up", "down"])
    assert x.runner.times_ns == {"a": [10], "b": [10], "u": [10]}
    assert x.runner.run(5, 9, timed=True) == 5
    assert x.called() == ""
    (record,) = x.runner.records
    assert (record["rounds"], record["timed_rounds"]) == (5, 1)
    assert x.runner.halt() == 5
    assert x.copied == ["up", "down", "down"]
    assert x.runner.under_way() == {}
    assert x.runner.fetch == "download"
    assert [[s.job.name for s in part] for part in split_at_stop_points(x.runner._steps[0])] == [
        ["a", "b", "u"]
    ]


@pytest.mark.parametrize("timed", [False, True])
def test_a_stop_word_ends_an_iteration_after_a_part_and_the_next_run_goes_on(one, timed):
    x = one("aub")
    x.then["u"] = x.stop
    end = 1 if timed else 9
    assert x.runner.run(end, 9, timed=timed) == 0
    assert (x.called(), x.runner.under_way()) == ("au", {"part": 1})
    x.then.clear()
    assert x.runner.run(2, 9) == 2
    assert x.called() == "baub"
    assert x.runner.under_way() == {}
    x = one("aub")
    x.then["b"] = x.stop  # after the last part, the iteration is over
    assert x.runner.run(end, 9, timed=timed) == 1
    assert (x.called(), x.runner.under_way()) == ("aub", {})
    assert x.arrays[STOP][0] == 1
    x.then.clear()
    assert x.runner.run(2, 9) == 2


@pytest.mark.parametrize("timed", [False, True])
def test_a_firing_that_was_interrupted_is_continued_by_the_next_call_alone(one, timed):
    x = one("aub")
    x.then["u"] = lambda: x.stop(3)
    assert x.runner.run(1 if timed else 9, 9, timed=timed) == 0
    assert (x.called(), x.runner.under_way()) == ("au", {"part": 0})
    assert x.runner.run(9, 9) == 0
    assert (x.called(), x.runner.under_way()) == ("u", {"part": 0})
    x.then["u"] = lambda: x.arrays[STOP].__setitem__(1, 0)
    assert x.runner.run(2, 9) == 2
    assert x.called() == "ubaub"
    # of the interrupted iteration, u has the time of its three calls if its begin was timed
    times = {"a": [10]} if timed else {}
    assert x.runner.times_ns == times | ({"u": [30]} if timed else {}) | {"b": [10]}


def test_a_run_goes_on_in_the_part_of_its_checkpoint(one):
    x = one("aub", iteration=4, under_way={"part": 1})
    assert x.runner.run(5, 9) == 5
    assert x.called() == "b"
    with pytest.raises(LaneError, match="is in part 2 of an iteration that has 2 parts"):
        one("aub", under_way={"part": 2})


def test_one_call_that_is_a_whole_iteration_does_as_many_as_are_asked(one):
    x = one("u", more=True, sampling=Sampling(1, 70, 72))
    seen = []
    more = x.arrays["loop.more"]

    def whole():
        seen.append(int(more[0]))
        more[0] = 0

    x.then["u"] = whole
    assert x.runner.run(74, 99) == 74
    assert seen == [69, 0, 0, 1]
    (record,) = x.runner.records
    assert (record["rounds"], record["calls"]) == (74, [74])
    assert [k[1] for k in record["kept"]] == [70, 71]

    def cut():
        more[0], x.arrays[STOP][:] = 5, (1, 2)

    x.then["u"] = cut
    assert x.runner.run(90, 99) == 84  # of 16, five were left, and one is half done
    assert (x.runner.under_way(), more[0]) == ({"part": 0}, 0)


def test_a_pace_spaces_the_beginnings_of_iterations(one, monkeypatch):
    x = one("a", pace_s=0.5)
    monkeypatch.setattr(single_lane, "time", SimpleNamespace(perf_counter=lambda: 7.0))
    held = []
    x.runner.recorder.hold = held.append
    x.runner.run(3, 9)
    assert held == [7.5, 8.0, 8.5]
    x.then["a"] = x.stop
    x.runner.run(5, 9)
    assert held == [7.5, 8.0, 8.5]


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


def test_a_step_is_overdue_after_its_limit_of_time_in_which_the_process_ran(awake):
    env = SimpleNamespace(name="E", since_s=None)
    envs = {"x": SimpleNamespace(name="X", since_s=None), "y": env}
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
        awake.s, env.since_s = awake.s + seconds, since_s
        found = external_envs.describe_overdue_env(envs, 2.0)
        assert found == ("environment 'E' of y has not answered for 2 s" if overdue else None)


def test_the_timer_interrupts_a_step_and_leaves_the_one_before(awake):
    external_envs._awake["checked_s"] = awake.s = 10_000.0
    env = SimpleNamespace(name="E", since_s=1.0)
    before = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 50_000.0, 60_000.0)
    try:
        with external_envs.interrupting_overdue_envs({"y": env}, 4000.0):
            left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
            assert (left_s, every_s) == (pytest.approx(1000.0, abs=500.0), pytest.approx(1000.0))
            with pytest.raises(TimeoutError, match=r"not answered for 4000 s \(train.env_time_l"):
                signal.raise_signal(signal.SIGALRM)
            env.since_s = None
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


def test_environments_come_back_from_their_snapshots_or_are_named():
    env = Restored()
    assert external_envs.snapshot({"x": env}) == {"x": [{"n": 1}]}
    external_envs.restore({"x": env}, {"x": [2], "y": [3]})
    assert env.got == [[2]]
    for given, error, text in (
        ({}, None, "environments 'E' of x are not in the checkpoint, so it cannot be resumed"),
        ({"x": 1}, ValueError("other"), "^other$"),
        ({"x": 1}, KeyError("k"), "'E' of x cannot be restored from the checkpoint: KeyError: 'k'"),
    ):
        with pytest.raises(ValueError, match=text):
            external_envs.restore({"x": Restored(error)}, given)


class Exited(BaseException):
    pass


def test_a_watchdog_ends_the_process_after_four_limits(monkeypatch):
    threads, said, env = [], [], SimpleNamespace(name="E", since_s=0.0)

    class Thread:
        def __init__(self, target, daemon, name, args=()):
            self.target, self.args, self.name, self.done = target, args, name, []
            threads.append(self)

        def start(self):
            self.done.append("start")

        def join(self):
            self.done.append("join")

    class Event:
        waits: ClassVar = []
        answers: ClassVar = [False, False, True]

        def wait(self, seconds):
            self.waits.append(seconds)
            return self.answers.pop(0)

        def set(self):
            self.answers = None

        def is_set(self):
            return self.answers is None

    limits, overdue = [], iter([None, "environment 'E' of x has not answered for 8 s"])
    monkeypatch.setattr(
        watchdog, "describe_overdue_env", lambda envs, s: limits.append(s) or next(overdue)
    )
    monkeypatch.setattr(watchdog, "threading", SimpleNamespace(Thread=Thread, Event=Event))

    def leave(status):
        said.append(status)
        raise Exited

    with watchdog.exiting_on_hang({"x": env}, 2.0):
        beat, lock = threads
        beats, over, checks, check_us, _, size = lock.args
        assert (over - beats, checks, check_us) == (8, 400, 20_000)
        assert size == len(watchdog._last_words(
            "environment 'E' of x has held the interpreter's lock for 8 s"
        ))  # fmt: skip
        monkeypatch.setattr(watchdog.os, "write", lambda handle, text: said.append((handle, text)))
        monkeypatch.setattr(watchdog.os, "_exit", leave)
        with pytest.raises(Exited):
            beat.target()
        monkeypatch.undo()
    assert (Event.waits, limits) == ([0.5, 0.5], [8.0, 8.0])
    words = b"pearl: environment 'E' of x has not answered for 8 s and cannot be interrupted; "
    assert said[0][0] == 2
    assert said[0][1].startswith(words)
    assert said[1] == watchdog.STATUS
    assert [t.done for t in threads] == [["start", "join"]] * 2
    with watchdog.exiting_on_hang({}, 2.0), watchdog.env_time_limit({}, {}, 2.0):
        assert len(threads) == 2


# --- children


class Forked:
    """A child whose parent has the other ends of its pipes."""

    pid, returncode, cpu_s = os.getpid(), None, 1.5

    def __init__(self, program, arguments, *, stdin, output, handles):
        self.requests = os.fdopen(os.dup(stdin), "rb", buffering=0)
        self.replies = os.fdopen(os.dup(handles[0]), "wb", buffering=0)
        self.given, self.waits, self.stays = (program, arguments, output, handles[1:]), [], False
        Forked.made = self

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self.waits.append(timeout)
        if self.stays and timeout is not None:
            raise child_process.subprocess.TimeoutExpired("", timeout)
        self.replies.close()

    def kill(self):
        self.waits.append("kill")


@pytest.fixture
def child(monkeypatch):
    monkeypatch.setattr(child_process, "ForkedProcess", Forked)
    replies = []
    made = ChildProcess("m:f", [7], {"spec": 1}, replies.append)
    made.replies = replies
    yield made, Forked.made
    Forked.made.requests.close()


def test_a_child_gets_requests_and_its_replies_are_handled_in_order(child):
    parent, forked = child
    assert forked.given == ("m:f", [], 2, [7])
    assert b'{"spec": 1, "sources": "' in forked.requests.readline()
    parent.send({"x": 1})
    assert forked.requests.readline() == b'{"x": 1}\n'
    forked.replies.write(b'{"a": 1}\nno json\n[2]\n{"b": 2}\n')
    assert parent.wait_for(lambda: len(parent.replies) == 2, 60.0)
    assert parent.replies == [{"a": 1}, {"b": 2}]
    assert not parent.wait_for(lambda: False, 0.0)
    assert (parent.pid, parent.is_closed, parent.exit_reason()) == (os.getpid(), False, None)
    assert parent.cpu_s() > 0
    forked.replies.write(b'{"c": 3}\n')
    parent.end()
    assert parent.replies[-1] == {"c": 3}
    assert forked.waits == [10.0]
    assert parent.is_closed
    for code, reason in ((-9, "signal 9"), (3, "exit status 3")):
        forked.returncode = code
        assert parent.exit_reason() == f"its process {os.getpid()} ended with {reason}"
    assert parent.cpu_s() == 1.5


def test_a_child_that_does_not_end_is_killed(child):
    parent, forked = child
    forked.stays = True
    parent.end()
    assert forked.waits == [10.0, "kill", None]
    assert not parent._listener.is_alive()


def test_a_child_finds_its_handles_and_replies_in_lines(monkeypatch, tmp_path):
    with (tmp_path / "replies").open("wb") as file, (tmp_path / "requests").open("w+") as requests:
        requests.write('{"x": 1}\n')
        requests.seek(0)
        monkeypatch.setattr(child_process.sys, "argv", ["m", f"40={os.dup(file.fileno())}", "41=8"])
        monkeypatch.setattr(child_process.sys, "stdin", requests)
        parent = ParentConnection()
        assert parent.handle(41) == 8
        parent.reply(ready=True)
        assert (parent.next_request(), parent.next_request()) == ({"x": 1}, None)
        parent._replies.close()
    assert (tmp_path / "replies").read_text() == '{"ready": true}\n'


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
