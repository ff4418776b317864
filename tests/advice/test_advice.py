"""Verdicts about specs: how sure they are, what a measurement is worth, and the page."""

from __future__ import annotations

import math
import re
import time
import warnings
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

import pearl
from pearl import Limits, SpecError, solve
from pearl.advice import advise, case, hardware, sizes
from pearl.advice.case import Case
from pearl.advice.comparison import compare, how_sure
from pearl.advice.measuring import INNER, OUTER, condition_on
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws, uncertainties
from pearl.planning.plans import Plan
from pearl.testing.graphs import devices, loop, mode, star
from pearl_estimators import Estimate
from tests.graphs import dqn, dqn_costs
from tests.schemas.test_schemas import problems

SPEC = {
    "algorithm": {"name": "dqn", "env": "CartPole-v1", "num_envs": 8, "hidden": [256, 256],
                  "batch_size": 256},
    "platform": "cpu_gpu_fpga", "limits": {"devices": {"learn": ["cpu"]}},
}  # fmt: skip


LONG_S = 600.0
"""More than all questions take, on a machine however busy."""


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """A plan has the time that its proof takes: a busy machine finds less in 2 s of the clock."""
    for module in (case, sizes):
        monkeypatch.setattr(module, "SOLVE_S", LONG_S)


def two(cpu: Estimate, gpu: Estimate) -> CostTable:
    both = [replace(mode("x", d, 1.0), estimate=e) for d, e in (("cpu", cpu), ("gpu", gpu))]
    return CostTable(star(devices("cpu", "gpu")), tuple(both))


WILD = two(Estimate(1.0, 1.0, 0.9, 1.1), Estimate(1.1, 1.1, 0.4, 4.0))


def on(device: str, costs: CostTable = WILD) -> Plan:
    return solve(loop("x"), costs, limits=Limits(pin={"x": device}))


def test_the_share_of_draws_is_the_probability_by_the_bands() -> None:
    """The difference of the logarithms of two times is normal; a family on two models of one kind
    shares two parts of five."""
    c = compare(on("cpu"), on("gpu"), Draws(4000, 3))
    z = NormalDist().inv_cdf(0.95)
    cpu = (0.5 * math.log(0.9 * 1.1), math.log(1.1 / 0.9) / (2 * z))
    gpu = (0.5 * math.log(0.4 * 4.0), math.log(10) / (2 * z))
    spread = math.sqrt(cpu[1] ** 2 + gpu[1] ** 2 - 2 * 0.4 * cpu[1] * gpu[1])
    better = NormalDist(gpu[0] - cpu[0], spread).cdf(0)
    assert c.better == pytest.approx(better, abs=0.02)
    assert c.worse == pytest.approx(1 - better, abs=0.02)
    assert c.ratio == pytest.approx(1 / 1.1)
    assert c.lose > 3 > 1 / c.ratio
    assert c.win > 1.5


def test_a_plan_beside_itself_is_equal() -> None:
    c = compare(on("gpu"), on("gpu"), Draws(50))
    assert (c.better, c.worse, c.lose, c.win) == (0, 0, 1, 1)
    assert how_sure(c) == "it does not matter (0.0 %)"


