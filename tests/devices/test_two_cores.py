"""Gradient steps on two cores, what lanes cost, and where a second lane pays."""

from __future__ import annotations

import gc
import math
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pearl
from pearl.planner import planner
from pearl.planning.estimated_costs import add_lane_overhead
from pearl.runtime.lanes import overhead
from pearl.testing.kernel_buffers import copied, equal, fill_arrays
from pearl.training.trainer import Trainer
from pearl_devices import Buffers, Kernel, UnsupportedError, cpu, kernel
from pearl_devices.primitives import HELPER
from pearl_estimators import Estimate
from tests.devices.test_primitives_td3_sac import started
from tests.processes import handles

STORE: dict[str, Any] = {"envs": 4, "capacity": 64, "prioritised": 1, "fanout": 4, "n_step": 2}
PAIRED = ("ddpg", "td3", "sac")


def sizes(algorithm: str, batch: int, hidden: int = 16, steps: int = 3) -> dict[str, Any]:
    critic = (5, hidden, hidden, 1)
    found: dict[str, Any] = {"obs": 3, "act": 2, "batch": batch, "steps": steps}
    found["actor"] = (3, hidden, hidden, 4 if algorithm == "sac" else 2)
    if algorithm == "ddpg":
        return {**found, "critic": critic}
    more: dict[str, Any] = {"alpha": (0, 1)} if algorithm == "sac" else {"policy_delay": 2}
    return {**found, "critic1": critic, "critic2": critic, **more}


def update(algorithm: str, batch: int, **changes: Any) -> Kernel:
    program = f"pearl.algorithms.{algorithm}:losses"
    return kernel(f"update.{algorithm}", sizes(algorithm, batch, **changes), program=program)


def far(a: Buffers, b: Buffers) -> dict[str, float]:
    """Relative distance of the arrays that differ."""
    found = {}
    for name in equal(a, b):
        x, y = a[name].astype(float), b[name].astype(float)
        found[name] = float(np.linalg.norm(x - y)) / max(float(np.linalg.norm(x)), 1e-12)
    return found


@pytest.mark.sweep(5)
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("batch", [4, 33, 64])
@pytest.mark.parametrize("algorithm", PAIRED)
def test_two_cores_learn_what_one_learns_within_rounding(
    algorithm: str, batch: int, clip: float
) -> None:
    k = update(algorithm, batch)
    one = started(k)
    one["hyper.clip_norm"][:] = clip
    two = copied(one)
    calls = cpu.bind(k, "native", one), cpu.bind(k, "native-pair", two)
    for _ in range(3):
        for call in calls:
            call()
    assert max(far(one, two).values(), default=0.0) < 2e-5
    assert one["learner.step"][0] == two["learner.step"][0] == 9


@pytest.mark.parametrize("algorithm", PAIRED)
def test_two_cores_give_the_same_bits_however_threads_are_scheduled(algorithm: str) -> None:
    k = update(algorithm, 33)
    first = started(k)
    second = copied(first)
    calls = cpu.bind(k, "native-pair", first), cpu.bind(k, "native-pair", second)
    for turn in range(20):
        calls[0]()
        if turn % 7 == 0:
            time.sleep(0.01)  # the helper of the second has gone to sleep
        calls[1]()
    assert equal(first, second) == []


@pytest.mark.parametrize("algorithm", PAIRED)
def test_the_fused_call_on_two_cores_draws_and_ranks_as_that_on_one(algorithm: str) -> None:
    k = kernel(f"learn.{algorithm}", {**sizes(algorithm, 16), **STORE})
    one = fill_arrays([k])
    one["replay.cursor"][:] = 0, 64
    one["replay.tree"][:] = 1.0
    two = copied(one)
    cpu.bind(k, "native", one)()
    cpu.bind(k, "native-pair", two)()
    different = far(one, two)
    assert "batch.index" not in different
    assert max(different.values(), default=0.0) < 1e-4


def test_a_pair_needs_a_batch_to_share() -> None:
    with pytest.raises(UnsupportedError, match="native-pair"):
        cpu.bind(update("ddpg", 3), "native-pair", started(update("ddpg", 3)))


def test_the_helping_thread_ends_with_its_call() -> None:
    def helpers() -> int:
        return sum(t.name == HELPER for t in threading.enumerate())

    k = update("ddpg", 8)
    gc.collect()
    before, opened = helpers(), len(handles())
    call: Any = cpu.bind(k, "native-pair", started(k))
    call()
    assert helpers() == before + 1
    del call
    gc.collect()
    assert helpers() == before
    assert len(handles()) == opened


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
def test_a_run_whose_learning_is_one_call_on_two_cores_reports_each_part(kind: str) -> None:
    found = spec(max_lanes=2)
    found["algorithm"] = {
        "name": "ddpg", "env": "Pendulum-v1", "num_envs": 1, "hidden": [16, 16], "batch_size": 16,
        "learning_starts": 32, "replay": {"capacity": 500, "kind": kind},
    }  # fmt: skip
    found["train"]["steps"] = 300
    system = pearl.load(found)
    host = replace(system.platform.devices[0], width=2, max_lanes=2)
    system = replace(system, platform=replace(system.platform, devices=(host,)))
    graph, costs = problem(system)
    wanted = {("sample", "learn"), ("sample", "learn", "priorities")}
    modes = tuple(
        m
        for m in costs.modes
        if (m.variant == "native-pair" and m.tasks in wanted)
        or (m.variant == "native" and not m.fused and "learn" not in m.tasks)
    )
    costs = replace(costs, modes=modes)
    plan = replace(
        pearl.solve(graph, costs, limits=system.limits), spec_sha256=system.sha256, host="host"
    )
    run = Trainer(system, plan).train()
    assert run.status == "done"
    timed = {t.task: t.measured_s for t in run.tasks}
    assert all(timed[name] for name in ("sample", "learn"))


