"""The variant `graph` on the stand-in: it computes what eager computes, or says why it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import Job
from pearl_devices import kernel, trust_kind
from pearl_devices.gpu.streams import HostGraph
from pearl_devices.kernels.examples import fill_arrays
from tests.gpu_lanes import gpu_plan
from tests.lanes import trained

STAND_IN = "pearl_devices.gpu.stand_in"
trust_kind(STAND_IN)
Q, ACTOR, CRITIC = (4, 16, 2), (3, 16, 1), (4, 16, 1)
TWINS = {"critic1": CRITIC, "critic2": CRITIC}
ROLLOUT = {"envs": 4, "obs": 3, "act": 1, "horizon": 8, "tanh": 1, "actor": ACTOR,
           "critic": (3, 16, 1)}  # fmt: skip
UPDATES = {
    "dqn": kernel(
        "update.dqn", program="pearl.algorithms.dqn:losses", obs=4, act=0, q=Q, double=1, batch=8,
        steps=3,
    ),
    "td3": kernel(
        "update.td3", program="pearl.algorithms.td3:losses", obs=3, act=1, **TWINS, actor=ACTOR,
        policy_delay=2, batch=8, steps=3,
    ),
    "sac": kernel(
        "update.sac", program="pearl.algorithms.sac:losses", obs=3, act=1, **TWINS,
        actor=(3, 16, 2), alpha=(0, 1), batch=8, steps=3,
    ),
    "ppo": kernel(
        "update.ppo", program="pearl.algorithms.ppo:losses", **ROLLOUT, epochs=2, batch=8, steps=8,
    ),
    "a2c": kernel(
        "update.a2c", program="pearl.algorithms.a2c:losses", **ROLLOUT, epochs=1, batch=32, steps=1,
    ),
}  # fmt: skip


def fired(of: Any, variant: str, firings: int, **changes: Any) -> tuple[Any, list[str]]:
    """The arrays after so many firings on the stand-in, and the notes."""
    arrays = fill_arrays([of])
    for name, value in changes.items():
        arrays[f"hyper.{name}"][:] = value
    job = Job(("learn",), of, STAND_IN, variant)
    residency = Residency({"learn": job}, arrays)
    call = residency.bind_call(job, arrays)
    residency.upload_all()
    for _ in range(firings):
        call()
    residency.download_all()
    return arrays, residency.notes()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dqn", {"target_every": 2.0}),
        ("dqn", {"clip_norm": 0.5, "huber": 1.0}),
        ("td3", {}),
        ("sac", {}),
        ("ppo", {"clip_norm": 0.5, "anneal": 64.0}),
        ("a2c", {"rmsprop": (0.99, 1e-5), "anneal": 64.0}),
    ],
)
def test_a_graph_computes_what_eager_computes(name: str, changes: Any) -> None:
    (eager, _), (graph, notes) = (
        fired(UPDATES[name], variant, 4, **changes) for variant in ("eager", "graph")
    )
    assert notes == []
    before = fill_arrays([UPDATES[name]])
    for array, values in graph.items():
        change = np.abs(np.float64(eager[array]) - before[array]).max()
        off = np.abs(np.float64(eager[array]) - values).max()
        assert off <= 1e-6 * max(change, 1e-30) if values.dtype.kind == "f" else off == 0, array


def waits(nets: Any, batch: Any, hyper: Any) -> Iterator[Any]:
    """A loss that asks the device for a number."""
    values = nets.q(batch.obs)
    error = values[:, 0] - batch.reward
    yield "q", error.square().mean() * (1.0 if float(error.detach().sum()) > 0 else 2.0)
    return error.detach().abs()


def counts(nets: Any, batch: Any, hyper: Any) -> Iterator[Any]:
    """A loss that depends on the number of the step."""
    error = nets.q(batch.obs)[:, 0] - batch.reward
    yield "q", error.square().mean() / hyper.step
    return error.detach().abs()


@pytest.mark.parametrize(
    ("loss", "why"), [("waits", "waits for a number"), ("counts", "Remainder")]
)
def test_a_loss_that_cannot_be_recorded_runs_as_eager_and_says_why(loss: str, why: str) -> None:
    of = kernel("update.dqn", UPDATES["dqn"].dims, program=f"tests.runtime.test_gpu_graphs:{loss}")
    (eager, _), (graph, notes) = (fired(of, variant, 3) for variant in ("eager", "graph"))
    (note,) = notes
    assert note.startswith("kernel update.dqn runs as eager in place of graph: ")
    assert why in note
    assert [n for n in eager if not np.array_equal(eager[n], graph[n])] == []


def test_training_by_graphs_equals_eager_and_a_failed_one_is_in_the_runs_log(
    monkeypatch: Any,
) -> None:
    graph = trained(*gpu_plan("dqn", {"learn": "graph", "sync": "eager"}), "threads", steps=400)
    assert graph.run.status == "done", graph.run.message

    def fails(self: Any, work: Any) -> None:
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(HostGraph, "capture", fails)
    without = trained(*gpu_plan("dqn", {"learn": "graph", "sync": "eager"}), "one", steps=400)
    assert any("no graphs today" in text for text in without.run.events)
    for name in ("learner.q", "learner.q.steps", "policy.q"):
        assert (graph.session.arrays[name] == without.session.arrays[name]).all(), name
