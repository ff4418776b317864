"""How messages between nodes are timed, and how nodes are asked: with clocks of the test."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pearl.cluster import discovery, links
from pearl.cluster.connection import Node
from pearl.cluster.links import MeasuredLink
from pearl.cluster.timing import TimedMessage

HOME, OTHER, MUTE = (Node(n, n * 8, f"10.0.0.{k}", 4 - k, 0, 1e9) for k, n in enumerate("abc", 1))


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


# --- timing messages


# --- links


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
