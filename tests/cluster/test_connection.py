"""A cluster of the user's: what is said of it, and in which words it cannot be used. Ray itself is
a stand-in here; `test_real_cluster.py` has raylets."""

import os
import platform
import signal
import socket
import sys
from types import ModuleType, SimpleNamespace

import pytest

from pearl.cluster import connect, connection, nodes
from pearl.errors import SpecError

CONNECT = socket.create_connection


class Failed(Exception):
    """What the stand-in raises for a task that fails."""


class Late(Failed):
    """What the stand-in raises for a task that is not done."""


def entry(name, address="10.0.0.1", alive=True, node_id=None, **resources):
    return {
        "NodeName": name,
        "NodeID": node_id or name * 8,
        "NodeManagerAddress": address,
        "Alive": alive,
        "Resources": {"CPU": 4.0, "memory": 8e9, "GPU": 1.0} | resources,
    }


class StandIn(ModuleType):
    """A module `ray` of a cluster with these nodes.

    answers: node id → what the look at it gives, or the exception that it ends with.
    """

    def __init__(self, table=(), answers=None, refusal=None):
        super().__init__("ray")
        self.table, self.answers, self.refusal = list(table), answers or {}, refusal
        self.open, self.asked, self.options = False, [], {}
        self.waited, self.cancelled = [], []
        constants = SimpleNamespace(ENABLE_RAY_CLUSTER=False)
        self._private = SimpleNamespace(ray_constants=constants)
        self.exceptions = SimpleNamespace(RayError=Failed, GetTimeoutError=Late)

    def is_initialized(self):
        return self.open

    def init(self, **options):
        self.options = options
        signal.signal(signal.SIGTERM, lambda *given: sys.exit(1))  # as Ray does
        if self.refusal:
            raise self.refusal
        self.open = True

    def shutdown(self):
        self.open = False

    def nodes(self):
        return self.table

    def remote(self, function):
        def options(scheduling_strategy, **more):
            def run(*given):
                node = scheduling_strategy.node_id
                self.asked.append(node)
                return self.answers.get(node, function(*given))

            return SimpleNamespace(remote=run)

        return SimpleNamespace(options=options)

    def wait(self, answers, *, num_returns, timeout):
        self.waited.append(timeout)
        return answers, []

    def get(self, answer, timeout):
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, answer, force):
        self.cancelled.append((answer, force))


class Strategy:
    def __init__(self, node_id, soft):
        self.node_id, self.soft = node_id, soft


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a module in the place of Ray."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv(connection.LOOPBACK, "0")
    monkeypatch.setattr(connection.socket, "create_connection", lambda *given: socket.socket())
    monkeypatch.setattr(connection, "_checked", set())
    found = ModuleType("ray.util.scheduling_strategies")
    found.NodeAffinitySchedulingStrategy = Strategy

    def put(*table, **more):
        module = StandIn(table, **more)
        monkeypatch.setitem(sys.modules, "ray", module)
        monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
        monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", found)
        return module

    return put


def said(call=nodes):
    with pytest.raises(SpecError) as caught:
        call()
    return "\n".join(caught.value.problems)


def test_a_cluster_is_joined_and_none_is_started(stand_in):
    ray = stand_in(entry("a"))
    before = signal.getsignal(signal.SIGTERM)
    assert connect() is ray
    assert connect() is ray
    assert signal.getsignal(signal.SIGTERM) is before
    assert ray.options["address"] == "127.0.0.1:6379"
    path = ray.options["runtime_env"]["env_vars"]["PYTHONPATH"].split(":")
    assert str(connection.os.getcwd()) in path
    assert path[-1] == "${PYTHONPATH}"


def test_without_ray_the_extra_is_named(stand_in, monkeypatch):
    stand_in()
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'pearl-toolkit[ray]'" in said(connect)


def test_without_a_cluster_the_command_for_one_on_the_loopback_is_named(
    stand_in, monkeypatch, tmp_path
):
    ray = stand_in(entry("a"))
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    text = said()
    assert "no Ray cluster runs on this machine" in text
    assert connection.START in text
    assert ray.options == {}
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:7777")
    nodes()
    assert ray.options["address"] == "127.0.0.1:7777"


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("token", "everyone who reaches it with its token"),
        ("disabled", "code of everyone who reaches it$"),
    ],
)
def test_a_cluster_that_others_can_reach_is_told(stand_in, monkeypatch, mode, words):
    stand_in(entry("a"))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.warns(UserWarning, match=words):
        connect()


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (RuntimeError("Version mismatch: The cluster was started with:\n Ray: 2.61.0"), "2.61.0"),
        (RuntimeError("Token authentication is enabled but no token"), "RAY_AUTH_TOKEN_PATH"),
        (RuntimeError("Unauthenticated"), "RAY_AUTH_TOKEN_PATH"),
        (RuntimeError("No node info found matching attributes"), "no node of the cluster"),
        (
            RuntimeError("no node to connect to"),
            "join it first: ray start --address=127.0.0.1:6379",
        ),
        (ValueError("x" * 401), "ValueError: " + "x" * 400),
        (ValueError("something else"), "ValueError: something else"),
    ],
)
def test_a_refusal_of_ray_is_a_sentence_with_the_remedy(stand_in, refusal, words):
    ray = stand_in(refusal=refusal)
    text = said()
    assert words in text
    assert "\n" not in text
    assert len(text) < 600
    assert not ray.open


