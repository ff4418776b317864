"""Messages between two hosts by a kept schedule, the learner of actors in any order, and lanes of
an engine, each by itself; and processes as clients of the fork server see them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.runtime import fork_server
from pearl.runtime.fork_server import ForkedProcess
from pearl.runtime.lanes import async_learner
from pearl.runtime.lanes import engine as engine_module
from pearl.runtime.lanes.async_actor import (
    ALL,
    STEPS,
    AsyncActor,
    granted_counter,
    lane_name,
    version_counter,
)
from pearl.runtime.lanes.async_learner import ACTED, AsyncLearner
from pearl.runtime.lanes.engine import Engine
from pearl.runtime.protocol.control_block import BEGIN, PARKED, ControlBlock, WorkRange
from pearl.runtime.protocol.lane_recorder import LaneRecorder, Place, Sampling
from pearl.runtime.protocol.single_lane import LaneError
from pearl.runtime.remote import async_mailbox
from pearl.runtime.remote.async_mailbox import GrantMailbox, StepMailbox
from pearl.runtime.remote.batching import GroupFlows, MessageFlow
from pearl.runtime.remote.mailbox import mailboxes
from pearl.runtime.remote.messages import header_words
from tests.runtime.test_kept_schedules import remote_groups, run_arrays, schedule


def control_block(tasks, lanes=2, groups=0):
    cells = np.zeros(ControlBlock.size(len(tasks), lanes, groups), np.int64)
    return ControlBlock(tuple(tasks), lanes, cells, groups)


class Host:
    """One of two hosts of the plan `roomy`: its arrays, counts and mailboxes."""

    def __init__(self):
        self.p = schedule("roomy")
        (group,) = remote_groups(self.p)
        self.arrays = {n: a.copy() for n, a in run_arrays(self.p)[1].items()}
        self.control = control_block(self.p.graph.repetition)
        flows = GroupFlows(
            (MessageFlow(("param_sync",), (1,), 2),),
            (MessageFlow(("inference", "env_step"), (1, 1), 2),),
        )
        context = SimpleNamespace(
            protocol=self.p, arrays=self.arrays, span=WorkRange(3, 99), learning=("param_sync",)
        )
        self.into, self.out = mailboxes(context, group, flows, self.control)

    def fire(self, **counts):
        for task, count in counts.items():
            self.control.write(self.control.count_cell(task), count)

    def end(self, flush=0, end=0):
        self.control.write(self.control.flush_cell, flush)
        self.control.write(self.control.end_cell, end)

    def count(self, task):
        return self.control.read(self.control.count_cell(task))


@pytest.fixture
def hosts():
    home, far = Host(), Host()
    for each in (home, far):
        each.end(end=5)
        each.into.start(0)
        each.out.start(0)
    return home, far


def test_messages_bring_their_firings_in_slots_and_count_once(hosts):
    home, far = hosts
    slots = home.p.slots["param_sync"]
    for slot in range(slots):
        home.arrays[f"policy.q@{slot}" if slot else "policy.q"][:] = slot + 1
    home.fire(param_sync=1)
    assert (home.into.ready, list(home.into.ready_messages())) == (False, [])
    home.fire(param_sync=3)
    assert home.into.ready
    (first,) = home.into.ready_messages()
    assert (header_words(first)[:2], home.into.count_ranges(first)) == ([1 - 1, 0], ([0], [2]))
    size = home.arrays["policy.q"].nbytes
    assert (home.into.traffic.messages, home.into.traffic.payload_bytes) == (1, 2 * size)
    assert not home.into.ready
    assert far.into.required_counts(first) == {"inference": 2}
    far.into.receive(first)
    assert far.count("param_sync") == 2
    held = [far.arrays[f"policy.q@{s}" if s else "policy.q"][0] for s in range(slots)]
    assert held == [1, 2, *[0] * (slots - 2)]
    # the version of a copy is known once learning has begun, in iteration 3
    assert far.arrays["version.param_sync"].tolist() == [0] * slots
    far.arrays["policy.q"][:] = 77
    far.into.receive(first)
    assert (far.count("param_sync"), far.arrays["policy.q"][0]) == (2, 77)
    assert (far.into.traffic.messages, far.into.traffic.payload_bytes) == (2, 4 * size)
    home.fire(param_sync=5)
    second, third = home.into.ready_messages()
    assert [home.into.count_ranges(m) for m in (second, third)] == [([2], [4]), ([4], [5])]
    far.into.receive(second)
    assert far.arrays["version.param_sync"].tolist() == [0, 0, 0, 4, *[0] * (slots - 4)]
    far.into.receive(third)
    assert far.count("param_sync") == 5
    assert not home.into.done
    home.end(flush=5)
    assert home.into.done
    home.into.start(5)
    assert not home.into.done
    assert home.into.end == 5
    home.end(flush=5, end=9)
    assert home.into.end == 9
    home.end(flush=7, end=9)
    assert home.into.end == 7


def test_firings_of_several_tasks_wait_for_the_last_unless_lanes_are_parked(hosts):
    home, far = hosts
    far.fire(inference=2, env_step=1)
    assert list(far.out.ready_messages()) == []
    far.fire(env_step=2)
    (whole,) = far.out.ready_messages()
    assert far.out.count_ranges(whole) == ([0, 0], [2, 2])
    assert home.out.required_counts(whole) == {"param_sync": 0, "replay_insert": 0}
    far.fire(inference=3)
    assert list(far.out.ready_messages()) == []
    (rest,) = far.out.ready_messages(rest=True)
    assert far.out.count_ranges(rest) == ([2, 2], [3, 2])
    assert list(far.out.ready_messages(rest=True)) == []
    for message, counts in ((whole, (2, 2)), (rest, (3, 2))):
        home.out.receive(message)
        assert (home.count("inference"), home.count("env_step")) == counts
    assert home.out.tasks == ["inference", "env_step"]


# --- actors in any order

COUNTERS = [*(f"{t}#{i}" for i in range(3) for t in ("inference", "env_step")),
            *(c(i) for i in range(3) for c in (granted_counter, version_counter))]  # fmt: skip


class Event:
    def __init__(self):
        self.sets, self.waits, self.then = 0, [], []

    def set(self):
        self.sets += 1

    def wait(self, seconds):
        self.waits.append(seconds)
        self.then.pop(0)()


@pytest.fixture
def learner(monkeypatch):
    """The learner of three actors on lanes 1 to 3, whose rows may be one copy old."""
    x = AsyncLearner.__new__(AsyncLearner)
    x.control, x.poll, x._spins = control_block(COUNTERS, 4), lambda: x.polls.append(1), 2
    x.polls, x.wake_events = [], [Event() for _ in range(4)]
    q = {f"env_step#{i}": 1 for i in range(3)} | {"param_sync": 1}
    x.protocol = SimpleNamespace(home=0, graph=SimpleNamespace(repetition=q))
    x.arrays = {ACTED: np.zeros(3, np.int64)}
    x.lags, x._bound, x._warm, x._copies = {"policy_lag": {}}, 1, 0, range(3)
    x._granted, x._stored, x._version = [0, 0, 0], [0, 0, 0], [0, 0, 0]
    x._newest, x.iteration, x._looked = 0, 0, 0.0
    x._acted = [x.control.count_cell(f"inference#{i}") for i in range(3)]
    x._stepped = [x.control.count_cell(f"env_step#{i}") for i in range(3)]
    x._lane_of = {0: 1, 1: 2, 2: 3}
    x._watched_cells = np.array([*x._acted, *x._stepped], np.int64)
    x.stored = []
    x._storing = [lambda i=i: x.stored.append(i) for i in range(3)]
    x._copying = [lambda s=s: x.stored.append(f"copy {s}") for s in range(2)]
    x._order = ("replay_insert", "update", "param_sync")
    x._budgets = async_learner.store_budgets(x._order, 3, 1)
    x._others = {"update": lambda: x.stored.append("update")}
    x._learning, x._place, x.times_ns = {"update", "param_sync"}, 0, {}
    x.recorder = LaneRecorder("x", [Place(t) for t in x._order], Sampling())
    return x


def step(x, *copies):
    """These actors do the step that they were granted."""
    for i in copies:
        for cells in (x._acted, x._stepped):
            x.control.write(cells[i], x._granted[i])


def test_steps_are_granted_while_stores_are_left_for_their_rows(learner):
    x, c = learner, learner.control
    x._newest = 4
    c.write(c.sleep_cell(2), 1)
    x._grant(2)
    assert (x._granted, x._version) == ([1, 1, 0], [4, 4, 0])
    assert [c.read(c.count_cell(granted_counter(i))) for i in range(3)] == [1, 1, 0]
    assert [c.read(c.count_cell(version_counter(i))) for i in range(3)] == [4, 4, 0]
    assert [e.sets for e in x.wake_events] == [0, 0, 1, 0]
    x._grant(2)
    assert x._granted == [1, 1, 0]
    x._stored[0] = 1
    x._newest = 5
    x._grant(2)
    assert (x._granted, x._version) == ([2, 1, 0], [5, 4, 0])
    assert x.waits_for() == ["env_step#0", "env_step#1"]
    assert [x._under_way(i) for i in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("versions", "ready", "budget", "chosen"),
    [
        ((4, 4, 4), (0, 1, 2), [3, 6], 0),
        ((4, 4, 4), (2,), [3, 6], 2),
        ((4, 4, 4), (), [3, 6], None),
        ((4, 3, 4), (0, 1, 2), [3, 6], 1),  # the oldest
        ((4, 3, 4), (0, 2), [3, 6], 0),
        ((4, 3, 4), (0, 2), [1, 6], None),  # row 1 must be stored next
        ((4, 3, 4), (0, 1, 2), [1, 6], 1),
        ((3, 4, 3), (1, 2), [2, 6], 2),  # rows 0 and 2 must be stored within two
        ((3, 4, 3), (1,), [2, 6], None),
        ((3, 4, 3), (1, 2), [3, 6], 2),
    ],
)
def test_rows_whose_deadlines_are_tight_go_first(learner, versions, ready, budget, chosen):
    learner._newest, learner._granted = 4, [1, 1, 1]
    learner._version = list(versions)
    step(learner, *ready)
    assert learner._choose_actor(budget) == chosen


def test_an_iteration_stores_copies_and_counts_ages(learner, monkeypatch):
    x = learner

    def wait_until(true, event=STEPS):
        step(x, sum(type(each) is int for each in x.stored) % 3)  # one actor after the other

    x.wait_until = wait_until
    clock = SimpleNamespace(monotonic=lambda: 9.0, perf_counter_ns=lambda: 0)
    monkeypatch.setattr(async_learner, "time", clock)
    x.iterate(timed=False)
    assert x.stored == [0, 1, 2, "update", "copy 0"]
    assert (x._newest, x.iteration, x._stored, x._granted) == (1, 1, [1, 1, 1], [2, 2, 2])
    assert (x.polls, x._looked) == ([1], 9.0)
    x.stored.clear()
    x.iterate(timed=True)
    assert x.stored == [0, 1, 2, "update", "copy 1"]
    assert set(x.times_ns) == set(x._order)
    assert x.lags == {"policy_lag": {0: 3, 1: 3}}
    assert len(x.polls) == 1
    assert (x.recorder.rounds, x.recorder.calls) == (2, [2, 2, 2])
    x.halt()
    assert x.arrays[ACTED].tolist() == [2, 2, 2]  # acted with version 1
    x._warm, x.stored[:] = 9, []
    x.iterate(timed=False)
    assert x.stored == [0, 1, 2]


def test_parameters_go_to_a_slot_that_no_actor_reads(learner, monkeypatch):
    x, asked = learner, []
    x._newest, x._granted, x._version = 2, [3, 1, 1], [1, 2, 1]

    def wait_until(true, event):
        asked.append((true(), event))
        x.control.write(x._acted[0], 3)
        x.control.write(x._acted[2], 1)
        asked.append((true(), event))

    x.wait_until = wait_until
    x._publish_parameters()
    assert asked == [(False, ALL), (True, ALL)]  # version 1 is in slot 0, version 2 in slot 1
    assert (x.stored, x._newest) == (["copy 0"], 3)


def test_a_learner_sleeps_until_a_count_changes(learner, monkeypatch):
    x, c = learner, learner.control
    mine, event = c.sleep_cell(0), x.wake_events[0]
    seen, now = [], iter([100, 350])
    clock = SimpleNamespace(monotonic=lambda: 9.0, perf_counter_ns=lambda: next(now))
    monkeypatch.setattr(async_learner, "time", clock)
    event.then = [
        lambda: seen.append(c.read(mine)),
        lambda: (seen.append(c.read(mine)), c.write(x._acted[1], 1)),
    ]
    x._place = 2
    x.wait_until(lambda: c.read(x._acted[1]) == 1, ALL)
    assert (seen, event.waits, c.read(mine), x.polls) == ([ALL, ALL], [0.05] * 2, 0, [1, 1])
    assert x.recorder.waiting_ns == [0, 0, 250]
    x.wait_until(lambda: True)
    assert len(event.waits) == 2


def test_a_learner_goes_on_with_the_transitions_that_actors_hold(learner):
    x = learner
    x._warm = 2
    x.arrays[ACTED][:] = 0, 5, 6
    x.begin_segment(5)
    assert (x.iteration, x._newest) == (5, 5)
    assert (x._granted, x._stored) == ([5, 5, 5], [5, 4, 4])
    assert x._version[1:] == [4, 5]
    read = x.control.read
    assert [read(x.control.count_cell(granted_counter(i))) for i in range(3)] == [5, 5, 5]
    x.arrays[ACTED][:] = 0
    x.begin_segment(0)
    assert x._newest == 2
    for acted in (4, 7):
        x.arrays[ACTED][1] = acted
        with pytest.raises(
            LaneError, match=f"any_order.acted of actor 1 is {acted}: .*{acted - 1}"
        ):
            x.begin_segment(5)


def test_an_actor_does_what_is_granted_and_wakes_the_learner(monkeypatch):
    x, c = AsyncActor.__new__(AsyncActor), control_block(COUNTERS, 4)
    x.control, x.number, x._home, x.spins, x.name = c, 1, 0, 2, "x"
    x.wake_events, x.polls, log, ends = [Event() for _ in range(4)], [], [], []
    x.poll = lambda: x.polls.append(c.read(c.sleep_cell(1)))
    x.times_ns, x._tasks = {}, ("inference#0", "env_step#0")
    x._counts = tuple(map(c.count_cell, x._tasks))
    x._granted = np.array([c.count_cell(granted_counter(0))])
    x._version = c.count_cell(version_counter(0))
    x._acting = [lambda s=s: log.append(f"act {s}") for s in range(2)]
    x._stepping = lambda: log.append("step")
    x.recorder = LaneRecorder("x", [Place(t) for t in x._tasks], Sampling(1, 0, 9))
    x.on_segment_end = ends.append

    def grant(steps, version):
        c.write(x._version, version)
        c.write(int(x._granted[0]), steps)

    c.write(c.sleep_cell(0), STEPS)
    x.wake_events[1].then = [
        lambda: grant(1, 2),
        lambda: (grant(2, 3), c.write(c.sleep_cell(0), ALL)),
        lambda: c.write(c.flush_cell, 7),
        lambda: c.write(c.stop_cell, 1),
    ]
    x.serve()
    assert log == ["act 1", "step", "act 0", "step"]
    assert [c.read(cell) for cell in x._counts] == [2, 2]
    assert x.wake_events[0].sets == 1 + 2 + 1  # not by the first inference alone; by the flush too
    assert (ends, c.read(c.flushed_cell(1))) == ([7], 7)
    assert x.wake_events[1].waits == [0.05] * 4
    assert (x.polls, c.read(c.sleep_cell(1))) == ([0] * 4, 0)
    assert {name: len(times) for name, times in x.times_ns.items()} == dict.fromkeys(x._tasks, 1)
    assert (x.recorder.rounds, x.recorder.calls) == (2, [2, 2])
    assert [k[:2] for k in x.recorder.kept] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    log.clear()
    c.write(x._counts[0], 3)  # a process that died had chosen the actions of step 2
    x._step(2)
    assert log == ["step"]
    assert x.record()["lane"] == "x"


@pytest.fixture
def any_order(monkeypatch):
    """Makes the mailboxes of one host for the actor 1, whose lane is 2."""
    monkeypatch.setattr(async_mailbox, "copy_of", lambda protocol, lane: lane - 1)

    def messages(protocol, task, readers):
        names = {"param_sync": ["q"], "env_step#1": ["obs", "row"]}[task]
        rows = {"row": (slice(1, 3),)}
        assert list(readers) == {"param_sync": ["inference#1"], "env_step#1": ["param_sync"]}[task]
        return SimpleNamespace(parts=[SimpleNamespace(name=n, rows=rows.get(n)) for n in names])

    monkeypatch.setattr(async_mailbox, "TaskMessages", messages)

    def make():
        arrays = {n: np.zeros(4) for n in ("q", "q@1", "obs", "row")}
        tasks = ("inference#1", "env_step#1")
        lane = SimpleNamespace(tasks=tasks)
        graph = SimpleNamespace(
            tasks=[SimpleNamespace(name="param_sync", copies=True)],
            repetition=dict.fromkeys((*tasks, "param_sync")),
        )
        protocol = SimpleNamespace(lanes=[None, None, lane], graph=graph, slots={"param_sync": 2})
        context = SimpleNamespace(protocol=protocol, arrays=arrays)
        group, control = SimpleNamespace(lanes=(2,)), control_block(COUNTERS, 3)
        return control, arrays, *async_mailbox.async_mailboxes(context, group, control)

    return make


def test_grants_bring_new_parameters_once(any_order):
    c, arrays, grants, _ = any_order()
    far, there, other, _ = any_order()
    steps, version = c.count_cell(granted_counter(1)), c.count_cell(version_counter(1))
    assert isinstance(grants, GrantMailbox)
    grants.start(0)
    assert (grants.ready, grants.done, list(grants.ready_messages())) == (False, True, [])
    arrays["q@1"][:] = 5
    c.write(steps, 3)
    c.write(version, 2)
    assert grants.ready
    (first,) = grants.ready_messages()
    assert list(grants.ready_messages()) == []
    assert other.required_counts(first) == {"env_step#1": 2}
    other.receive(first)
    assert (there["q@1"].tolist(), there["q"].tolist()) == ([5] * 4, [0] * 4)
    assert (far.read(steps), far.read(version)) == (3, 2)
    c.write(steps, 4)
    (second,) = grants.ready_messages()
    assert second.size == first.size - 32
    other.receive(second)
    assert far.read(steps) == 4
    assert (grants.traffic.messages, grants.traffic.payload_bytes) == (2, 32)


def test_steps_bring_their_transitions_and_count_once(any_order):
    c, arrays, _, steps = any_order()
    far, there, _, other = any_order()
    assert isinstance(steps, StepMailbox)
    acted, stepped = (c.count_cell(t) for t in ("inference#1", "env_step#1"))
    c.write(stepped, 2)
    steps.start(0)
    assert (steps.ready, steps.done) == (False, True)
    arrays["obs"][:], arrays["row"][:] = 3, 4
    c.write(stepped, 3)
    assert (steps.ready, steps.done) == (True, False)
    (message,) = steps.ready_messages()
    assert list(steps.ready_messages()) == []
    other.receive(message)
    assert (there["obs"].tolist(), there["row"].tolist()) == ([3] * 4, [0, 4, 4, 0])
    assert (far.read(acted), far.read(stepped)) == (3, 3)
    there["obs"][:] = 7
    other.receive(message)
    assert there["obs"][0] == 7
    assert (other.traffic.messages, other.traffic.payload_bytes) == (2, 2 * 48)
    assert (steps.traffic.messages, steps.traffic.payload_bytes) == (1, 48)


def test_an_actor_is_named_by_its_copy():
    part = SimpleNamespace(part=SimpleNamespace(replica=2))
    lane = SimpleNamespace(name="cpu.1", tasks=("a",))
    for found, name in ((part, "cpu.1 (actor 2)"), (SimpleNamespace(part=None), "cpu.1")):
        graph = SimpleNamespace(task=lambda t, found=found: found)
        assert lane_name(SimpleNamespace(lanes=[lane], graph=graph), 0) == name


# --- the engine


class Runner:
    """This thread's lane. runs: what it was asked; interrupts: at the run of that iteration."""

    def __init__(self, ahead=1):
        self.ahead, self.begin, self.round, self.name = ahead, 0, 0, "home"
        self.runs, self.interrupted, self.interrupts, self.environments = [], False, None, {}
        self.times_ns, self.lags = {"a": [1]}, {}

    def run(self, end, *, timed):
        self.runs.append((end, timed))
        self.round = end - self.ahead
        if self.interrupts is not None and self.interrupts <= end:
            self.interrupted, self.round = True, self.interrupts - self.ahead

    def finish_segment(self, end):
        self.runs.append(("finish", end))
        self.begin = end

    def begin_segment(self, at):
        self.runs.append(("begin", at))

    def resume_segment(self, at):
        self.runs.append(("resume", at))

    def waits_for(self):
        return ["a", "b"]

    def record(self):
        return "record"