def test_a_draw_that_no_limit_on_power_lets_run_is_no_number() -> None:
    """Idle watts are drawn too, and may exceed the limit alone."""
    ppo = {"name": "a2c", "env": "CartPole-v1", "num_envs": 4}
    spec = {"algorithm": ppo, "platform": "cpu_gpu", "limits": {"power": "90 W"}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = advise(spec, about=["bound", "environments", "sure"], time_limit_s=LONG_S)
    assert found.plan.bands is not None
    assert (found.plan.bands.env_steps_per_s or (1, 0))[0] == 0
    assert problems(found.to_json(), "advise") == []
    assert "nan" not in str(found)


def test_what_a_measurement_tells_is_known_and_the_rest_still_drawn() -> None:
    graph = dqn(1)
    wild = Estimate(1.0, 1.0, 0.5, 3.0)
    modes = [
        replace(mode(t.name, d, 1.0), estimate=wild) for t in graph.tasks for d in ("cpu", "gpu")
    ]
    costs = CostTable(star(devices("cpu", "gpu")), tuple(modes))

    def doubt(task: str, device: str):
        m = next(m for m in costs.of(task) if m.device == device)
        ((found, _),) = uncertainties(m, graph, costs)
        assert found is not None
        return m, found

    measured, known = doubt("learn", "gpu")
    wider = replace(measured, width=2)  # another kernel of the family
    ((too, _),) = uncertainties(wider, graph, costs)
    both = condition_on([known, too], Draws(OUTER * INNER, 1), 2)
    for each in (measured, wider):
        rows = np.log(both.factors(each, graph, costs)).reshape(OUTER, INNER)
        assert np.allclose(rows, rows[:, :1])
    drawn = condition_on([known], Draws(OUTER * INNER, 1), 2)
    rows = np.log(drawn.factors(measured, graph, costs)).reshape(OUTER, INNER)
    assert np.allclose(rows, rows[:, :1])  # the measured one is one number for each result
    assert np.std(rows[:, 0]) == pytest.approx(known.spread, rel=0.35)
    same_device = np.log(drawn.factors(doubt("act", "gpu")[0], graph, costs))
    assert np.std(same_device) == pytest.approx(known.spread, rel=0.1)
    within = same_device.reshape(OUTER, INNER).std(axis=1).mean()
    assert within == pytest.approx(known.spread * math.sqrt(1 - 0.4**2), rel=0.1)
    assert set(drawn.known) == set(known.parts())  # nothing else is told


@pytest.fixture(scope="module")
def found() -> pearl.advice.Advice:
    asked = ("bound", "limits", "devices", "buy", "replay", "environments", "sure", "sizes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "WORTH", 0.0)  # so that a second card is told of
        patch.setattr(hardware, "MOST", 2)
        return advise(SPEC, add=["rtx_4090"], time_limit_s=LONG_S, about=asked)


def test_the_page_asks_what_users_ask_and_says_the_plans_own_numbers(found) -> None:
    asked = [v.question for v in found.verdicts]
    assert asked[0] == "What bounds you now?"
    assert asked[1].startswith("What does your limit devices")  # the user's own limits first
    ratio = next(v for v in found.verdicts if "replay ratio" in v.question)
    assert set(ratio.numbers["by_size"]) == {"1/4", "1", "4"}
    bound = found.verdicts[0]
    assert bound.numbers["value"] == found.plan.value
    assert f"{found.plan.value:,.0f} env steps/s" in bound.answer
    limit = found.verdicts[1]
    free = pearl.load({k: v for k, v in SPEC.items() if k != "limits"})
    without = pearl.plan(free, time_limit_s=LONG_S)
    assert limit.numbers["value"] == pytest.approx(without.value)
    assert limit.numbers["ratio"] == pytest.approx(without.value / found.plan.value)
    assert f"{limit.numbers['ratio']:.2f} x" in limit.answer
    assert f"better in {100 * limit.numbers['better']:.0f} % of 200 draws" in limit.answer
    gpu = next(v for v in found.verdicts if "gpu" in v.question)
    assert "Intel Xeon Gold 6326 with 16 cores" in gpu.answer
    assert re.search(r"variant \w+ \(\w.*\) on gpu", gpu.answer)
    assert re.search(r"[\d.]+ W with it, [\d.]+ W without", gpu.answer)
    buy = next(v for v in found.verdicts if "rtx_4090" in v.question)
    assert re.search(r" 2 of them [\d,]+\.", buy.answer)


def test_a_replay_that_may_live_anywhere_is_said_not_to_matter() -> None:
    """Nothing but the learner takes time there."""
    graph = dqn(1)
    costs = dqn_costs(star(devices("cpu", "acc"), 1e-9), {"cpu": 1.0, "acc": 1.001})
    plan = solve(graph, costs)
    system = pearl.load({**SPEC, "limits": {}})
    case = Case(system, plan, Draws(50), time.monotonic() + LONG_S, ("x",))
    (verdict,) = hardware.where_replay(case)
    assert re.match(r"It does not matter \(\d\.\d %\): ", verdict.answer)
    assert "%" not in verdict.answer.partition(")")[2]
    assert verdict.share == 1.0


def test_the_number_of_actors_is_that_of_the_best_plans() -> None:
    """Environments of some 60 µs each: copies of them pay; more than half of what they give is not
    hidden where the spec has two already."""
    walk = {"name": "ppo", "env": "tests.faulty_envs:Walk", "num_envs": 16, "rollout_steps": 8}
    limits = {"max_lanes": 3, "replicas": {"step": 2, "act": 2}}
    spec = {"algorithm": walk, "platform": MANY, "limits": limits}
    (verdict,) = advise(spec, about=["actors"], time_limit_s=LONG_S).verdicts
    assert verdict.answer.startswith("8 actors, 9 lanes in all: ")
    rates = verdict.numbers["by_size"]
    assert list(rates) == ["1", "2", "4", "8"]
    assert rates["2"] == pearl.plan(pearl.load(spec), time_limit_s=LONG_S).value
    assert rates["8"] > 1.5 * rates["4"] > 2 * rates["2"] > 2 * rates["1"]
    words = [w.split("=") for w in verdict.command.split() if w.startswith("limits.")]
    sets = {key: int(n) for key, n in words}
    again = pearl.plan(pearl.load(spec, set=sets), time_limit_s=LONG_S)
    assert again.value >= 0.99 * rates["8"]
    copies = {f"limits.replicas.{task}": 8 for task in ("step", "act")}
    assert sets == {**copies, "limits.max_lanes": 9}
    system = pearl.load(spec)
    (hasty,) = sizes.how_many_actors(Case(system, pearl.plan(system), Draws(1), 0.0, ("x",)))
    assert "No time was left for" in hasty.answer


MANY = {"devices": {"cpu": "xeon_gold_6326"}}
WIDE = {"name": "dqn", "env": "CartPole-v1", "hidden": [1024, 1024], "batch_size": 512}
ONE_THREAD = {"variants": {"learn": ["native", "torch"]}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "platform", "limits", "least"),
    [
        pytest.param(WIDE, MANY, {}, 1, id="threads-of-torch-give-a-wide-network-as-much"),
        pytest.param(WIDE, MANY, ONE_THREAD, 4, id="a-wide-network-gains"),
        pytest.param(WIDE, MANY, {"max_lanes": 1}, 4, id="the-user-s-one-lane-is-widened"),
        pytest.param({**WIDE, "batch_size": 511}, MANY, {}, 1, id="a-batch-of-no-equal-parts"),
        pytest.param({"name": "sac", "env": "Pendulum-v1"}, MANY, {}, 1, id="not-by-sac"),
    ],
)
def test_the_number_of_learners_is_that_of_the_best_plans(algorithm, platform, limits, least):
    spec = {"algorithm": algorithm, "platform": platform, "limits": limits}
    (verdict,) = advise(spec, about=["learners"], time_limit_s=LONG_S).verdicts
    number = int(verdict.answer.split(":")[0].split(",")[0])
    if least == 1:
        assert number == 1
        return
    assert number >= least
    sets = verdict.command.split("limits.learners=")[1].split()
    lanes = [w.split("=")[1] for w in sets if w.startswith("limits.max_lanes=")]
    assert int(sets[0]) == number
    assert lanes == [str(number + 1)] * ("max_lanes" in limits)
    again = pearl.load(spec, set={"limits.learners": number, "limits.max_lanes": number + 1})
    assert pearl.plan(again, time_limit_s=LONG_S).value >= 0.99 * verdict.numbers["value"]


def test_the_object_fits_its_schema_and_the_page_has_every_verdict(found) -> None:
    assert problems(found.to_json(), "advise") == []
    page = str(found)
    assert all(v.question in page for v in found.verdicts)
    assert found.left_out == ()


def test_a_device_that_is_not_there_is_named_with_the_nearest() -> None:
    for given, why in (
        ({"add": ["rtx_409"]}, "did you mean rtx_4090"), ({"add": "rtx_4090"}, "list of names"),
        ({"add": ["apple_m2_gpu"]}, "part of a chip with its CPU"),
        ({"about": ["replays"]}, "did you mean replay"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=why):
            advise(SPEC, **given)  # type: ignore[arg-type]
