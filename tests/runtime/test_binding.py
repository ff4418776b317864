"""Calls bound to the slots that they see, jobs of a plan, and lanes of another host as that host
serves them, by kept schedules and calls of the test."""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pearl.errors import SpecError
from pearl.runtime.lanes.lane_runner import StopRequested
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.binding import Binder
from pearl.runtime.protocol.control_block import PARKED, ControlBlock, WorkRange
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import Job, jobs_of_plan
from pearl.runtime.remote import lane_server
from pearl.runtime.remote.lane_server import LaneServer, control_words
from pearl.runtime.remote.messages import CONTROL, FIRINGS, STATE, TEXT, header_words, pack, unpack
from tests.runtime.test_kept_schedules import place, run_arrays, schedule


def control_block(tasks, lanes=3, groups=0):
    cells = np.zeros(ControlBlock.size(len(tasks), lanes, groups), np.int64)
    return ControlBlock(tuple(tasks), lanes, cells, groups)


@pytest.fixture
def bound():
    """Binds the lanes of a kept schedule. seen: slots of each call that was made."""

    def bind(case):
        p = schedule(case)
        _, arrays = run_arrays(p)
        log: list[str] = []

        def bind_call(job, seen, lane):
            names = {place(a, arrays) for n, a in seen.items() if a is not arrays.get(n)}
            text = f"{job.name} {' '.join(sorted(names))}".strip()
            return lambda: log.append(text)

        jobs = {t.name: Job((t.name,), t.kernel, "cpu", "native") for t in p.graph.tasks}
        context: Any = SimpleNamespace(
            protocol=p, arrays=arrays, jobs=jobs, span=WorkRange(3, 9, 1),
            learning=("replay_sample", "update", "replay_update", "param_sync"),
            residency=SimpleNamespace(bind_call=bind_call),
        )  # fmt: skip
        control = control_block(p.graph.repetition)
        binder = Binder(context, control, "lane")
        firings = [binder.bind_firing(f) for k in p.lanes for f in k.firings]
        return SimpleNamespace(
            p=p, arrays=arrays, log=log, binder=binder, control=control, f=firings
        )

    return bind


def test_calls_wait_work_and_publish_as_their_schedule_says(bound):
    x = bound("prioritised")
    cell, rows = x.control.count_cell, []
    for f in x.f:
        waits = [] if f.which is None else [a.tolist() for a in (f.which, f.base, f.step)]
        last = "ever" if f.last > 10**9 else f.last
        rows.append((f.name, f.offset, waits, len(f.calls), f.first, last, f.published))
    c = {t: cell(t) for t in x.p.graph.repetition}
    assert rows == [
        ("update", 0, [[c["replay_sample"], c["replay_update"]], [0, -1], [2, 2]], 3, 4, 10,
         ((c["update"], 1, 2),)),
        ("update", 0, [[c["replay_sample"], c["replay_update"]], [1, 0], [2, 2]], 3, 3, 9,
         ((c["update"], 2, 2),)),
        ("param_sync", 0, [[c["inference"]], [1], [1]], 3, 3, "ever", ((c["param_sync"], 1, 1),)),
        ("inference", 1, [[c["param_sync"]], [-1], [1]], 3, 0, 8, ((c["inference"], 2, 1),)),
        ("env_step", 1, [[c["replay_insert"]], [0], [1]], 3, 0, 8, ((c["env_step"], 2, 1),)),
        ("replay_insert", 0, [[c["env_step"]], [0], [1]], 3, 2, 10, ((c["replay_insert"], 1, 1),)),
        ("replay_sample", 0, [[c["update"]], [-1], [2]], 3, 3, 9, ((c["replay_sample"], 1, 2),)),
        ("replay_update", 0, [[c["update"]], [0], [2]], 3, 4, 10, ((c["replay_update"], 1, 2),)),
        ("replay_sample", 0, [[c["update"]], [0], [2]], 3, 3, 9, ((c["replay_sample"], 2, 2),)),
        ("replay_update", 0, [[c["update"]], [1], [2]], 3, 4, 10, ((c["replay_update"], 2, 2),)),
    ]  # fmt: skip
    assert [f.asynchronous for f in x.f] == [False] * 10
    assert [f.name for f in x.f if f.interruptible] == ["update", "update"]
    for n in range(4):
        x.f[3].calls[n % 3]()
    assert x.log == ["inference policy.q@1", "inference policy.q@2", "inference",
                     "inference policy.q@1"]  # fmt: skip
    assert x.f[6].calls[0] is x.f[8].calls[1]  # slot 0 at rounds 0 and 1: bound once
    x.log.clear()
    x.f[5].calls[2]()
    slot = "@1"  # (-1 + 2) mod 3
    names = ("action", "next_obs", "obs", "reward", "terminated", "truncated")
    assert x.log == [f"replay_insert {' '.join(f'step.{n}{slot}' for n in names)}"]
    x.control.write(cell("param_sync"), 7)
    x.f[2].calls[2]()
    assert x.arrays["version.param_sync"].tolist() == [0, 0, 8]
    assert x.f[2].calls[0].copied_ns == (0,)


