"""How messages between nodes are timed, and how nodes are asked: with clocks of the test."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from queue import Empty
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.cluster import discovery, links, timing
from pearl.cluster.chunks import PIECE
from pearl.cluster.connection import Node
from pearl.cluster.links import MeasuredLink
from pearl.cluster.timing import TimedMessage, _ByRay, _ByWire, _Echo
from pearl.errors import SpecError
from pearl_devices import Device, Link
from pearl_devices.base import UNTIMED
from pearl_estimators.sealed_files import CalibrationError

HOME, OTHER, MUTE = (Node(n, n * 8, f"10.0.0.{k}", 4 - k, 0, 1e9) for k, n in enumerate("abc", 1))
ONE = np.arange(3, dtype=np.uint8)


class Late(Exception):
    pass


class Failed(Exception):
    pass


class LateError(Failed):
    pass


class Ray:
    """A module `ray` whose tasks run at once. answers: node → its answer, or the error of it."""

    exceptions = SimpleNamespace(RayError=Failed, GetTimeoutError=LateError)

    def __init__(self, answers=None):
        self.answers, self.asked, self.times_s, self.cancelled = answers or {}, [], [], []
        self.killed, self.limits_s = [], []

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: HOME.id)

    def remote(self, function):
        def options(node, **more):
            assert more == {"num_cpus": 0, "max_retries": 0}

            def run(*given):
                self.asked.append((node, *given))
                return self.answers.get(node, node)

            return SimpleNamespace(remote=run)

        return SimpleNamespace(options=options)

    def wait(self, pending, *, num_returns, timeout):
        self.limits_s.append((len(pending), num_returns, timeout))

    def get(self, answer, timeout=None):
        self.times_s.append(timeout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, answer, force):
        self.cancelled.append((answer, force))


@pytest.fixture
def cluster(monkeypatch):
    """Three nodes, this one first, of which the last has no cores; and the module `ray`."""
    ray, nodes = Ray(), [OTHER, HOME, replace(MUTE, cores=0)]
    connection = discovery.connection
    monkeypatch.setattr(connection, "connect", lambda: ray)
    monkeypatch.setattr(connection, "nodes", lambda: nodes)
    monkeypatch.setattr(connection, "on_node", lambda node: {"node": node.name})
    monkeypatch.setattr(connection, "answer_s", lambda: 7.0)
    return ray


# --- asking nodes


def test_every_node_with_cores_lists_its_devices(cluster):
    ray = cluster
    assert discovery._inspect_nodes(ray, [OTHER, MUTE]) == ["b", "c"]
    assert ray.asked == [("b",), ("c",)]
    assert (ray.limits_s, ray.times_s) == ([(2, 2, 7.0)], [0.1, 0.1])
    assert discovery._inspect_nodes(ray, []) == []
    assert len(ray.limits_s) == 1
    ray.answers = {"b": Failed("no\n port"), "c": Failed("x" * 400)}
    with pytest.raises(SpecError) as caught:
        discovery._inspect_nodes(ray, [OTHER, MUTE])
    one, two = caught.value.problems
    assert one.startswith("node b (10.0.0.2) does not list its devices: no port; check its load")
    assert f" {'x' * 300}; " in two
    found = discovery._inspect()
    assert [d["name"] for d in found["devices"]] == [
        d.name for d in discovery.discover.host().devices
    ]
    assert found["versions"] == discovery.versions()


def test_a_platform_has_this_node_and_all_others_with_cores(cluster, monkeypatch):
    joined, measured = [], []
    monkeypatch.setattr(discovery.discover, "host", lambda: "this host")
    monkeypatch.setattr(discovery, "_machine", lambda node, answer: (node.name, answer))
    monkeypatch.setattr(discovery.links, "link", lambda home, n, by: (home.name, n.name, by))
    monkeypatch.setattr(discovery, "join_hosts", lambda *given: joined.append(given) or "joined")
    monkeypatch.setattr(discovery.calibrator, "set_remote_hosts", measured.append)
    assert discovery.platform("tcp") == "joined"
    assert joined == [("ray", {"a": "this host", "b": ("b", "b")}, [("a", "b", "tcp")])]
    assert [list(each) for each in measured] == [["b"]]


def test_a_cpu_of_some_cores_has_that_share_of_its_rates():
    cpu = Device(
        "cpu", "cpu", width=4, max_lanes=8, real=True, peak_flops_per_s=4e9,
        memory_bytes_per_s=8e9, sources={"x": "y"},
    )  # fmt: skip
    assert discovery._take_cores(cpu, 4) is cpu
    source = "1 of 4 cores, as Ray allocates on this node"
    assert discovery._take_cores(cpu, 1) == replace(
        cpu, width=1, max_lanes=1, peak_flops_per_s=1e9, memory_bytes_per_s=2e9,
        sources={"x": "y", "width": source, "max_lanes": source},
    )  # fmt: skip


def test_one_node_of_each_machine_is_calibrated_and_this_one_comes_first(cluster, monkeypatch):
    ray = cluster
    twin = replace(OTHER, name="b2", address=HOME.address)
    monkeypatch.setattr(discovery.connection, "nodes", lambda: [twin, OTHER, MUTE, HOME])
    monkeypatch.setattr(discovery.measuring, "limit_of", lambda seconds: 10 * seconds)
    received = []

    def receive(ray, node, answer, limit_s):
        received.append((node.name, answer, limit_s))
        return f"of {node.name}", ""

    monkeypatch.setattr(discovery, "_receive", receive)
    no_cores = replace(MUTE, cores=0)
    monkeypatch.setattr(discovery.connection, "nodes", lambda: [twin, OTHER, no_cores, HOME])
    found = discovery.calibrate(2.0)
    assert list(found.items()) == [("a", "of a"), ("b2", "of a"), ("b", "of b")]
    assert sorted(ray.asked) == [("a", 2.0, 20.0), ("b", 2.0, 20.0)]
    assert sorted(received) == [("a", "a", 20.0), ("b", "b", 20.0)]
    ray.asked.clear()
    discovery.calibrate(2.0, 5.0)
    assert {given[1:] for given in ray.asked} == {(2.0, 5.0)}


def test_a_node_measures_itself_or_says_why_it_cannot(monkeypatch):
    asked = []

    def measure(**given):
        asked.append(given)
        if len(asked) > 1:
            raise CalibrationError("busy")
        return SimpleNamespace(to_json=lambda: {"x": 1})

    monkeypatch.setattr(discovery.measuring, "calibrate", measure)
    assert [discovery._calibrate(2.0, 3.0) for _ in range(2)] == [({"x": 1}, ""), ({}, "busy")]
    assert asked[0] == {"seconds": 2.0, "force": True, "limit_s": 3.0}
    found = SimpleNamespace(to_json=lambda: {"x": 2})
    monkeypatch.setattr(discovery.measuring, "measured_calibration", lambda g: (found, str(g)))
    assert discovery._measure_groups(["a"]) == ({"x": 2}, "['a']")


def test_a_first_request_goes_to_all_nodes_at_once(cluster, monkeypatch):
    ray, received = cluster, []
    monkeypatch.setattr(discovery.measuring, "limit_of", lambda seconds: 10 * seconds)
    monkeypatch.setattr(discovery.measuring, "SECONDS", 3.0)
    monkeypatch.setattr(
        discovery, "_receive", lambda *given: received.append(given[1:]) or given[2]
    )
    measures = discovery._measuring(ray, [OTHER, MUTE])
    assert measures["b"](["g"]) == "b"
    assert ray.asked == [("b", ("g",)), ("c", ("g",))]
    assert measures["c"](["g"]) == "c"
    assert len(ray.asked) == 2
    measures["c"](["h"])
    assert len(ray.asked) == 4
    assert received[1] == (MUTE, "c", 60.0)


def test_an_answer_of_a_node_is_a_calibration_or_its_reason(cluster, monkeypatch):
    ray = cluster
    monkeypatch.setattr(discovery.Calibration, "from_json", lambda plain: ("from", plain))
    assert discovery._receive(ray, OTHER, ({"x": 1}, "why"), 5.0) == (("from", {"x": 1}), "why")
    assert ray.times_s == [12.0]
    late = LateError()
    for answer, text in (
        (({}, "no compiler"), "node b (10.0.0.2): no compiler"),
        (late, "node b (10.0.0.2) did not finish timing its kernels within 12 s; run"),
        (Failed("a\n b"), "node b (10.0.0.2) could not time its kernels: a b"),
    ):
        with pytest.raises(CalibrationError) as caught:
            discovery._receive(ray, OTHER, answer, 5.0)
        assert str(caught.value).startswith(text)
    assert ray.cancelled == [(late, True)]


# --- timing messages


class Clock:
    """Seconds that go on by sleeping and by messages."""

    def __init__(self, monkeypatch):
        self.now, self.slept = 0.0, []
        monkeypatch.setattr(timing, "time", self)

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def test_turns_are_timed_for_their_time_and_two_at_least(monkeypatch):
    clock = Clock(monkeypatch)

    def turn(seconds):
        clock.now += seconds

    assert timing._time_turns(lambda: turn(0.08)) == pytest.approx([0.005, 0.005])
    assert timing._time_turns(lambda: turn(1.6)) == pytest.approx([0.1, 0.1])
    assert len(timing._time_turns(lambda: turn(0.032))) == 5
    turns = SimpleNamespace(turn=lambda array: turn(0.25) or array)
    assert timing._one_by_one(turns, 7) == [7, 7, 7]
    turns = SimpleNamespace(turn=lambda array: turn(0.0625) or array)
    assert timing._one_by_one(turns, 7) == [7, 7, 7]
    turns = SimpleNamespace(turn=lambda array: turn(0.03125) or array)
    assert timing._one_by_one(turns, 7) == [7] * 5


class Wire:
    """A transport; what is sent, and how often something is received."""

    def __init__(self):
        self.sent, self.received = [], []

    def send(self, messages):
        self.sent += messages

    def receive(self, within_s):
        self.received.append((within_s, len(self.sent)))
        return [ONE]


def test_over_a_transport_a_row_is_answered_once_for_all_its_messages(monkeypatch):
    monkeypatch.setattr(timing, "_time_turns", lambda turn: [turn(), turn(), 1.0])
    by = _ByWire(wire := Wire())
    assert by.asked(9) is None
    assert by.in_a_row(ONE) == [None, None, 1.0]
    assert [m.tolist() for m in wire.sent] == [[1, 1, 2]] * 48  # one row ahead
    assert wire.received == [(30.0, 32), (30.0, 48), (30.0, 48)]
    assert ONE[0] == 0
    by.send(ONE)
    by.back(None)
    assert wire.sent[-1] is ONE
    assert wire.received[-1] == (30.0, 49)


class Actor:
    """The actor at the other end of calls of Ray. under_way: calls not waited for."""

    def __init__(self, ray):
        self.ray, self.calls, self.under_way, self.most = ray, [], 0, 0
        ray.get = self.get

    def __getattr__(self, name):
        return Method(self, name)

    def get(self, reference, timeout):
        assert timeout == timing.CALL_S
        self.under_way -= 1
        return self.ray.back


class Method:
    def __init__(self, actor, name, **options):
        self.actor, self.name, self.given = actor, name, options

    def options(self, **options):
        return Method(self.actor, self.name, **options)

    def remote(self, *parts):
        self.actor.calls.append((self.name, self.given, [len(p) for p in parts]))
        self.actor.under_way += 1
        self.actor.most = max(self.actor.most, self.actor.under_way)
        return self.name


def test_by_ray_a_row_has_as_many_calls_under_way_and_waits_for_all(monkeypatch):
    monkeypatch.setattr(timing, "_time_turns", lambda turn: [turn(), turn()])
    ray = Ray()
    actor, ray.back = Actor(ray), 1
    by = _ByRay(ray, actor)
    large = np.zeros(PIECE + 5, np.uint8)
    assert by.in_a_row(large) == [None, None]
    assert actor.calls == [("taken", {}, [PIECE, 5])] * 48
    assert (actor.under_way, actor.most) == (0, 16)
    actor.calls.clear()
    by.send(large)
    assert by.asked(large.size) == "give"
    ray.back = [ONE, ONE]
    by.back("give")
    ray.back = ONE
    by.back("give")
    assert actor.calls == [
        ("take", {"concurrency_group": "into"}, [PIECE, 5]),
        ("give", {"concurrency_group": "out", "num_returns": 2}, []),
    ]


def test_the_actor_gives_back_what_it_takes_and_counts_a_row(monkeypatch):
    echo = _Echo()
    large = np.arange(PIECE + 5).astype(np.uint8)
    echo.take(large[:7], large[7:])
    assert np.array_equal(np.concatenate(echo.give()), large)
    echo.take(ONE)
    assert echo.give() is not None
    assert echo.taken(ONE, ONE[:2]) == 5
    monkeypatch.setattr(timing, "CALL_S", 0.01)
    with pytest.raises(Empty):
        echo.give()
    counted = np.array([timing.COUNTED, 9], np.uint8)
    batches = [[ONE, *[counted] * 15], [counted, *[counted] * 17]]

    class Joined(Wire):
        def receive(self, within_s):
            if not batches:
                raise RuntimeError("gone")
            return batches.pop(0)

    wire, loops = Joined(), []
    monkeypatch.setattr(timing, "join", lambda at: wire)
    echo._loop = loops.append
    echo.join("at")
    receive, send = loops
    receive()
    receive()
    taken = [echo._taken.get_nowait().tolist() for _ in range(echo._taken.qsize())]
    # the thread of the lane may have moved some on
    moved = [echo._given.get(timeout=60.0).tolist() for _ in range(3 - len(taken))]
    assert moved + taken == [[0, 1, 2], [1], [1]]
    echo._given.put(ONE)
    send()
    assert wire.sent == [ONE]


def test_sizes_are_timed_in_turns_and_their_lower_quartiles_kept(cluster, monkeypatch):
    ray, made, order = cluster, [], []

    class Way:
        def in_a_row(self, message):
            order.append(("row", message.size))
            return [0.001 * n * message.size for n in range(1, 20)]

    class Turns:
        def __init__(self, by):
            assert isinstance(by, Way)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            order.append("over")

        def turn(self, array):
            order.append(("first", array.size))

    def one_by_one(turns, array):
        order.append(("alone", array.size))
        return [0.01 * n for n in range(1, 20)]

    class Within:
        def __init__(self, *given):
            made.append(given)

        def __enter__(self):
            return Way()

        def __exit__(self, *error):
            return None

    def remote(concurrency_groups):
        assert concurrency_groups == {"into": 1, "out": 1}

        def options(**given):
            assert given == {"num_cpus": 0, "node": "b"}
            return SimpleNamespace(remote=lambda: "actor")

        return lambda kind: SimpleNamespace(options=options)

    ray.remote, ray.kill = remote, ray.killed.append
    monkeypatch.setattr(timing, "_way", Within)
    monkeypatch.setattr(timing, "_Turns", Turns)
    monkeypatch.setattr(timing, "_one_by_one", one_by_one)
    found = timing.time_messages(HOME, OTHER, "tcp", [4, 8])
    assert made == [(ray, "actor", "tcp", HOME)]
    round_ = [("alone", 4), ("row", 4), ("alone", 8), ("row", 8)]
    assert order == [("first", 4), ("first", 8), *round_ * 3, "over"]
    # 57 times, three of each: the quartile is the 14.5th, the ends are the 2.9th and the 55.1th
    assert [t.size_bytes for t in found] == [4, 8]
    assert [t.one_way_s for t in found] == pytest.approx([0.025, 0.025])
    assert [t.pipelined_s for t in found] == pytest.approx([0.02, 0.04])
    assert [t.spread for t in found] == pytest.approx([19.0, 19.0])
    assert ray.killed == ["actor"]
    for error in (RuntimeError("cut\n off"), Failed("cut\n off")):
        monkeypatch.setattr(Way, "in_a_row", lambda self, m, e=error: (_ for _ in ()).throw(e))
        why = r"^node b \(10.0.0.2\) does not answer by tcp while its link is timed: cut off$"
        with pytest.raises(CalibrationError, match=why):
            timing.time_messages(HOME, OTHER, "tcp", [4])


def test_a_message_goes_after_a_pause_and_its_return_was_asked_for(monkeypatch):
    clock, order = Clock(monkeypatch), []

    class Way:
        def asked(self, size_bytes):
            order.append(("asked", size_bytes, clock.now))
            return size_bytes

        def send(self, message):
            clock.now += 0.5
            order.append(("send", message.size))

        def back(self, asked):
            while len(order) < 2:
                pass
            order.append(("back", asked))

    with timing._Turns(Way()) as turns:
        assert turns.turn(ONE) == pytest.approx(0.5)
    assert order == [("asked", 3, 0.0), ("send", 3), ("back", 3)]
    assert clock.slept == [0.01]
    assert not any(t.is_alive() for t in turns._threads)

    class Broken(Way):
        def send(self, message):
            raise ValueError("torn")

        def back(self, asked):
            over.wait()

    over = threading.Event()
    monkeypatch.setattr(timing, "CALL_S", 0.01)
    with timing._Turns(Broken()) as turns, pytest.raises(ValueError, match="torn"):
        turns.turn(ONE)
    over.set()


# --- links


def test_a_link_of_a_node_is_measured_by_each_carrier(cluster, monkeypatch):
    kept, timed = [], []

    def time_messages(home, other, carrier, sizes):
        timed.append((home.name, other.name, carrier, sizes))
        return carrier

    monkeypatch.setattr(links, "time_messages", time_messages)
    monkeypatch.setattr(links, "measure_link", lambda home, n, by, timings: (n.name, by, timings))
    monkeypatch.setattr(links, "_keep", kept.extend)
    found = links.measure([5])
    assert timed == [("a", "b", "tcp", [5]), ("a", "b", "ray", [5])]
    assert found == kept == [("b", "tcp", "tcp"), ("b", "ray", "ray")]


def test_a_measured_link_has_the_median_of_its_errors(monkeypatch):
    monkeypatch.setattr(links, "fit_link", lambda timings: (1.0, 2.0, 10.0))
    at = (2026, 1, 2, 3, 4, 5, 0, 0, 0)
    clock = SimpleNamespace(strftime=time.strftime, gmtime=lambda: at)
    monkeypatch.setattr(links, "time", clock)
    timings = [TimedMessage(10, 1.0, 4.0, 1.5), TimedMessage(30, 4.0, 2.0, 2.5)]
    found = links.measure_link(HOME, OTHER, "tcp", timings)
    # predicted: 2, 3; 4, 5. Errors: 1, 1/4; 0, 3/2
    assert found.errors(timings) == pytest.approx([1.0, 0.25, 0.0, 1.5])
    assert found == MeasuredLink(
        "a", "b", ("10.0.0.1", "10.0.0.2"), "tcp", "2026-01-02T03:04:05Z", 1.0, 2.0, 10.0, 0.625,
        tuple(timings),
    )  # fmt: skip
    assert found.predicted(20) == (3.0, 4.0)


@pytest.mark.parametrize("name", ["latency_s", "per_message_s", "bytes_per_s", "error"])
@pytest.mark.parametrize("value", [-1e-9, float("inf"), float("nan"), 1])
def test_figures_of_a_link_are_finite_and_not_negative(name, value):
    figures = {"latency_s": 0.0, "per_message_s": 0.0, "bytes_per_s": 1.0, "error": 0.0}
    ends = "a", "b", ("x", "y"), "tcp", "2026"
    assert MeasuredLink(*ends, **figures, timings=())
    with pytest.raises(ValueError, match=f"^{name} is .*; it must be a finite number, at least 0$"):
        MeasuredLink(*ends, **figures | {name: value}, timings=())
    with pytest.raises(ValueError, match="bytes_per_s is 0; it must be above 0"):
        MeasuredLink(*ends, **figures | {"bytes_per_s": 0.0}, timings=())


@pytest.mark.parametrize(
    ("carrier", "latency_s", "per_message_s", "bytes_per_s"),
    [("tcp", 3e-4 + 3.5e-4, 4e-5, 4.7e8), ("ray", 1.1e-3 + 3.5e-4, 2.5e-4, 9e8)],
)
def test_a_link_that_was_not_measured_is_assumed(
    carrier, latency_s, per_message_s, bytes_per_s, monkeypatch
):
    monkeypatch.setattr(links, "load_links", list)
    source = f"assumed: {carrier} as between two raylets of one machine; "
    source += "`pearl calibrate --on ray` times it"
    found = links.link(HOME, OTHER, carrier)
    assert found == Link(
        "a", "b", latency_s=latency_s, per_message_s=per_message_s,
        bytes_per_s=bytes_per_s, band=UNTIMED,
        sources=dict.fromkeys(("latency_s", "per_message_s", "bytes_per_s"), source),
    )  # fmt: skip
