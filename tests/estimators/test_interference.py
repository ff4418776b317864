"""What calls on two cores cost each other: measured where the truth is known, charged by hand."""

import mmap
import struct
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

import pearl
from pearl.planner import planner
from pearl.planning.estimated_costs import add_lane_overhead
from pearl_devices import kernel
from pearl_estimators.host import interference
from pearl_estimators.host.benchmark_kernels import CORES
from pearl_estimators.host.calibration import Calibration
from pearl_estimators.host.interference import measure_slowdowns, share_name, side
from tests.needs import needs_linux

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


IN_FORKS = needs_linux("it times calls in forks")


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


Reading = tuple[float, float]


def compared(*rounds: tuple[Reading, Reading, Reading, Reading]) -> tuple[object, list[object]]:
    """What `_compare` makes of readings (seconds, contention): alone, the other alone, beside, the
    other beside; and what was done, in turn."""
    done: list[object] = []
    mine = iter([row[i] for row in rounds for i in (0, 2)])
    its = iter([row[i] for row in rounds for i in (1, 3)])

    class Other:
        def start(self) -> None:
            done.append("start")

        def stop(self) -> interference._Stretch:
            done.append("stop")
            return interference._Stretch(*next(its))

    def stretch(call: object) -> interference._Stretch:
        done.append(call)
        return interference._Stretch(*next(mine))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interference, "_stretch", stretch)
        patch.setattr(interference, "time", SimpleNamespace(sleep=done.append))
        found = interference._compare("call", Other())  # type: ignore[arg-type]
    return found, done


def a_round(
    mine: float, its: float, worst: float = 1.0
) -> tuple[Reading, Reading, Reading, Reading]:
    """Slow-downs of a call of 2 s and one of 4 s. worst: contention of one of the readings."""
    return (2.0, 1.0), (4.0, 1.0), (2.0 * (1 + mine), 1.0), (4.0 * (1 + its), worst)


def test_slow_downs_are_medians_of_three_comparisons_with_a_core_each():
    near = [
        a_round(0.5, 0.125), a_round(9.0, 9.0, 1.2), a_round(0.25, 0.375, 1.1), a_round(2.0, 0.25),
    ]  # fmt: skip
    found, done = compared(*near)
    assert found == pytest.approx((0.5, 0.25))
    assert done == ["call", "start", 0.006, "stop", "start", 0.001, "call", "stop"] * 4
    assert compared(*[a_round(-0.5, -0.5)] * 3)[0] == (0.0, 0.0)  # faster is not slowed down
    none, done = compared(*[a_round(0.5, 0.5, 1.2)] * 9)
    assert none is None
    assert done.count("stop") == 2 * 9


@IN_FORKS
@pytest.mark.parametrize(
    ("first", "again", "found"),
    [
        ((0.05, 0.04), None, (0.05, 0.04)),  # not in doubt
        ((0.3, 0.01), (0.2, 0.02), (0.2, 0.01)),
        ((0.01, 0.3), None, (0.01, 0.3)),  # no second comparison
        (None, None, None),
    ],
)
def test_a_large_slow_down_is_measured_again_and_the_smaller_counts(
    first, again, found, monkeypatch
):
    told, slept = iter([first, again]), []
    monkeypatch.setattr(interference, "_compare", lambda *_: next(told))
    monkeypatch.setattr(interference, "_running_beside", lambda call: nullcontext())
    monkeypatch.setattr(interference, "time", SimpleNamespace(sleep=slept.append))
    pair = {"inference native": {"update native": found and found[0]}}
    pair["update native"] = {"inference native": found and found[1]}
    assert measure_slowdowns(JOBS, {}, lambda *_: lambda: None) == (pair if found else {})
    assert slept == [0.3] * (first is not None and max(first) > 0.05)


def test_a_stretch_is_the_cpu_time_of_its_calls_until_it_is_over(monkeypatch):
    calls, wall = [], iter([0.0, 0.002, 0.004, 0.006, 0.008, 0.0, 0.002])
    clocks = {"process_time": lambda: 0.003 * len(calls), "perf_counter": lambda: next(wall)}
    monkeypatch.setattr(interference, "time", SimpleNamespace(**clocks))
    assert interference._stretch(lambda: calls.append(1)) == pytest.approx((0.003, 8 / 12))
    assert len(calls) == 4
    calls.clear()
    assert interference._stretch(lambda: calls.append(1), lambda: False) == pytest.approx(
        (0.003, 2 / 3)
    )


@IN_FORKS
def test_what_is_known_is_not_measured_again(monkeypatch):
    monkeypatch.setattr(interference, "HELD", float("inf"))
    bind, bound = bind_of_calls_that_meet()
    known = {"inference native": {"update native": 7.0}, "update native": {"inference native": 8.0}}
    assert measure_slowdowns(JOBS, known, bind) == known
    assert not bound
    more = kernel("update.dqn", obs=4, act=0, batch=8, steps=1, double=0, q=(4, 8, 2))
    found = measure_slowdowns([*JOBS, (more, "torch")], known, bind)
    assert found["inference native"]["update native"] == 7.0
    assert found["update native"] == known["update native"]
    assert set(found["inference native"]) == {"update native", "update torch"}


@IN_FORKS
def test_of_a_family_the_middle_kernel_runs_and_none_on_two_cores():
    bind, bound = bind_of_calls_that_meet()
    sizes = {"obs": 4, "act": 0, "steps": 1, "double": 0, "q": (4, 8, 2)}
    small, middle, large = (kernel("update.dqn", sizes, batch=n) for n in (8, 64, 128))
    several = [(large, "native"), (small, "native"), (middle, "native")]
    several += [(large, "native-pair"), (large, "torch-2")]
    measure_slowdowns([*several, (ACTING, "native")], {}, bind)
    assert bound == [(ACTING, "native"), (middle, "native")]


@IN_FORKS
def test_a_call_that_fails_beside_another_is_said():
    def bind(of, _):
        calls = []

        def act():
            calls.append(1)
            if of is LEARNING and len(calls) > 1:
                raise ZeroDivisionError

        return act

    with pytest.raises(ChildProcessError, match="because its call failed"):
        measure_slowdowns(JOBS, {}, bind)


def test_sides():
    assert (side(ACTING), side(LEARNING)) == (0, 1)
    assert side(kernel("param_sync", args={"network": "q"}, params=9)) is None
    assert share_name(LEARNING, "torch") == "update torch"


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