def test_the_age_of_parameters_and_priorities_is_recorded(bound):
    x = bound("prioritised")
    age, stale = x.f[3].lag, x.f[8].lag
    versions = x.arrays["version.param_sync"]
    versions[:] = 5, 1, 2
    # due in round n is version n + 1; the slot of round n is (n − 2) mod 3; none is below 3
    assert [age(n) for n in (1, 2, 3, 5, 6)] == [0, 0, 1, 1, 4]
    x.control.write(x.control.count_cell("replay_update"), 4)
    assert [stale(n) for n in (1, 3)] == [1 + 2 - 4 + 2, 1 + 6 - 4 + 2]
    assert x.binder.lags == {"policy_lag": {0: 2, 1: 2, 4: 1}, "priority_staleness": {1: 1, 5: 1}}
    assert [f.name for f in x.f if f.lag] == ["inference", "replay_sample", "replay_sample"]


def test_groups_of_environments_take_turns(bound):
    x = bound("groups")
    inference, env_step = x.f[:2]
    assert (inference.asynchronous, env_step.asynchronous) == (True, False)
    assert (len(inference.calls), len(env_step.calls)) == (2, 2)
    for call in (*inference.calls, *env_step.calls):
        call()
    groups = [sorted({n.partition("@")[2] for n in text.split()[1:]}) for text in x.log]
    assert groups[:2] == [[], ["2"]]
    assert [text.count("@2") > 5 for text in x.log[2:]] == [False, True]


# --- jobs


@pytest.fixture
def plans(monkeypatch):
    kernels = {n: SimpleNamespace(kind=f"kind_{n}") for n in "abcx"}
    tasks = [SimpleNamespace(name=n, kernel=kernels[n]) for n in "abc"]
    fusions = [SimpleNamespace(tasks=("a", "b"), kernel=kernels["x"])]
    graph = SimpleNamespace(tasks=tasks, fusions=fusions)
    devices = [SimpleNamespace(name=n, kind=k) for n, k in
               (("cpu", "cpu"), ("g0", "gpu"), ("g1", "gpu"))]  # fmt: skip
    by_name = {d.name: d for d in devices}
    platform = SimpleNamespace(devices=devices, host="cpu", device=by_name.__getitem__)
    offered = {"kind_a": ["native"], "kind_b": ["native"], "kind_x": ["torch", "fast"]}
    monkeypatch.setattr(
        single_lane, "offers", lambda kernel, host: [(n, 0) for n in offered.get(kernel.kind, [])]
    )

    def jobs(*placed, emulate=False):
        by_task = {t: SimpleNamespace(device=d, variant=v, fused_with=f) for t, d, v, f in placed}
        plan = SimpleNamespace(task=by_task.__getitem__)
        found = jobs_of_plan(plan, graph, platform, emulate=emulate)
        return {
            t: (j.name, j.kernel.kind, j.device_kind, j.variant, j.number) for t, j in found.items()
        }

    return jobs


def test_tasks_have_the_call_and_the_device_of_their_plan(plans):
    found = plans(("a", "g1", "fast", ("b",)), ("b", "g1", "fast", ("a",)), ("c", "g0", "v", ()))
    one = ("a+b", "kind_x", "gpu", "fast", 1)
    assert found == {"a": one, "b": one, "c": ("c", "kind_c", "gpu", "v", 0)}
    apart = ("a", "g1", "v", ()), ("b", "g1", "v", ())
    with pytest.raises(
        SpecError, match=r"\['a', 'c'\] run as one call, .*; it allows \[\['a', 'b'\]\]"
    ):
        plans(("a", "g1", "v", ("c",)), *apart[1:], ("c", "g1", "v", ("a",)))
    one = ("a", "g1", "native", ()), ("b", "cpu", "other", ())
    with pytest.raises(SpecError, match=r"cannot compute c \(kind_c\), which the plan gives to g0"):
        plans(*one, ("c", "g0", "v", ()), emulate=True)
    both = ("a", "g1", "fast", ("b",)), ("b", "g1", "fast", ("a",))
    with pytest.raises(SpecError, match="cannot compute c"):
        plans(*both, ("c", "g0", "v", ()), emulate=True)