@pytest.fixture
def engine(monkeypatch):
    """An engine of three lanes, of which lane 1 is a worker's."""
    x = Engine.__new__(Engine)
    x.own, x._all, x.hosting, x.control = Runner(), [], "threads", control_block("ab", 3)
    x.events = [Event() for _ in range(3)]
    x.copies, x.failures, x.slept, x.now = [], [], [], [0.0]
    residency = SimpleNamespace(
        upload_all=lambda: x.copies.append("up"), download_all=lambda: x.copies.append("down"),
        download=lambda *names: x.copies.append(names),
    )  # fmt: skip
    q = SimpleNamespace(repetition={"a": 1, "b": 2})
    lanes = [SimpleNamespace(name=f"l{n}", tasks=("a", "b")[: n + 1]) for n in range(3)]
    x.context = SimpleNamespace(
        wake_events=x.events, residency=residency, pace_s=None, arrays={},
        protocol=SimpleNamespace(home=0, lanes=lanes, graph=q),
    )  # fmt: skip
    worker = SimpleNamespace(
        needs_pause=False, failures=lambda: [("one", 3)], on_pause=lambda: x.copies.append("pause"),
        begin=lambda: x.copies.append("begin"), cpu_s=lambda: 2.5, thread=(1, 2),
        environments=lambda at: {"e": at}, join=lambda: ({"a": [2], "b": [3]}, {}, ["r1"]),
        traffic=lambda: ["row"],
    )  # fmt: skip
    x.worker, x._workers, x._remote = worker, {1: worker}, {2}
    x.monitor = SimpleNamespace(ended_cpu_s=1.0, start_counts=None, poll=lambda: x.polled())
    x.polled = lambda: x.copies.append("poll")
    x._on_failure = lambda text, lost: x.failures.append((text, lost))
    x._ahead, x._message_iterations, x._paced, x._reached = 1, 3, 0, 0
    x._stop_word = SimpleNamespace(words=[9, 9])
    x.times_ns, x.lags, x.traffic, x.records = {}, {}, [], []
    clock = SimpleNamespace(
        perf_counter=lambda: x.now[0], sleep=x.slept.append, process_time=lambda: 10.0
    )
    monkeypatch.setattr(engine_module, "time", clock)
    return x


