"""What calls on two cores cost each other: measured where the truth is known, charged by hand."""

import mmap
import struct
import time
from dataclasses import replace

import pytest

import pearl
from pearl.planner import planner
from pearl.planning.estimated_costs import add_lane_overhead
from pearl_devices import kernel
from pearl_estimators.host import interference
from pearl_estimators.host.benchmark_kernels import CORES
from pearl_estimators.host.calibration import Calibration
from pearl_estimators.host.interference import measure_slowdowns, share_name

ACTING = kernel("inference.dqn", envs=1, obs=4, act=0, q=(4, 8, 2))
LEARNING = kernel(
    "update.ddpg", obs=3, act=1, batch=64, steps=1, actor=(3, 64, 1), critic=(4, 64, 1),
)  # fmt: skip
JOBS = [(ACTING, "native"), (LEARNING, "native")]


def work():
    """100 µs of CPU time, at any speed of the cores."""
    until_s = time.process_time() + 1e-4
    while time.process_time() < until_s:
        pass


def bind_of_calls_that_meet():
    """One that learns leaves the time when it ran last; one that acts does twice its work beside
    it. And which kernels were bound."""
    stamp, bound = mmap.mmap(-1, mmap.PAGESIZE), []

    def learn():
        stamp[:8] = struct.pack("d", time.monotonic())
        work()

    def act():
        work()
        if time.monotonic() - struct.unpack("d", stamp[:8])[0] < 3e-4:
            work()

    def bind(of, variant):
        bound.append((of, variant))
        return act if of is ACTING else learn

    return bind, bound


@pytest.mark.skipif(CORES < 2, reason="calls beside each other need two cores")
def test_what_a_call_takes_longer_beside_another_is_found(monkeypatch):
    monkeypatch.setattr(interference, "ROUNDS", 9)
    monkeypatch.setattr(interference, "TRIES", 300)  # other tests may have the cores
    bind, _ = bind_of_calls_that_meet()
    found = measure_slowdowns(JOBS, {}, bind)
    if not found:
        pytest.skip("two cores were not free at once")
    assert found["inference native"]["update native"] == pytest.approx(1.0, abs=0.25)
    assert found["update native"]["inference native"] < 0.25


def test_a_calibration_keeps_them_and_refuses_nonsense():
    found = Calibration({}, {}, "", 1.0, 0.0, 1.0, (), beside={"a": {"b": 0.5}})
    assert Calibration.from_json(found.to_json()).beside == {"a": {"b": 0.5}}
    with pytest.raises(ValueError, match=r"beside\.a\.b is -0\.5; it must be finite, at least 0"):
        replace(found, beside={"a": {"b": -0.5}})


def problem(**limits):
    system = pearl.load(
        {
            "algorithm": {
                "name": "dqn",
                "env": "CartPole-v1",
                "num_envs": 4,
                "hidden": [64, 64],
                "batch_size": 64,
                "replay": {"kind": "uniform", "capacity": 4000},
                "replay_ratio": "1/4",
            },
            "limits": limits,
            "train": {"steps": 1000},
        }
    )
    whole = planner.build_problem(system)
    return system, whole.graph, whole.costs


def test_each_side_pays_for_what_the_other_does_meanwhile():
    _, graph, costs = problem(variants={t: ["native"] for t in ("step", "act", "learn")})
    learn = {"inference native": 0.25, "env_step native": 0.5}
    beside = {
        "learn native": learn,
        "inference native": {"learn native": 1.0, "update native": 1.0},
    }
    more = add_lane_overhead(costs, graph, 0.0, 0.0, 0.0, beside)

    def least(*tasks):
        firings = 1 if len(tasks) > 1 else graph.repetition[tasks[0]]
        return firings * min(m.estimate.latency_s for m in costs.of(*tasks))

    learned = ("sample", "learn")
    assert least(*learned) < least("sample") + least("learn")  # so it is what is fastest
    acting = least("step"), least("act"), least("store")
    period = max(sum(acting), least(*learned))
    extra = {
        (m.tasks, m.variant): a.estimate.occupancy_s / m.estimate.occupancy_s - 1
        for m, a in zip(costs.modes, more.modes, strict=True)
    }
    assert extra[learned, "native"] == pytest.approx((0.5 * acting[0] + 0.25 * acting[1]) / period)
    assert extra[("act",), "native"] == pytest.approx(least(*learned) / period)
    assert extra[("step",), "native"] == extra[("learn",), "native"] == pytest.approx(0.0)


@pytest.mark.skipif(CORES < 2, reason="a second lane needs a second core")
def test_lanes_that_slow_each_other_much_are_not_taken(monkeypatch):
    slow = {"step": ["gymnasium"]}  # which takes about as long as learning
    system, graph, _ = problem(policy_lag=1, max_lanes=2, variants=slow)
    names = {share_name(t.kernel, v) for t in graph.tasks for v in ("native", "gymnasium")}
    names |= {share_name(f.kernel, "native") for f in graph.fusions}
    free = {"firing_s": 0.0, "handoff_s": 0.0, "carry_s_per_byte": 0.0}
    plans = {}
    for share in (0.0, 1.0):
        beside = {n: dict.fromkeys(names, share) for n in names}
        monkeypatch.setattr(planner, "lane_overhead", lambda _, b=beside: {**free, "beside": b})
        plans[share] = planner.plan(system)
    used = {s: len({t.lane for t in p.tasks}) for s, p in plans.items()}
    assert used == {0.0: 2, 1.0: 1}, [p.note for p in plans.values()]