@pytest.mark.parametrize(("variant", "emulated"), [("fast", "fast"), ("other", "torch")])
def test_an_emulated_call_has_its_variant_or_the_first_of_the_host(
    plans, monkeypatch, variant, emulated
):
    monkeypatch.setattr(single_lane, "offers", lambda kernel, host: [("torch", 0), ("fast", 0)])
    found = plans(*((t, "g1", variant, ()) for t in "abc"), emulate=True)
    assert found["c"] == ("c", "kind_c", "cpu", emulated, 0)


# --- arrays on devices


class Memory:
    """The memory of a device: names of the arrays that were copied, by their first number."""

    def __init__(self):
        self.log = []

    def holds(self, kernel, variant, name):
        return name != "host only"

    def twin(self, whole):
        return ("twin", id(whole))

    def part(self, mirror, first, shape):
        return (*mirror, first, shape)

    def load(self, pairs):
        self.log.append(("load", [int(a.flat[0]) for a, _ in pairs]))

    def store(self, pairs):
        self.log.append(("store", [int(a.flat[0]) for a, _ in pairs]))

    def firing(self, call, kernel, loads, stores, lane):
        names = [[int(a.flat[0]) for a, _ in pairs] for pairs in (loads, stores)]
        return call, *names, lane


@pytest.fixture
def device(monkeypatch):
    """Tasks d and e on a device, h on the host, with arrays x, y, z, own (1 … 4 by their value)."""
    from pearl.runtime.protocol import residency as module

    memory = Memory()
    uses = {"d": ("x", "y", "own", "host only"), "e": ("y", "z"), "h": ("x", "z")}
    writes = {"d": {"y", "own"}, "e": {"z"}, "h": {"x"}}
    monkeypatch.setattr(
        module, "kind_of",
        lambda kernel: SimpleNamespace(
            arrays=lambda k: dict.fromkeys(uses[kernel]),
            written=lambda names: writes[kernel],
        ),
    )  # fmt: skip
    notes = {"d": "note", "e": "note"}

    class Call:
        def __init__(self, kernel, given):
            self.kernel, self.given, self.note = kernel, given, notes.get(kernel, "")

    kind = SimpleNamespace(memory=lambda number: memory, bind=lambda k, v, given: Call(k, given))
    monkeypatch.setattr(module, "backend", lambda name: kind)
    monkeypatch.setattr(module, "acts", lambda kernel: kernel == "e")
    jobs = {
        t: SimpleNamespace(kernel=t, device_kind="gpu" if t in "de" else "cpu", number=0,
                           variant="v", own_memory=t in "de", tasks=(t,))
        for t in "deh"
    }  # fmt: skip
    arrays = {n: np.full(4, k) for k, n in enumerate(("x", "y", "z", "own", "host only"), 1)}
    return Residency(jobs, arrays), jobs, arrays, memory


def test_arrays_cross_where_tasks_on_both_sides_use_them(device):
    residency, jobs, arrays, memory = device
    plain = residency.bind_call(jobs["h"], arrays)
    assert (plain.kernel, plain.given) == ("h", arrays)
    call, loads, stores, lane = residency.bind_call(jobs["d"], arrays, lane="l")
    assert (loads, stores, lane) == ([1], [], "l")  # h writes x; y and own stay on the device
    assert call.given["host only"] is arrays["host only"]
    assert call.given["x"] == ("twin", id(arrays["x"]))
    assert memory.log == []
    halves = arrays | {"y": arrays["y"][2:]}
    call, loads, stores, _ = residency.bind_call(jobs["e"], halves)
    assert (loads, stores) == ([], [3])  # h reads z
    assert call.given["y"] == ("twin", id(arrays["y"]), 2, (2,))
    assert memory.log == [("load", [2, 3]), ("store", [3])]  # environments start on the device
    memory.log.clear()
    residency.upload_all()
    assert memory.log == [("load", [1, 2, 4, 3])]
    residency.download_all()
    residency.download("o", "x")
    assert memory.log[1:] == [("store", [2, 4]), ("store", [4])]
    assert residency.notes() == ["note"]