def limits(x):
    c = x.control
    return [c.read(cell) for cell in (c.limit_cell, c.flush_cell, c.end_cell)]


def test_lanes_may_be_ahead_by_a_stretch_and_one_message(engine):
    x = engine
    assert x.run(10, 100) == 10
    assert limits(x) == [10 + 10 + 3, 0, 100]
    assert (x.own.runs, x.failures, x._stop_word.words) == ([(10, False)], [("one", 3)], [0, 9])
    assert [e.sets for e in x.events] == [1, 1, 1]
    assert x.run(11, 100, timed=True) == 11
    assert limits(x)[0] == 23  # never less than before
    assert x.own.runs[-1] == (11, True)
    assert x.run(90, 100) == 90
    assert limits(x)[0] == 100
    x.control.write(x.control.limit_cell, 0)
    x._reached = 0
    x.run(80, 1000)
    assert limits(x)[0] == 80 + 64 + 3


def test_at_the_end_of_a_segment_all_lanes_come_there(engine):
    x, c = engine, engine.control
    x.polled = lambda: [c.write(c.flushed_cell(n), 10) for n in range(3)]
    assert x.run(9, 10, timed=True) == 10
    assert limits(x) == [10, 10, 10]
    assert x.own.runs == [(10, True), ("finish", 10)]
    assert x.copies == ["pause", "down"]
    assert x.slept == [0]
    x.worker.needs_pause = True
    c.write(c.limit_cell, 20)
    x.polled = lambda: [c.write(c.flushed_cell(n), 20) for n in range(3)]
    assert x.run(12, 100) == 20
    assert limits(x) == [20, 20, 100]
    x.worker.needs_pause = False
    assert x.halt() == 20
    c.write(c.limit_cell, 25)
    x.polled = lambda: [c.write(c.flushed_cell(n), 25) for n in range(3)]
    assert x.halt() == 25
    assert limits(x)[1] == 25
    assert c.read(c.park_cell) == 0