# What lanes cost


def test_a_partner_waits_asleep_and_ends_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen = overhead.subprocess.Popen

    def watched(*given: Any, **options: Any) -> Any:
        started.append(popen(*given, **options))
        return started[-1]

    monkeypatch.setattr(overhead.subprocess, "Popen", watched)
    with overhead.partner():
        (other,) = started
        with pytest.raises(overhead.subprocess.TimeoutExpired):
            other.wait(timeout=0.5)
    assert other.poll() is not None


def test_the_runtime_times_its_own_firing_and_handoff() -> None:
    found = overhead.measure_overhead()
    assert set(found) == {"firing_s", "handoff_s", "carry_s_per_byte"}
    assert min(found["firing_s"], found["handoff_s"]) > 0
    assert found["carry_s_per_byte"] >= 0


def spec(**limits: object) -> dict[str, Any]:
    return {
        "algorithm": {
            "name": "dqn", "env": "CartPole-v1", "num_envs": 8, "hidden": [64, 64],
            "batch_size": 64, "replay_ratio": 1, "learning_starts": 64,
            "replay": {"capacity": 1000},
        },
        "platform": "host",
        "limits": {"policy_lag": 2, **limits},
        "train": {"evaluate_every": 0, "final_episodes": 0},
    }  # fmt: skip


US = {
    "act": 1.4, "store": 0.8, "sample": 10.0, "learn": 100.0,
    "sync": 0.3,
}  # fmt: skip


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plans of W1 by fixed times, so many microseconds a step of an environment."""

    def plan(env_us: float, **limits: object) -> Any:
        system = pearl.load(spec(**limits))
        host = replace(system.platform.devices[0], width=2, max_lanes=2)
        system = replace(system, platform=replace(system.platform, devices=(host,)))
        graph, costs = problem(system)

        def timed(m: Any) -> Any:
            us = math.fsum(
                graph.repetition[t] * (US[t] if t in US else env_us * (m.share or 8))
                for t in m.tasks
            )
            return replace(m, estimate=Estimate(us * 1e-6))

        modes = tuple(timed(m) for m in costs.modes if m.variant == "native" and m.width == 1)
        monkeypatch.setattr(planner, "build_cost_table", lambda *_: replace(costs, modes=modes))
        runtime = {"firing_s": 0.5e-6, "handoff_s": 1e-6, "carry_s_per_byte": 0.0}
        monkeypatch.setattr(planner, "lane_overhead", lambda _: runtime)
        return pearl.plan(system)

    return plan


def problem(system: Any) -> tuple[Any, Any]:
    whole = planner.build_problem(system)
    return whole.graph, whole.costs


def lanes(plan: Any) -> int:
    return sum(lane.width > 0 for lane in plan.lanes)


def test_a_second_lane_that_gains_little_is_left_out_and_said(given: Any) -> None:
    plan = given(0.2, max_lanes=2)
    assert lanes(plan) == 1
    assert "second lane does not pay" in plan.note
    assert "2 lanes would give 1.1" in plan.note


def test_slower_environments_are_split_over_both_cores(given: Any) -> None:
    plan = given(200.0, max_lanes=2, replicas={"step": 2})
    shares = plan.task("step").shares
    assert sum(shares) == 8
    assert len(shares) == 2
    assert lanes(plan) == 2
    assert plan.value > 1.7 * given(200.0, max_lanes=1).value


def test_every_byte_between_calls_is_paid_for_by_both() -> None:
    graph, costs = problem(pearl.load(spec(max_lanes=1)))
    more = add_lane_overhead(costs, graph, 0.0, 0.0, 1e-9)
    extra = {
        a.tasks: a.estimate.occupancy_s - b.estimate.occupancy_s
        for a, b in zip(more.modes, costs.modes, strict=True)
    }
    sent = {(e.src, e.dst): e.bytes for e in graph.edges}
    batch, parameters = sent["sample", "learn"], sent["sync", "act"]
    assert batch > 0
    assert extra["learn",] == pytest.approx(1e-9 * batch)
    assert extra["sync",] == pytest.approx(1e-9 * parameters)
    learning = ("sample", "learn")
    assert extra.get(learning, 0.0) == pytest.approx(0.0)  # what stays within a call is not carried
    everything = max(extra, key=len)
    assert extra[everything] == pytest.approx(0.0)