# --- a lane server


class Box:
    """A mailbox of the server."""

    def __init__(self):
        self.begun, self.came, self.out, self.done, self.rest = [], [], [], True, []

    def start(self, begin):
        self.begun.append(begin)

    def receive(self, message):
        self.came.append(message)

    def required_counts(self, message):
        return {"a": 3, "elsewhere": 9}

    def ready_messages(self, *, rest=False):
        self.rest.append(rest)
        found, self.out = self.out, []
        return found


class Event:
    def __init__(self):
        self.sets, self.waits, self.then = 0, [], []

    def set(self):
        self.sets += 1

    def wait(self, seconds):
        self.waits.append(seconds)
        self.then.pop(0)()


@pytest.fixture
def server(monkeypatch):
    """A server of lanes 0 and 1 with a clock of the test."""
    x = LaneServer.__new__(LaneServer)
    x.arrays = {"q": np.zeros(2)}
    protocol = SimpleNamespace(lanes=[1, 2, 3], home=2)
    x.context = SimpleNamespace(
        protocol=protocol, wake_events=[Event() for _ in range(4)], any_order=False
    )
    x.lane_group = SimpleNamespace(
        lanes=(0, 1), tasks=("a", "b"), state=lambda protocol, arrays: [arrays["q"]]
    )
    x.control, x._sender = control_block("ab", 3, 1), 3
    x.inbound, x.outbound, x.environments = Box(), Box(), {}
    x._texts, x._failed, x._flushed = deque(), False, 0
    x.now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: x.now[0], sleep=lambda s: x.slept(s), process_time=lambda: 2.5
    )
    monkeypatch.setattr(lane_server, "time", clock)
    return x


def test_the_control_block_of_a_server_has_a_cell_for_its_messages(server, monkeypatch):
    x = server
    monkeypatch.setattr(lane_server, "shared_counters", lambda context: ("a", "b"))
    for any_order, sender in ((False, 3), (True, 2)):
        x.context.any_order = any_order
        x._make_control_block()
        c = x.control
        assert (c.tasks, c.lanes, c.groups, x._sender) == (("a", "b"), 3, 1, sender)
        assert c.cells.ctypes.data % 64 == 0
        assert len(x.context.wake_events) == 4
        assert c.cells.size == ControlBlock.size(2, 3, 1)
        for event in x.context.wake_events:
            event.close()


def test_a_segment_of_a_server_begins_with_arrays_counts_and_environments(server, monkeypatch):
    x, restored, served = server, [], []
    monkeypatch.setattr(
        lane_server.external_envs, "restore", lambda envs, given: restored.append(given)
    )
    over = threading.Event()
    x.runners = [SimpleNamespace(name=n, serve=lambda n=n: served.append(n) or over.wait())
                 for n in ("l0", "l1")]  # fmt: skip
    counts = {"fired": {"a": 4, "b": 6}, "begin": 2, "environments": {"e": 1}}
    x.start(pack([STATE], [np.full(2, 7.0)], counts))
    assert x.arrays["q"].tolist() == [7.0, 7.0]
    c = x.control
    assert [c.read(n) for n in range(2)] == [4, 6]
    assert control_words(c) == (2, 2, 0, 0, 2)
    assert (x._flushed, x.inbound.begun, x.outbound.begun, restored) == (2, [2], [2], [{"e": 1}])
    over.set()
    for thread in x._threads:
        thread.join()
    assert sorted(served) == ["l0", "l1"]
    x.start(pack([STATE], [np.full(2, 7.0)], counts | {"environments": None}))
    assert len(restored) == 1


def test_a_lane_of_a_server_that_fails_says_so(server):
    x = server

    def fails():
        raise KeyError("why")

    def stops():
        raise StopRequested

    for serve in (stops, fails):
        x._run(SimpleNamespace(name="l0", serve=serve))
    assert list(x._texts) == [{"lane": "l0", "error": "KeyError: 'why'"}]
    assert x._failed
    assert x.context.wake_events[3].sets == 1