@pytest.mark.parametrize(("interrupts", "reached"), [(7, 7), (13, 12)])
def test_an_interrupted_lane_is_not_at_the_end_and_parks_the_others(engine, interrupts, reached):
    x, c = engine, engine.control
    x.own.interrupts = interrupts
    c.write(c.limit_cell, 13)
    assert x.run(13, 13) == reached
    assert x._reached == reached
    assert x.copies == []
    x.polled = lambda: [c.write(c.flushed_cell(n), PARKED) for n in (1, 2)]
    c.write(0, 4)
    assert x.halt() == reached
    assert c.read(c.park_cell) == 1
    assert x.copies == ["down"]
    assert x.under_way() == {BEGIN: 0, "a": 4, "b": 0}
    x.own.interrupted = False
    assert x.under_way() == {}


def test_a_pace_runs_one_iteration_at_a_time(engine):
    x = engine
    x.context.pace_s, x.now[0] = 0.5, 7.0
    x.run(3, 100, timed=True)
    assert x.own.runs == [(1, False), (2, False), (3, True)]
    assert x.slept == [0.5, 1.0, 1.5]
    x.now[0], x.own.interrupts = 9.0, 4
    x.run(6, 100)
    assert x.own.runs[3:] == [(4, False)]
    assert x._paced == 3


