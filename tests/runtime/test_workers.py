"""Workers as the engine sees them: their replies, ends, deaths and measurements, with children,
actors and lanes of the test."""

from __future__ import annotations

import json
import threading
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.cluster import Node
from pearl.errors import SpecError
from pearl.runtime.environments.external_envs import FailureLog
from pearl.runtime.lanes import worker_monitor, worker_process, workers
from pearl.runtime.lanes.lane_runner import StopRequested
from pearl.runtime.lanes.worker_monitor import WorkerMonitor
from pearl.runtime.lanes.workers import LaneDiedError, ProcessWorker, ThreadWorker, Worker
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.single_lane import LaneError
from pearl.runtime.remote import ray_lane_client, remote_worker
from pearl.runtime.remote.lane_server import RemoteLostError
from pearl.runtime.remote.messages import CONTROL, FIRINGS, STATE, TEXT, header_words, pack, unpack
from pearl.runtime.remote.ray_lane_client import RayLaneClient
from pearl.runtime.remote.remote_worker import RemoteGroup, RemoteWorker


def control_block(lanes=2, groups=0, tasks=("a", "b")):
    cells = np.zeros(ControlBlock.size(len(tasks), lanes, groups), np.int64)
    return ControlBlock(tasks, lanes, cells, groups)


# --- in general


@pytest.mark.parametrize(
    ("steps_envs", "stalled_s", "reason"),
    [
        (False, 99.0, None),
        (True, 3.99, None),
        (True, 4.0, "an environment of this lane has not answered for 4.0 s"),
    ],
)
def test_a_lane_may_be_stuck_in_an_environment_for_one_and_a_half_limits(
    steps_envs, stalled_s, reason
):
    worker = Worker()
    worker.steps_envs = steps_envs
    assert worker.timeout_reason(2.0, stalled_s=stalled_s) == reason