def test_messages_wait_until_their_slots_were_read(server):
    x, c = server, server.control
    c.write(c.sleep_cell(1), 1)
    reads = []

    def slept(seconds):
        reads.append(seconds)
        c.write(0, len(reads))

    x.slept = slept
    message = pack([FIRINGS, 0])
    x.push([message, pack([CONTROL, 5, 6, 0, 0, 7])])
    assert (x.inbound.came, reads) == ([message], [lane_server.POLL_S] * 3)
    assert control_words(c) == (5, 6, 0, 0, 7)
    assert [e.sets for e in x.context.wake_events] == [3, 4, 3, 3]
    c.write(0, 0)
    x._failed = True
    x.push([message])
    x._failed = False
    c.write(c.stop_cell, 1)
    x.push([message])
    c.write(c.stop_cell, 0)
    x.slept = lambda s: x.now.__setitem__(0, x.now[0] + 60.5)
    with pytest.raises(RuntimeError, match="the lanes have read no message for 120 s"):
        x.push([message])
    assert len(x.inbound.came) == 3


def test_what_is_ready_is_pulled_and_the_state_follows_all_firings(server, monkeypatch):
    x, c = server, server.control
    monkeypatch.setattr(lane_server.external_envs, "snapshot", lambda envs: {"e": 1})
    event = x.context.wake_events[3]
    x._send_status(failure="f", lost=2)
    x.outbound.out = [pack([FIRINGS, 0])]
    assert [header_words(m)[0] for m in x.pull(1.0)] == [TEXT, FIRINGS]
    seen = []

    def later():
        seen.append((event.waits[-1], c.read(c.sleep_cell(3))))
        x.now[0] += 0.06
        if len(seen) == 2:
            x.outbound.out = [pack([FIRINGS, 1])]

    event.then = [later] * 9
    (message,) = x.pull(1.0)
    assert (header_words(message)[:2], seen) == ([FIRINGS, 1], [(0.05, 1)] * 2)
    assert c.read(c.sleep_cell(3)) == 0
    assert x.pull(0.1) == []
    assert event.waits[2:] == pytest.approx([0.05, 0.04])
    c.write(c.flush_cell, 4)
    c.write(c.flushed_cell(0), 4)
    assert x._next() == []  # the other lane has not come there
    c.write(c.flushed_cell(1), 4)
    x.outbound.done = False
    assert x._next() == []
    x.outbound.done = True
    x.arrays["q"][:] = 9
    (state,) = x._next()
    into = np.zeros(2)
    assert unpack(state, [into]) == {"at": 4, "environments": {"e": 1}}
    assert (header_words(state)[:3], into.tolist()) == ([STATE, 4, 2_500_000], [9, 9])
    assert x.outbound.begun == [4]
    assert x._next() == []
    for lane in (0, 1):
        c.write(c.flushed_cell(lane), PARKED)
    x.outbound.rest.clear()
    (state,) = x._next()
    assert (header_words(state)[1], x.outbound.rest) == (PARKED, [False, True])
    assert x._next() == []


def test_a_server_ends_with_what_its_lanes_measured(server):
    x, joined = server, []
    x._threads = [SimpleNamespace(join=lambda timeout: joined.append(timeout))] * 2
    x.runners = [
        SimpleNamespace(
            times_ns={n: [1]}, lags={"l": {0: 1}}, record=lambda n=n: {"lane": n, "kept": [1]}
        )
        for n in "ab"
    ]  # fmt: skip
    assert x.end() == {
        "times_ns": {"a": [1], "b": [1]}, "lags": {"l": {0: 2}}, "cpu_s": 2.5,
        "records": [{"lane": "a", "kept": []}, {"lane": "b", "kept": []}],
    }  # fmt: skip
    assert joined == [5.0, 5.0]
    assert x.control.read(x.control.stop_cell) == 1
    assert [e.sets for e in x.context.wake_events] == [1] * 4
    x.control.write(x.control.stop_cell, 0)
    x.kill()
    assert x.control.read(x.control.stop_cell) == 1


def test_other_sources_of_kernels_are_refused_and_the_path_comes_first(server, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/mine", "/both"])
    with pytest.raises(RuntimeError, match="this host has other sources of PEARL's kernels"):
        server.bind({"path": ["/theirs", "/both"], "sources": "other"}, pack([STATE]))
    assert sys.path == ["/theirs", "/both", "/mine"]
    with pytest.raises(RuntimeError, match="other sources"):
        server.bind({"path": None, "sources": "other"}, pack([STATE]))
    assert sys.path == ["/theirs", "/both", "/mine"]