@pytest.mark.parametrize("under_way", [None, {BEGIN: 3, "a": 5, "b": 9}])
def test_lanes_begin_with_the_counts_of_their_iteration(engine, under_way):
    x = engine
    x.start(4, under_way)
    counts = (5, 9) if under_way else (4, 8)
    begin = 3 if under_way else 4
    assert x.counts() == counts
    assert (x.counts_of(0), x.counts_of(1)) == (counts[:1], counts)
    assert limits(x) == [4, begin, begin]
    assert x.own.runs == [("resume" if under_way else "begin", begin)]
    assert x.copies == ["up", "begin"]
    assert x.monitor.start_counts.fired == {"a": counts[0], "b": counts[1]}
    assert x._paced == x._reached == 4
    x.fetch("p")
    assert x.copies[-1] == ("p",)
    assert x.describe_blocked_lanes() == "home waits for a, b"
    assert x.cpu_s() == 13.5
    assert x.threads()["l1"] == [(1, 2)]
    assert list(x.threads()) == ["l0", "l1"]
    x.control.write(x.control.flushed_cell(1), 6)
    assert x.environments() == {"e": 6}


def test_lanes_in_one_thread_go_on_in_turns_until_none_can(engine):
    x, asked = engine, []
    x.hosting = "one"

    def lane(name, gains):
        def try_advance(limit, target, timed, *, flush):
            asked.append((name, limit, target, timed, flush))
            runner.round += gains.pop(0) if gains else 0
            return bool(gains)

        runner = Runner()
        runner.name, runner.try_advance = name, try_advance
        return runner

    x.own, other = lane("home", [2, 3, 3]), lane("other", [1, 1, 0])
    x._all = [x.own, other]
    x.control.write(x.control.limit_cell, 30)
    x._serial(6, timed=True)
    assert asked == [("home", 30, 5, 6, False), ("other", 30, 30, 6, False)] * 2
    x.control.write(x.control.flush_cell, 9)
    x.own.round = other.round = 9
    asked.clear()
    x._settle(9, timed=False)
    assert asked[0] == ("home", 9, 9, False, True)
    assert x.own.runs == other.runs == [("begin", 9)]
    other.round = 8
    with pytest.raises(LaneError, match="lanes wait for each other: home waits for a, b; other"):
        x._settle(9, timed=False)