def test_a_worker_of_no_kind_has_nothing_to_tell():
    worker = Worker()
    assert (worker.environments(3), worker.failures(), worker.traffic()) == ({}, [], [])
    assert (worker.cpu_s(), worker.thread, worker.needs_pause) == (0.0, None, False)
    assert (worker.restartable, worker.steps_envs) == (False, False)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("one\n  two"), "one two"),
        (LaneError("why"), "why"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_an_error_is_one_line_with_its_type_unless_its_text_suffices(error, text):
    assert workers.error_text(error) == text


def test_a_lane_that_waits_ends_once_the_stop_cell_is_set():
    control = control_block()
    poll = workers.raise_when_stopped(control)
    poll()
    control.write(control.stop_cell, 1)
    with pytest.raises(StopRequested):
        poll()


# --- threads


def thread_worker(serve):
    runner = SimpleNamespace(
        name="x", serve=serve, times_ns={"a": [1]}, lags={"l": {}}, environments={},
        record=lambda: "record",
    )  # fmt: skip
    return ThreadWorker(control_block(), lambda poll: runner)


def stops():
    raise StopRequested


def fails():
    raise KeyError("why")


@pytest.mark.parametrize(("serve", "error"), [(stops, None), (fails, "KeyError: 'why'")])
def test_a_lane_in_a_thread_ends_or_fails_by_name(serve, error):
    worker = thread_worker(serve)
    assert worker.thread is None
    worker.begin()
    assert worker.join() == ({"a": [1]}, {"l": {}}, ["record"])
    assert not worker._thread.is_alive()
    assert worker.thread[1] != threading.get_native_id()
    if error is None:
        worker.raise_if_failed()
    else:
        with pytest.raises(LaneError, match=f"^lane x failed: {error}$"):
            worker.raise_if_failed()


def test_a_thread_that_cannot_be_ended_is_left_behind(monkeypatch):
    monkeypatch.setattr(workers, "ANSWER_S", 600.0)
    over = threading.Event()
    worker = thread_worker(over.wait)
    worker.begin()
    worker.kill()
    worker.join()
    assert worker._thread.is_alive()
    over.set()


# --- processes


class Child:
    """A child process as its parent sees it. then: what a wait for a reply brings."""

    pid = 4321

    def __init__(self):
        self.reason, self.closed, self.sent, self.ended = None, False, [], []
        self.reply_condition, self.waits, self.then = threading.Condition(), [], []

    is_closed = property(lambda self: self.closed)

    def wait_for(self, condition, timeout_s):
        self.waits.append(timeout_s)
        for reply in self.then:
            self.on_reply(reply)
        return bool(condition())

    def exit_reason(self):
        return self.reason

    def send(self, request):
        self.sent.append(request)

    def end(self):
        self.ended.append("end")

    def kill(self):
        self.ended.append("kill")

    def cpu_s(self):
        return 1.5


@pytest.fixture
def process(monkeypatch):
    """Makes a worker in a process, with its child."""
    child = Child()

    def child_of(program, handles, request, on_reply):
        child.program, child.handles, child.request = program, handles, request
        child.on_reply = on_reply
        return child

    monkeypatch.setattr(workers, "ChildProcess", child_of)
    monkeypatch.setattr(workers.recovery, "steps_external_envs", lambda context, n: n == 3)
    memory = SimpleNamespace(layout=["layout"], handle=7)
    context = SimpleNamespace(
        memory=memory, wake_events=[SimpleNamespace(handle=n) for n in (11, 12)],
        to_json=lambda: {"spec": 1}, remote_groups=(1, 2),
    )  # fmt: skip

    def make(number=3):
        return ProcessWorker(context, number, "x", 8, 5, restarted_envs=True), child

    make.context = context
    return make


def test_a_process_gets_its_lane_and_its_memory(process):
    _, child = process()
    assert child.program == "pearl.runtime.lanes.worker_process:main"
    assert child.handles == [7, 8, 11, 12]
    assert child.request == {
        "spec": 1, "lane": 3, "layout": ["layout"], "memory": 7, "cells": 8,
        "wake_events": [11, 12], "spins": 5, "restarted_envs": True, "remote_groups": 2,
    }  # fmt: skip
    process.context.memory = None
    with pytest.raises(ValueError, match="need their arrays in shared memory"):
        process()


def test_a_process_is_ready_begins_and_gives_what_it_measured(process):
    worker, child = process()
    with pytest.raises(LaneError, match=r"^lane x was not ready within 120 s$"):
        worker.wait_ready()
    child.then = [{"ready": True}]
    worker.wait_ready()
    assert child.waits == [120.0, 120.0]
    worker.begin()
    assert child.sent == [{"begin": True}]
    assert (worker.pid, worker.thread, worker.cpu_s()) == (4321, (4321, 4321), 1.5)
    assert worker.join() == ({}, {}, [])
    child.on_reply({"times_ns": {"a": [1]}, "lags": {"l": {}}, "record": {"r": 1}})
    assert worker.join() == ({"a": [1]}, {"l": {}}, [{"r": 1}])
    worker.kill()
    assert child.ended == ["end", "end", "kill"]


def test_environments_of_a_process_are_told_with_their_iteration(process):
    worker, child = process()
    with pytest.raises(LaneError, match=r"lane x has sent no snapshots .* within 10 s"):
        worker.environments(4)
    child.then = [{"at": 3, "environments": {"e": 3}}, {"at": 4, "environments": {"e": 4}}]
    assert worker.environments(4) == {"e": 4}
    assert child.waits == [10.0, 10.0]
    assert process(2)[0].environments(4) == {}
    for text in ("one", "two"):
        child.on_reply({"failure": text, "lost": 3})


def test_failures_of_environments_of_a_process_are_told_once(process):
    worker, child = process()
    for text in ("one", "two"):
        child.on_reply({"failure": text, "lost": 3})
    assert worker.failures() == [("one", 3), ("two", 3)]
    assert worker.failures() == []
    worker.raise_if_failed()
    child.reason = "its process 1 ended with signal 9"
    with pytest.raises(LaneDiedError, match=r"^lane x: its process 1 ended with signal 9$"):
        worker.raise_if_failed()
    child.on_reply({"error": "why"})
    with pytest.raises(LaneError, match=r"^lane x failed: why$") as caught:
        worker.raise_if_failed()
    assert not isinstance(caught.value, LaneDiedError)


@pytest.mark.parametrize("envs", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_a_process_serves_its_lane_and_says_what_it_measured(envs, begins, monkeypatch):
    env, seen, restored = SimpleNamespace(on_failure=None), {}, []
    runner = SimpleNamespace(
        environments={"e": env} if envs else {}, on_segment_end=None, times_ns={"a": [1]}, lags={},
        record=lambda: "record",
    )  # fmt: skip
    parent = SimpleNamespace(
        said=[], handle=lambda n: 100 + n, next_request=lambda: {"begin": True} if begins else None
    )
    parent.reply = lambda **values: parent.said.append(values)

    def serve():
        if envs:
            env.on_failure("failed", 3)
            runner.on_segment_end(7)
        raise StopRequested

    def arrays(layout, handle):
        seen[handle] = layout
        return SimpleNamespace(arrays={name: np.zeros(shape, kind) for name, shape, kind in layout})

    def bind_lane(context, number, control, poll, **more):
        seen["lane"] = number, control.lanes, control.groups, more
        control.write(control.flushed_cell(number), 5)
        seen["events"] = context.wake_events
        return runner

    context = SimpleNamespace(
        protocol=SimpleNamespace(lanes=[1, 2, 3]), env_snapshots={"e": 1}, env_time_limit_s=9.0
    )
    runner.serve = serve
    limits = []
    for name, value in {
        "SharedArrays": arrays,
        "RunContext": SimpleNamespace(from_json=lambda config, given: context),
        "WakeEvent": lambda handle: handle,
        "shared_counters": lambda context: ("a", "b"),
        "bind_lane": bind_lane,
        "external_envs": SimpleNamespace(
            restore=lambda given, snapshots: restored.append(snapshots),
            snapshot=lambda given: {"now": 1},
            interrupting_overdue_envs=lambda given, s: limits.append(s) or nullcontext(),
        ),
    }.items():
        monkeypatch.setattr(worker_process, name, value)
    config = {
        "layout": [["x", [2], "int64"]], "memory": 1, "cells": 2, "wake_events": [3, 4], "lane": 1,
        "remote_groups": 1, "spins": 6, "restarted_envs": True,
    }  # fmt: skip
    worker_process._serve_lane(parent, config)
    size = ControlBlock.size(2, 3, 1)
    assert seen[101] == [("x", (2,), "int64")]
    assert seen[102] == [("runtime.cells", (size,), "int64")]
    assert seen["lane"] == (1, 3, 1, {"spins": 6, "restarted_envs": True})
    assert seen["events"] == [103, 104]
    said = [{"ready": True}]
    if begins:
        snapshot = {"environments": {"now": 1}}
        if envs:
            said += [{"at": 5} | snapshot, {"failure": "failed", "lost": 3}, {"at": 7} | snapshot]
        said.append({"times_ns": {"a": [1]}, "lags": {}, "record": "record"})
    assert parent.said == said
    assert restored == ([{"e": 1}] if envs else [])
    assert limits == ([9.0] if begins else [])


# --- the monitor


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
    engine.waits_in_env_step = lambda number: engine.waits

    def process(number, *, restarted_envs):
        engine.made.append((number, restarted_envs))
        return engine.fresh.pop(0)

    engine.process = process
    recovery = worker_monitor.recovery
    monkeypatch.setattr(recovery, "restart_obstacle", lambda protocol, number: engine.obstacle)
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


def test_a_step_that_takes_too_long_ends_its_worker(monitor):
    engine, worker = monitor.engine, Watched(told=[("one", 3)])
    monitor.workers[1] = worker
    monitor.poll()
    assert monitor.told == [("one", 3)]
    engine.now, engine.waits = 103.0, True
    monitor.poll()
    engine.now, engine.count = 105.0, 1
    monitor.poll()
    engine.now = 106.0
    monitor.poll()
    engine.now, engine.waits = 109.0, False
    monitor.poll()
    assert worker.stalled == [0.0, 3.0, 0.0, 1.0, 0.0]
    worker.reason = "an environment hangs"
    with pytest.raises(LaneError, match=r"^lane lane1: an environment hangs$") as caught:
        monitor.poll()
    assert not isinstance(caught.value, LaneDiedError)
    assert worker.done == ["kill"]
    engine.context.restart_envs = True
    with pytest.raises(LaneError, match=r"^lane lane1: an environment hangs$"):
        monitor.poll()  # a thread cannot be ended, so that no other takes its place
    worker.restartable = True
    monitor.poll()
    assert worker.done == ["kill"] * 3 + ["replay"]
    note = "lane lane1: an environment hangs; its firings since the last pause were repeated"
    assert engine.context.log.events == [note]


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


# --- lanes of another host


class Client:
    """The client of a lane server: what it was asked, and what it answers."""

    def __init__(self, lost=(), made=()):
        self.calls, self.lost, self.pulls = [], set(lost), deque()
        self.made = made

    def _do(self, name, *given):
        self.calls.append((name, *given))
        if name in self.lost:
            raise RemoteLostError(f"gone at {name}")

    def bind(self, config, arrays):
        self.config = config
        self._do("bind")
        return pack([STATE], [np.full(2, 7.0)])

    def start(self, arrays):
        self.snapshot = arrays
        self._do("start")

    def push(self, messages):
        self._do("push", [header_words(m)[0] for m in messages])

    def pull(self, timeout_s):
        self._do("pull", timeout_s)
        return [self.pulls.popleft()] if self.pulls else []

    def end(self):
        self._do("end")
        return {"times_ns": {"a": [1]}, "lags": {}, "cpu_s": 4.5, "records": ["r"]}

    def kill(self):
        self._do("kill")


class Box:
    """A mailbox: messages that are ready, and what came."""

    def __init__(self):
        self.begun, self.out, self.came = [], [], []
        self.traffic = remote_worker.mailboxes.__globals__["Traffic"]()

    ready = property(lambda self: bool(self.out))

    def start(self, begin):
        self.begun.append(begin)

    def ready_messages(self, *, rest=False):
        found, self.out = self.out, []
        return found

    def receive(self, message):
        self.came.append(message)


@pytest.fixture
def remote(monkeypatch):
    """Makes a worker of lanes 1 and 2 on another host, whose threads do not run by themselves."""
    made = SimpleNamespace(clients=[], losses=[], error=None, into=Box(), out=Box())
    monkeypatch.setattr(remote_worker, "mailboxes", lambda *given: (made.into, made.out))
    monkeypatch.setattr(remote_worker.recovery, "steps_external_envs", lambda context, n: n == 2)
    monkeypatch.setattr(remote_worker.sys, "path", ["", "/here"])
    threads = []

    class Thread:
        def __init__(self, target, daemon):
            assert daemon
            self.target, self.joined = target, []
            threads.append(self)

        def start(self):
            self.joined.append("started")

        def join(self, timeout):
            self.joined.append(timeout)

    monkeypatch.setattr(
        remote_worker, "threading", SimpleNamespace(Thread=Thread, Lock=threading.Lock)
    )

    def client(lane_group, **more):
        made.losses.append(more)
        if made.error:
            raise made.error
        made.clients.append(Client())
        return made.clients[-1]

    arrays = {"x": np.zeros(2), "own": np.ones(3)}
    lane_group = SimpleNamespace(
        number=0, host="far", lanes=(1, 2), tasks=("a", "b"),
        arrays=lambda protocol, given: list(given), state=lambda protocol, given: [given["x"]],
    )  # fmt: skip
    flow = SimpleNamespace(tasks=("a",), per_iteration=(1,), every=2)
    flows = SimpleNamespace(inbound=[flow], outbound=[], iterations=3)
    control = control_block(lanes=3, groups=1)
    made.events = [SimpleNamespace(sets=[], waits=[]) for _ in range(4)]
    for event in made.events:
        event.set = lambda e=event: e.sets.append(1)
        event.wait = lambda s, e=event: e.waits.append(s)
    context = SimpleNamespace(
        any_order=False, wake_events=made.events, arrays=arrays, to_json=lambda: {"spec": 1},
        protocol=SimpleNamespace(lanes=[SimpleNamespace(name=f"l{n}") for n in range(3)]),
        worker_config={"spec": {"train": {"carrier": "tcp"}}},
    )  # fmt: skip
    group = RemoteGroup(lane_group, flows, client)
    made.control, made.arrays, made.threads, made.group = control, arrays, threads, group
    made.worker = group.worker(context, control)
    return made


def test_lanes_of_another_host_are_bound_with_what_they_need(remote):
    worker = remote.worker
    assert isinstance(worker, RemoteWorker)
    assert (remote.group.lanes, remote.group.iterations) == ((1, 2), 3)
    assert (worker.restartable, worker.steps_envs, worker.needs_pause) == (True, True, False)
    assert remote.losses == [{}]
    worker.wait_ready()
    assert remote.arrays["x"].tolist() == [7.0, 7.0]
    (client,) = remote.clients
    digest = client.config.pop("sources")
    assert len(digest) > 8
    assert client.config == {
        "spec": 1, "path": ["/here"], "number": 0, "host": "far", "lanes": (1, 2),
        "tasks": ("a", "b"), "layout": [("x", (2,), "float64"), ("own", (3,), "float64")],
        "inbound": [(("a",), (1,), 2)], "outbound": [], "carrier": "tcp",
    }  # fmt: skip
    (row,) = worker.traffic()
    assert row == {"host": "far", "tasks": ["a", "b"], "carrier": "tcp"} | {
        f"{n}_{way}": 0
        for way in ("to", "from")
        for n in ("messages", "payload_bytes", "state_bytes", "others")
    }


def test_a_segment_begins_with_the_arrays_and_counts_of_the_pause(remote):
    worker, c = remote.worker, remote.control
    for cell, value in ((0, 4), (1, 6), (c.flush_cell, 2)):
        c.write(cell, value)
    worker.begin()
    (client,) = remote.clients
    x, own = np.zeros(2), np.zeros(3)
    text = unpack(client.snapshot, [x, own])
    assert text == {"fired": {"a": 4, "b": 6}, "begin": 2, "environments": None}
    assert (x.tolist(), own.tolist()) == ([0, 0], [1, 1, 1])
    assert remote.into.begun == remote.out.begun == [2]
    assert remote.into.traffic.state_bytes == client.snapshot.nbytes
    assert [t.joined for t in remote.threads] == [["started"], ["started"]]
    assert [t.target.__name__ for t in remote.threads] == ["_send", "_receive"]
    client.lost = {"start"}
    with pytest.raises(LaneDiedError, match=r"^lane l1, l2 on host far: gone at start$"):
        worker.begin()
    client.lost = {"bind"}
    with pytest.raises(LaneDiedError, match=r"^lane l1, l2 on host far: gone at bind$"):
        worker.wait_ready()


def test_messages_are_sent_with_the_control_words_and_kept_for_a_loss(remote, monkeypatch):
    worker, c = remote.worker, remote.control
    worker.begin()
    (client,) = remote.clients
    remote.into.out = [pack([FIRINGS, 0])]
    assert worker._send_ready()
    assert client.calls[-1] == ("push", [FIRINGS, CONTROL])
    assert remote.into.traffic.others == 1
    assert not worker._send_ready()
    c.write(c.limit_cell, 5)
    assert worker._send_ready()
    assert client.calls[-1] == ("push", [CONTROL])
    assert header_words(worker._log[-1])[:6] == [CONTROL, 5, 0, 0, 0, 0]
    assert worker._logged_bytes == 3 * 64
    monkeypatch.setattr(remote_worker, "MAX_LOG_BYTES", 192)
    assert not worker.needs_pause
    monkeypatch.setattr(remote_worker, "MAX_LOG_BYTES", 191)
    assert worker.needs_pause
    remote.into.out = [pack([FIRINGS, 0])]
    worker.on_pause()
    assert client.calls[-1] == ("push", [FIRINGS])
    assert (worker._log, worker._logged_bytes) == ([], 0)
    client.lost, remote.into.out = {"push"}, [pack([FIRINGS, 0])]
    worker.on_pause()
    with pytest.raises(LaneDiedError, match=r"^lane l1, l2 on host far: gone at push$"):
        worker.raise_if_failed()


def test_the_thread_that_sends_sleeps_until_there_is_something(remote):
    worker, c = remote.worker, remote.control
    worker.begin()
    (client,), event, asleep = remote.clients, remote.events[3], []

    def wait(seconds):
        asleep.append((seconds, c.read(c.sleep_cell(3))))
        remote.into.out = [pack([FIRINGS, 0])]
        if len(asleep) == 2:
            worker._over = True

    event.wait = wait
    worker._log = [pack([FIRINGS, 7])]
    worker._send()
    assert [given for name, *given in client.calls if name == "push"] == [
        [[FIRINGS]], [[CONTROL]], [[FIRINGS]],
    ]  # fmt: skip
    assert asleep == [(0.05, 1)] * 2
    assert c.read(c.sleep_cell(3)) == 0
    worker._over, client.lost = False, {"push"}
    worker._send()
    assert worker._lost == "gone at push"
    client.push = lambda messages: 1 / 0
    remote.into.out, worker._log = [pack([FIRINGS, 0])], []
    worker._send()
    with pytest.raises(
        LaneError, match=r"^lane l1, l2 on host far: ZeroDivisionError: division by"
    ):
        worker.raise_if_failed()


def test_what_comes_is_written_counted_and_told(remote):
    worker, c = remote.worker, remote.control
    c.write(c.sleep_cell(0), 1)
    worker.begin()
    (client,) = remote.clients
    state = pack([STATE, 3, 2_500_000], [np.full(2, 9.0)], {"at": 3, "environments": {"e": 1}})
    message = pack([FIRINGS, 0])
    client.pulls.extend([
        message, state, pack([TEXT], text={"failure": "one", "lost": 4}),
        pack([TEXT], text={"failure": "one", "lost": 4}),
    ])  # fmt: skip
    client.lost = set()
    pull = client.pull

    def pull_and_end(timeout_s):
        found = pull(timeout_s)
        if not found:
            raise RemoteLostError("over")
        return found

    client.pull = pull_and_end
    worker._receive()
    assert worker._lost == "over"
    assert client.calls[-1] == ("pull", 1.0)
    assert [m is message for m in remote.out.came] == [True]
    assert remote.arrays["x"].tolist() == [9.0, 9.0]
    assert worker.cpu_s() == 2.5
    assert [c.read(c.flushed_cell(n)) for n in range(3)] == [0, 3, 3]
    assert (remote.out.traffic.state_bytes, remote.out.traffic.others) == (state.nbytes, 2)
    assert len(remote.events[0].sets) == 4
    assert worker.failures() == [("one", 4)] * 2
    assert worker.failures() == []
    assert worker.environments(3) == {"e": 1}
    with pytest.raises(LaneError, match="has sent no snapshots"):
        worker.environments(4)
    worker.steps_envs = False
    assert worker.environments(4) == {}
    worker._handle_message(pack([TEXT], text={"lane": "l1", "error": "why"}))
    with pytest.raises(LaneError, match=r"^lane l1 failed: why$"):
        worker.raise_if_failed()
    client.pull = lambda timeout_s: 1 / 0
    worker._error = ""
    worker._receive()
    assert "ZeroDivisionError" in worker._error


def test_a_lost_group_is_bound_again_and_its_failures_count_once(remote):
    worker = remote.worker
    worker.begin()
    for _ in range(2):
        worker._record_env_failure("one", 4)
    worker._lost, worker._cpu_s, worker._log = "gone", 2.5, [pack([FIRINGS, 0])]
    worker._sent_words = (1,)
    worker.restore_and_replay()
    assert remote.clients[0].calls[-1] == ("kill",)
    assert remote.losses == [{}, {"losses": 1}]
    assert [name for name, *_ in remote.clients[1].calls] == ["bind", "start"]
    assert [t.joined for t in remote.threads[:2]] == [["started", 10.0]] * 2
    assert len(remote.threads) == 4
    assert remote.events[3].sets == [1]
    assert (worker._lost, worker._over, worker._sent_words, len(worker._log)) == ("", False, (), 1)
    assert worker.cpu_s() == 2.5
    assert len(worker.failures()) == 2
    for _ in range(3):
        worker._record_env_failure("one", 4)
    assert worker.failures() == [("one", 4)]
    worker.on_pause()
    worker.restore_and_replay()
    worker._record_env_failure("one", 4)
    assert worker.failures() == [("one", 4)]
    assert remote.losses[-1] == {"losses": 2}
    remote.error = SpecError("no node")
    with pytest.raises(LaneError, match=r"^lane l1, l2 on host far: no node$"):
        worker.restore_and_replay()


def test_the_end_of_lanes_of_another_host(remote):
    worker = remote.worker
    worker.wait_ready()
    worker.begin()
    assert worker.join() == ({"a": [1]}, {}, ["r"])
    assert worker.cpu_s() == 4.5
    assert [name for name, *_ in remote.clients[0].calls] == ["bind", "start", "end", "kill"]
    assert worker._threads == []
    remote.clients[0].lost = {"end"}
    worker._cpu_s = 1.0
    assert worker.join() == ({}, {}, [])
    assert worker.cpu_s() == 1.0
    worker.kill()
    worker._bound = False
    remote.clients[0].calls.clear()
    worker.join()
    assert remote.clients[0].calls == [("kill",)]


# --- the client of a lane server in a Ray actor


class Errors:
    class GetTimeoutError(Exception):
        pass

    class RayTaskError(Exception):
        cause = KeyError("why")

    class RayActorError(Exception):
        pass

    class RaySystemError(Exception):
        pass

    class ObjectLostError(Exception):
        pass


NODES = {
    "home": Node("home", "1", "10.0.0.1", 2, 0, 1e9),
    "far": Node("far", "2", "10.0.0.2", 4, 0, 1e9),
    "big": Node("big", "3", "10.0.0.3", 8, 0, 1e9),
}


@pytest.fixture
def ray(monkeypatch):
    """A module `ray`: calls of its one actor, and what waiting for them gives."""
    found = SimpleNamespace(
        calls=[], options=[], got=[], answers={}, ready=True, killed=[], exceptions=Errors
    )

    class Method:
        def __init__(self, name, **options):
            self.name, self.given = name, options

        def options(self, **options):
            return Method(self.name, **options)

        def remote(self, *given):
            found.calls.append((self.name, self.given, given))
            return self.name

    class Actor:
        def __getattr__(self, name):
            return Method(name)

    def remote(**groups):
        assert groups == {"concurrency_groups": {"into": 1, "out": 1}}

        def kind(cls):
            assert cls is ray_lane_client._RayLaneServer

            def options(**given):
                found.options.append(given)
                return SimpleNamespace(remote=Actor)

            return SimpleNamespace(options=options)

        return kind

    def get(reference, timeout):
        found.got.append((reference, timeout))
        answer = found.answers.get(reference)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found.remote, found.get = remote, get
    found.wait = lambda refs, timeout: (refs if found.ready else [], timeout)
    found.kill = lambda actor, no_restart: found.killed.append(no_restart) or 1 / 0
    found.get_runtime_context = lambda: SimpleNamespace(get_node_id=lambda: "1")
    monkeypatch.setattr(ray_lane_client, "connect", lambda: found)
    monkeypatch.setattr(ray_lane_client, "nodes", lambda: list(NODES.values()))
    monkeypatch.setattr(ray_lane_client, "on_node", lambda node: {"node": node.name})
    return found


def group(host="far"):
    return SimpleNamespace(host=host, lanes=(1, 2))


@pytest.mark.parametrize(
    ("host", "losses", "node"),
    [
        ("far", 0, "far"),
        ("far", 1, "far"),
        ("far", 2, "big"),
        ("big", 2, "far"),
        ("gone", 1, "big"),
        ("gone", 0, None),
    ],
)
def test_lanes_go_to_their_node_and_after_losses_to_the_largest_other(host, losses, node, ray):
    if node is None:
        with pytest.raises(SpecError, match=r"host gone: no node .*; there are home, far, big;"):
            RayLaneClient(group(host), losses=losses)
        return
    client = RayLaneClient(group(host), losses=losses)
    assert ray.options == [{"num_cpus": 2, "max_restarts": 0, "node": node}]
    assert (client.where, client._address, client._home) == (node, NODES[node].address, "10.0.0.1")


def test_calls_of_ray_bring_messages_and_have_their_limits(ray, monkeypatch):
    client = RayLaneClient(group())
    ray.answers["bind_as"] = bound = np.zeros(1, np.uint8)
    assert client.bind({"carrier": "ray"}, bound) is bound
    assert ray.calls[-1] == ("bind_as", {}, (json.dumps({"carrier": "ray"}), bound))
    client.start(bound)
    assert ray.got == [("bind_as", 120.0), ("start", 120.0)]
    client.push([])
    assert len(ray.calls) == 2
    one = np.arange(3, dtype=np.uint8)
    client.push([one, one[:1]])
    name, options, (sizes, joined) = ray.calls[-1]
    assert (name, options, sizes) == ("push_batch", {"concurrency_group": "into"}, [3, 1])
    assert joined.tolist() == [0, 1, 2, 0]
    assert ray.got[-1] == ("push_batch", 30.0)
    ray.ready, before = False, len(ray.got)
    for _ in range(18):
        client.push([one])
    assert ray.got[before:] == [("push_batch", 120.0)] * 2
    assert len(client._pushed) == 16
    ray.answers["pull_batch"] = ([3, 1], joined)
    found = client.pull(1.5)
    assert [m.tolist() for m in found] == [[0, 1, 2], [0]]
    out = {"concurrency_group": "out", "num_returns": 1}
    assert ray.calls[-2:] == [("pull_batch", out, (1.5, 1))] * 2
    assert ray.got[-1] == ("pull_batch", 1.5 * 2 + 30.0)
    ray.answers["pull_batch"] = [([100_000], np.zeros(96_000, np.uint8)), np.zeros(4_000, np.uint8)]
    assert [m.size for m in client.pull(0.0)] == [100_000]
    client.pull(0.0)
    assert ray.calls[-1][1]["num_returns"] == 2
    ray.answers["end"] = {"cpu_s": 1.0}
    assert client.end() == {"cpu_s": 1.0}
    assert ray.got[-1] == ("end", 30.0)
    client.kill()
    assert ray.killed == [True]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Errors.GetTimeoutError(), RemoteLostError, "node far has not answered for 120 s"),
        (Errors.RayTaskError(), LaneError, "on node far: KeyError: 'why'"),
        (Errors.RayActorError("\n one\ntwo"), RemoteLostError, r"its actor .* is gone \(one\)"),
        (
            Errors.RaySystemError(""),
            RemoteLostError,
            r"its actor .* is gone \(no reason\)",
        ),
        (Errors.ObjectLostError("x"), RemoteLostError, r"its actor on node far is gone \(x\)"),
    ],
)
def test_a_call_that_fails_says_why(error, kind, text, ray):
    client = RayLaneClient(group())
    ray.answers = {"start": error, "bind_as": Errors.RayTaskError()}
    with pytest.raises(kind, match=f"^{text}$"):
        client.start(None)
    with pytest.raises(LaneError, match="KeyError: 'why'; a node needs the modules that the spec"):
        client.bind({"carrier": "ray"}, None)