@pytest.mark.parametrize(
    "address", ["ray://10.0.0.1:10001", "local", "10.0.0.1", "a:b", ":6379", "a:0", "a:65536"]
)
def test_an_address_that_is_none_is_refused_before_ray_sees_it(stand_in, monkeypatch, address):
    ray = stand_in(entry("a"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert "HOST:PORT" in said()
    assert ray.options == {}


def test_ray_that_would_leave_the_loopback_is_not_connected(stand_in):
    ray = stand_in(entry("a"))
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = True
    assert f"set {connection.LOOPBACK}=0" in said()
    assert ray.options == {}


def test_a_head_that_does_not_answer_is_named_before_ray_tries(stand_in, monkeypatch):
    ray = stand_in(entry("a"))
    monkeypatch.setattr(connection.socket, "create_connection", CONNECT)
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert f"the Ray cluster at {address} does not answer" in said()
    assert ray.options == {}


def test_two_nodes_of_one_name_are_refused_with_both_places(stand_in):
    stand_in(entry("a", node_id="1"), entry("a", "10.0.0.2", node_id="2"))
    assert "2 nodes are named a (at 10.0.0.1, 10.0.0.2)" in said()


def alike(**other):
    return connection._make_inspect()(connection.PACKAGES) | other


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"Python": "3.1.4"}, f"has Python 3.1.4, this machine {platform.python_version()}"),
        ({"pearl": ""}, "has no package pearl; install"),
        ({"pearl_devices": "other"}, "has other sources of pearl_devices"),
    ],
)
def test_a_node_that_differs_is_named_with_its_difference(stand_in, answer, words):
    stand_in(entry("a"), entry("b", "10.0.0.2"), answers={"b" * 8: alike(**answer)})
    text = said()
    assert text.startswith("node b (10.0.0.2) ")
    assert words in text


def test_a_head_is_reached_within_its_limit_and_ray_is_told_to_stay_local(stand_in, monkeypatch):
    asked = []
    reach = lambda *given: asked.append(given) or socket.socket()  # noqa: E731
    monkeypatch.setattr(connection.socket, "create_connection", reach)
    for name in (connection.LOOPBACK, connection.TRIES[0]):
        monkeypatch.delenv(name, raising=False)
    ray = stand_in(entry("a"))
    connect()
    assert (os.environ[connection.LOOPBACK], os.environ["RAY_NUM_REDIS_GET_RETRIES"]) == ("0", "2")
    assert connection._reach("[::1]:65535") == "[::1]"
    assert asked == [(("127.0.0.1", 6379), 5.0), (("::1", 65535), 5.0)]
    assert (ray.options["log_to_driver"], ray.options["logging_level"]) == (False, "ERROR")
    monkeypatch.setattr(sys, "path", ["/a", "/b.zip", "/a", ""])
    assert connection._path() == f"/a:{os.getcwd()}"


@pytest.mark.parametrize("given", ["soon", "0", "0.9", "-1", "nan", "inf", "86401"])
def test_a_time_to_answer_that_is_none_is_refused(stand_in, monkeypatch, given):
    monkeypatch.setenv("PEARL_ANSWER_S", given)
    stand_in(entry("a"))
    text = said()
    assert f"PEARL_ANSWER_S is '{given}'; a number of seconds from 1 to 86400 is needed" in text


def test_a_changed_source_is_another_digest(tmp_path, monkeypatch):
    package = tmp_path / "seen_from_afar"
    package.mkdir()
    (package / "__init__.py").write_text("one = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    look = connection._make_inspect()
    before = look(("seen_from_afar", "not_there"))
    (package / "__init__.py").write_text("one = 2\n")
    after = look(("seen_from_afar", "not_there"))
    assert before["not_there"] == after["not_there"] == ""
    assert before["seen_from_afar"] != after["seen_from_afar"] != ""