def test_the_end_of_an_engine_collects_what_was_measured(engine):
    x = engine
    closed = []
    for event in x.events:
        event.close = lambda: closed.append(1)
    x.cells = SimpleNamespace(close=lambda: closed.append("cells"))
    x.close()
    assert x.control.read(x.control.stop_cell) == 1
    assert x.times_ns == {"a": [2, 1], "b": [3]}
    assert (x.records, x.traffic, x.failures) == (["r1", "record"], ["row"], [("one", 3)])
    assert (x._workers, x.context.wake_events, closed) == ({}, [], [1, 1, 1, "cells"])


@pytest.mark.parametrize(
    ("hosting", "workers", "all_here"),
    [
        ("threads", {0: "thread", 2: "thread", 3: "remote"}, False),
        ("processes", {0: "process", 2: "thread", 3: "remote"}, False),
        ("one", {3: "remote"}, True),
    ],
)
def test_each_lane_has_its_host(hosting, workers, all_here, monkeypatch):
    """Lane 1 updates, lane 2 works on a device, lanes 3 and 4 are of another host."""
    made, ready, closed = {}, [], []

    def worker(kind):
        return SimpleNamespace(
            kind=kind, wait_ready=lambda: ready.append(kind), join=lambda: ({}, {}, []),
            traffic=list, failures=list,
        )  # fmt: skip

    firings = [SimpleNamespace(offset=n) for n in (0, 2)]
    lanes = [SimpleNamespace(name=f"l{n}", tasks=(f"t{n}",), firings=firings) for n in range(5)]
    graph = SimpleNamespace(tasks=[SimpleNamespace(name=f"t{n}") for n in range(5)])
    group = SimpleNamespace(lanes=(3, 4), iterations=4, worker=lambda *given: worker("remote"))
    context = SimpleNamespace(
        protocol=SimpleNamespace(lanes=lanes, home=1, graph=graph), remote_groups=[group],
        any_order=False, log=None, restart_envs=False, arrays={}, env_snapshots={"e": 1},
        jobs={f"t{n}": SimpleNamespace(own_memory=n == 2) for n in range(5)},
    )  # fmt: skip

    def bind_lane(given, number, control, poll, *, spins):
        made[number] = spins
        return Runner()

    for name, value in {
        "ThreadWorker": lambda control, runner: worker("thread"),
        "ProcessWorker": lambda *given, **more: worker("process"),
        "bind_lane": bind_lane,
        "external_envs": SimpleNamespace(
            failure_listener=lambda log, restart: None,
            restore=lambda envs, snapshots: closed.append(snapshots),
        ),
    }.items():
        monkeypatch.setattr(engine_module, name, value)
    monkeypatch.setattr(engine_module.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    with Engine(context, hosting) as x:
        assert {n: w.kind for n, w in x._workers.items()} == workers
        assert ready == [*workers.values()]
        assert list(made) == ([1, 0, 2, 3, 4] if all_here else [1])
        assert set(made.values()) == {500 if hosting == "one" else 5}
        assert (len(x._all), x._ahead, x._message_iterations) == (5 * all_here, 2, 4)
        assert context.env_snapshots == {}
        assert closed[0] == {"e": 1}
        assert x.control.sleepers == len(context.wake_events) == 6
    assert context.wake_events == []
    assert x._workers == {}


# --- clients of the fork server


@pytest.fixture
def server(monkeypatch):
    """A server of the test: its requests, and the pipes on which its clients wait."""
    found = SimpleNamespace(
        orders=[], pipes=[], children=[], read={},
        process=SimpleNamespace(returncode=None, waits=[]),
    )  # fmt: skip
    found.process.wait = found.process.waits.append

    def request(order, handles, variables):
        found.orders.append((order, handles[1:], variables))
        found.pipes.append(os.dup(handles[0]))
        return found

    monkeypatch.setattr(fork_server, "_request", request)
    yield found
    for pipe in found.pipes:
        os.close(pipe)


def forked(**given):
    return ForkedProcess("m:f", ("x", "y"), stdin=3, output=4, **given)


def say(server, text, number=-1):
    os.write(server.pipes[number], text.encode())


def test_a_request_says_all_that_a_child_needs(server, monkeypatch):
    monkeypatch.setattr(fork_server.sys, "path", ["", "/here"])
    monkeypatch.setitem(sys.modules, "torch", None)
    forked(handles=[7], environment={"A": "b"}, cores=[2, 1], dies_by=15)
    (order, handles, variables) = server.orders[0]
    assert handles == [3, 4, 7]
    assert (variables["A"], variables["PYTHONPATH"]) == ("b", "/here")
    assert order.pop("environment") == variables
    assert order == {
        "program": "m:f", "arguments": ["x", "y"], "handles": [7], "cores": [1, 2], "dies_by": 15,
        "path": ["", "/here"], "folder": os.getcwd(), "imports": ["torch"],
    }  # fmt: skip
    monkeypatch.delitem(sys.modules, "torch")
    second = forked()
    order = server.orders[1][0]
    assert order["cores"] == sorted(os.sched_getaffinity(0))
    assert (order["dies_by"], order["imports"]) == (signal.SIGKILL, [])
    assert len(server.children) == 2
    server.children[0].returncode = 0
    third = forked()
    assert server.children == [second, third]


def test_a_process_is_known_by_what_the_server_says(server, monkeypatch):
    monkeypatch.setattr(fork_server, "START_S", 0.01)
    process = forked()
    with pytest.raises(TimeoutError, match=r"no process was forked within 0.01 s"):
        _ = process.pid
    line = json.dumps({"pid": 5, "status": None, "cpu_s": 0.0}) + "\n"
    say(server, line[:9])
    assert process.poll() is None
    say(server, line[9:])
    assert (process.pid, process.poll(), process.returncode) == (5, None, None)
    with pytest.raises(subprocess.TimeoutExpired, match="process 5"):
        process.wait(0.01)
    killed = []
    monkeypatch.setattr(fork_server.os, "kill", lambda *given: killed.append(given))
    process.terminate()
    process.kill()
    assert killed == [(5, signal.SIGTERM), (5, signal.SIGKILL)]
    say(server, json.dumps({"pid": 5, "status": 3, "cpu_s": 1.5}) + "\n")
    assert (process.wait(), process.wait(0.0), process.poll()) == (3, 3, 3)
    assert (process.cpu_s, process._status.closed) == (1.5, True)
    process.kill()
    assert len(killed) == 2


@pytest.mark.parametrize(("status", "code"), [(None, -9), (-15, -15)])
def test_a_process_whose_server_died_has_died_too(server, status, code):
    process = forked()
    server.process.returncode = status
    os.close(server.pipes.pop())
    assert process.wait(60.0) == code
    assert server.process.waits == [1.0]
    assert process.pid == 0


def test_a_server_with_other_variables_takes_no_request(monkeypatch):
    sent, made, monkeys = [], [], []

    class Made:
        def __init__(self, variables):
            self.read = fork_server._read_at_import(variables)
            self.children, self.requests = [], SimpleNamespace(close=lambda: None)
            made.append(self)

        def close(self):
            monkeys.append(self)

        def cpu_s(self):
            return 1.5

    def send(requests, packets, handles):
        if requests in gone:
            raise ConnectionError
        sent.append((requests, json.loads(packets[0]), handles))

    gone = []
    monkeypatch.setattr(fork_server, "_servers", [])
    monkeypatch.setattr(fork_server, "_Server", Made)
    monkeypatch.setattr(fork_server.socket, "send_fds", send)
    one = fork_server._request({"n": 1}, [7], {"OMP_X": "1", "A": "1"})
    assert one.read == {"OMP_X": "1"}
    assert fork_server._request({"n": 2}, [8], {"OMP_X": "1", "A": "2"}) is one
    one.children = [SimpleNamespace(poll=lambda: None, pid=5), SimpleNamespace(poll=lambda: 0)]
    other = fork_server._request({"n": 3}, [], {"OMP_X": "2"})
    assert (fork_server._servers, monkeys) == ([one, other], [])
    assert fork_server.running_pids() == [5]
    assert fork_server.cpu_s() == 3.0
    gone.append(other.requests)
    third = fork_server._request({"n": 4}, [], {"OMP_X": "2"})
    assert (fork_server._servers, monkeys) == ([one, third], [other])
    assert [(order["n"], handles) for _, order, handles in sent] == [
        (1, [7]), (2, [8]), (3, []), (4, []),
    ]  # fmt: skip
    fork_server._close_all()
    assert (fork_server._servers, monkeys) == ([], [other, one, third])