class Wire:
    """A transport whose other end may be gone."""

    quiet, gone, closed = False, False, False

    def __init__(self):
        self.sent = []

    def send(self, messages):
        self.sent.append(messages)
        if self.gone:
            raise RuntimeError("cut")

    def receive(self, within_s):
        self.sent.append(within_s)
        if self.gone:
            raise RuntimeError("cut")
        return ["message"]

    def close(self):
        self.closed = True


def test_over_a_transport_an_end_that_is_quiet_beats_and_one_that_is_gone_is_lost(ray, monkeypatch):
    wire, asked = Wire(), []

    class Door:
        def __init__(self, address):
            asked.append(address)

        at = "at"

        def open(self):
            if wire.gone:
                raise RuntimeError("nobody")
            return wire

    monkeypatch.setattr(ray_lane_client, "TransportListener", Door)
    client = RayLaneClient(group())
    client.bind({"carrier": "tcp"}, None)
    assert asked == ["10.0.0.1"]
    assert ray.calls[-1] == ("join", {}, ("at",))
    assert ray.got[-1] == ("join", 120.0)
    client.push(["one"])
    assert client.pull(1.0) == ["message"]
    wire.quiet = True
    assert client.pull(1.0) == ["message"]
    assert wire.sent == [["one"], 30.0, [], 30.0]
    wire.gone = True
    for call in (lambda: client.push(["one"]), lambda: client.pull(1.0)):
        with pytest.raises(RemoteLostError, match=r"^its actor on node far is gone \(cut\)$"):
            call()
    client.kill()
    assert wire.closed
    other = r"^node far \(10.0.0.2\) and this one \(10.0.0.1\) cannot connect by TCP: .*nobody; let"
    with pytest.raises(LaneError, match=other):
        client.bind({"carrier": "tcp"}, None)


def test_the_actor_sends_what_is_ready_and_tells_its_errors():
    server = ray_lane_client._RayLaneServer.__new__(ray_lane_client._RayLaneServer)
    wire, told = Wire(), []
    server.runners = [SimpleNamespace(name="l1"), SimpleNamespace(name="l2")]
    server._send_status = lambda **text: told.append(text)

    def push(messages):
        raise ValueError("torn")

    server.push = push
    server._take_on(wire)
    assert (wire.sent, told) == ([120.0], [{"lane": "l1, l2", "error": "torn"}])
    pulls = []

    def pull(timeout_s):
        pulls.append(timeout_s)
        wire.gone = len(pulls) == 2
        return [len(pulls)]

    server.pull = pull
    wire.sent.clear()
    server._give_on(wire)
    assert (pulls, wire.sent) == ([1.0, 1.0], [[1], [2]])
    server._take_on(wire)
    assert len(told) == 1
