"""A whole iteration as one call does what its tasks do one by one, bit for bit."""

from typing import Any

import numpy as np
import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.graph.limits import Limits
from pearl.graph.sequential import program_order
from pearl.planning.estimated_costs import build_cost_table
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.member_times import member_times
from pearl.runtime.protocol.residency import Residency
from pearl_devices import Device, Platform, backend, buffers, kernel
from pearl_devices.primitives.math.rng import key

DISCRETE = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
CONTINUOUS = ("Pendulum-v1", "MountainCarContinuous-v0")
CASES = [
    ("dqn", "CartPole-v1", "uniform", 1, 1), ("dqn", "CartPole-v1", "prioritised", 3, 1),
    ("dqn", "Acrobot-v1", "uniform", 2, "1/4"), ("dqn", "MountainCar-v0", "prioritised", 1, "1/4"),
    *[
        (name, env, replay, n_step, ratio)
        for name in ("ddpg", "td3", "sac")
        for env, replay, n_step, ratio in (
            ("Pendulum-v1", "uniform", 1, 2),
            ("MountainCarContinuous-v0", "prioritised", 2, "1/2"),
        )
    ],
]  # fmt: skip


def system(name="dqn", env="CartPole-v1", replay="uniform", n_step=1, ratio: Any = 1, **more):
    return pearl.load(
        {
            "algorithm": {
                "name": name, "env": env, "num_envs": 2, "hidden": [16, 16], "batch_size": 16,
                "replay": {"kind": replay, "capacity": 500}, "n_step": n_step,
                "replay_ratio": ratio, "learning_starts": 60,
            },
            "platform": "cpu_gpu", "train": {"steps": 400}, **more,
        }
    )  # fmt: skip


def fusion(graph, name="iteration"):
    return next((f for f in graph.fusions if f.name == name), None)


def jobs(graph, fused: bool):
    if fused:
        whole = fusion(graph)
        return dict.fromkeys(
            whole.tasks, single_lane.Job(whole.tasks, whole.kernel, "cpu", "native")
        )
    return {t.name: single_lane.Job((t.name,), t.kernel, "cpu", "native") for t in graph.tasks}


def trained(of, fused: bool, before: int, after: int):
    """The arrays after so many iterations before learning starts and then, and the steps."""
    module = algorithm(of.algorithm.name)
    graph = module.graph(of)
    bound = jobs(graph, fused)
    arrays: dict[str, Any] = {}
    buffers.allocate([job.kernel for job in bound.values()], arrays)
    for name, array in arrays.items():
        if name.startswith("rng."):
            array[0] = key(7, name.removeprefix("rng."))
    module.initialise(arrays, of, 7)
    steps = single_lane.bind(program_order(graph), bound, module.LEARNING, arrays)
    single_lane.SingleLaneRunner(steps, arrays, before, Residency(bound, arrays)).run(before, 0)
    single_lane.SingleLaneRunner(steps, arrays, 0, Residency(bound, arrays)).run(after, 0)
    return arrays, graph, steps


def same(one, other, skip=("batch.", "loop.")):
    names = {n for n in one if not n.startswith(skip)}
    assert names == {n for n in other if not n.startswith(skip)}
    for name in names:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(("name", "env", "replay", "n_step", "ratio"), CASES)
def test_one_call_gives_the_bits_of_the_tasks_one_by_one(name, env, replay, n_step, ratio):
    of = system(name, env, replay, n_step, ratio)
    per = algorithm(name).graph(of).env_steps
    before, after = -(-60 // per), 40
    apart, _, _ = trained(of, False, before, after)
    whole, _, steps = trained(of, True, before, after)
    assert len(steps) == 1
    assert apart["learner.step"][0] == after * algorithm(name).graph(of).updates
    same(apart, whole)


def test_it_only_acts_until_learning_starts():
    of = system()
    arrays, _, _ = trained(of, True, 30, 0)
    assert arrays["replay.cursor"][1] == 60
    assert arrays["learner.step"][0] == 0
    trained_once, _, _ = trained(of, True, 30, 1)
    assert trained_once["learner.step"][0] == 2


def test_however_many_iterations_a_call_runs_the_bits_are_the_same():
    of = system("dqn", replay="prioritised")
    arrays, _, steps = trained(of, True, 30, 24)
    one_by_one, _, steps = trained(of, True, 30, 0)
    for _ in range(24):
        steps[0].call()
    same(arrays, one_by_one, ("loop.",))


@pytest.mark.parametrize("replay", ["uniform", "prioritised"])
def test_profiling_leaves_the_run_as_it_is(replay):
    of = system("ddpg", "Pendulum-v1", replay)
    arrays, graph, steps = trained(of, True, 30, 235)  # the ring has come round
    before = {name: array.copy() for name, array in arrays.items()}
    found = member_times(graph, steps[0].job, arrays, 12)
    assert set(found) == {t.name for t in graph.tasks}
    assert {n: count for n, (_, count) in found.items()} == {
        n: 12 * firings for n, firings in graph.repetition.items()
    }
    same(arrays, before, ("none",))


@pytest.mark.parametrize("env", [*DISCRETE, *CONTINUOUS])
def test_it_is_offered_for_every_native_environment_and_for_no_other(env):
    of = system("dqn" if env in DISCRETE else "sac", env)
    whole = fusion(algorithm(of.algorithm.name).graph(of))
    host = Device("host", "cpu")
    assert backend("cpu").offers(whole.kernel, host) == (("native", 1),)
    for changed in (
        {"program": "Hopper-v5", "args": {}},
        {"program": env, "args": {"render_mode": "rgb_array"}},
    ):
        other = kernel(whole.kernel.kind, whole.kernel.dims, **changed)
        assert backend("cpu").offers(other, host) == ()


def test_it_is_not_offered_where_acting_and_learning_alternate_within_an_iteration():
    # Two vector steps and three gradient steps: the second acts on what the first learned.
    prioritised = algorithm("dqn").graph(system(replay="prioritised", ratio="3/4"))
    assert (prioritised.repetition["step"], prioritised.repetition["learn"]) == (2, 3)
    assert fusion(prioritised) is None
    assert fusion(algorithm("dqn").graph(system(ratio="3/4"))) is not None


@pytest.mark.parametrize("replay", ["uniform", "prioritised"])
def test_the_planner_takes_it_where_it_may_and_keeps_to_the_variants_allowed(replay):
    one = {"limits": {"max_lanes": 1}}
    plan = pearl.plan(system(replay=replay, **one))
    tasks = {t.task for t in plan.tasks}
    assert set(plan.task("learn").fused_with) == tasks - {"learn"}
    limits = {"limits": {"max_lanes": 1, "variants": {"step": ["gymnasium"]}}}
    apart = pearl.plan(system(replay=replay, **limits))
    assert "step" not in apart.task("learn").fused_with
    assert "sample" in apart.task("learn").fused_with


def test_a_variant_of_less_precision_is_planned_only_where_it_is_named():
    of = system("sac", "Pendulum-v1")
    graph = algorithm("sac").graph(of)
    host = Platform("one", (Device("host", "cpu"),))
    assert ("torch-bf16", 1) in backend("cpu").offers(graph.task("learn").kernel, host.devices[0])
    named = build_cost_table(graph, host, Limits(variants={"learn": ["torch-bf16"]}))
    assert {m.variant for m in named.of("learn")} == {"torch-bf16"}
    assert "torch-bf16" not in {m.variant for m in build_cost_table(graph, host, Limits()).modes}
