"""Options of every algorithm, as the constants and first networks of a run: numbers by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pearl
from pearl.algorithms import algorithm
from pearl.algorithms.families.replay import _edges
from pearl.algorithms.learning_rates import RateSchedule, write
from pearl_devices import Buffers, buffers
from pearl_devices.primitives.math.nets import init_params
from pearl_devices.primitives.math.rng import key
from pearl_devices.primitives.updates.policies import orthogonal_params

DISCRETE = {"obs": 3, "actions": 2}
BOX = {"obs": 3, "act": 2, "low": [-1.0, -2.0], "high": 4.0}
LINEAR = {"initial": 0.5, "final": 0.25}
COSINE = {**LINEAR, "schedule": "cosine"}
REPLAY = {
    "spaces": BOX, "hidden": [5], "discount": 0.9, "learning_starts": 40, "replay_ratio": "1/4",
    "batch_size": 8, "adam": {"beta1": 0.8, "beta2": 0.99, "eps": 1e-5}, "max_grad_norm": 5.0,
    "huber": 2.0, "target": {"tau": 0.125},
}  # fmt: skip
RANKED = {"kind": "prioritised", "alpha": 0.75, "epsilon": 0.5, "beta": 0.25, "beta_final": 0.875}
ROLLOUT = {
    "spaces": DISCRETE, "hidden": [5], "num_envs": 4, "rollout_steps": 8, "discount": 0.9,
    "entropy": 0.125, "value_weight": 0.25, "gae_lambda": 0.75, "max_grad_norm": 5.0,
}  # fmt: skip


def system(name: str, steps: int = 1000, **options: Any) -> Any:
    given = {"name": name, "env": "E-v0", **options}
    return pearl.load({"algorithm": given, "platform": "cpu_gpu", "train": {"steps": steps}})


def first(name: str, **options: Any) -> Buffers:
    """The arrays of a run of 1,000 env steps before its first step, with seed 3."""
    made = system(name, **options)
    arrays = buffers.allocate([t.kernel for t in algorithm(name).graph(made).tasks])
    for array in arrays.values():
        array[...] = 77
    algorithm(name).initialise(arrays, made, 3)
    return arrays


def written(arrays: Buffers) -> dict[str, list[float]]:
    """The constants, but arrays of zeros alone."""
    kept = ("hyper.", "explore", "replay.priority", "replay.beta", "act.low", "act.high")
    found = {n: a.ravel().astype(float).round(6).tolist() for n, a in arrays.items()
             if n.startswith(kept)}  # fmt: skip
    return {n.removeprefix("hyper."): a for n, a in found.items() if any(a)}


SHARED = {"adam": [0.8, 0.99, 1e-5], "clip_norm": [5], "huber": [2], "discount": [0.9]}
BOUNDS = {"act.low": [-1, -2], "act.high": [4, 4]}
ADAM, RATES = {"adam": [0.9, 0.999, 1e-5]}, {"value_weight": [0.25], "entropy": [0.125]}
LEARNT = {**RATES, "clip_norm": [5], "discount": [0.9], "gae_lambda": [0.75]}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # (1000 - 40) / 4 = 240 gradient steps
        ("dqn", {**REPLAY, "spaces": DISCRETE, "target": {"every": 7}, "learning_rate": LINEAR,
                 "replay": RANKED, "exploration": {"initial": 0.9, "final": 0.25, "steps": 50}},
         {**SHARED, "target_every": [7], "lr.q": [0.5, 0.25, 240, 0],
          "explore": [0.9, 0.25, 50, 40], "replay.beta": [0.25, 0.875, 240],
          "replay.priority": [0.75, 0.5, 1]}),
        ("ddpg", {**REPLAY, "actor_learning_rate": 0.125, "exploration": {"noise": 0.375},
                  "critic_learning_rate": {"initial": 0.5, "schedule": "constant"}},
         {**SHARED, **BOUNDS, "tau": [0.125], "lr.actor": [0.125] * 4, "lr.critic": [0.5] * 4,
          "explore": [0.375, 0, 0, 40]}),
        # the actor moves in every third of them
        ("td3", {**REPLAY, "actor_learning_rate": COSINE, "critic_learning_rate": LINEAR,
                 "policy_delay": 3, "smoothing": {"noise": 0.5, "limit": 0.75}},
         {**SHARED, **BOUNDS, "tau": [0.125], "lr.actor": [0.5, 0.25, 80, 1],
          "lr.critic1": [0.5, 0.25, 240, 0], "lr.critic2": [0.5, 0.25, 240, 0],
          "smoothing": [0.5, 0.75], "explore": [0.1, 0, 0, 40]}),
        ("sac", {**REPLAY, "temperature_learning_rate": 0.25},
         {**SHARED, **BOUNDS, "tau": [0.125], "lr.actor": [3e-4], "lr.critic1": [1e-3],
          "lr.critic2": [1e-3], "lr.alpha": [0.25], "target_entropy": [-2],
          "explore": [0, 0, 0, 40]}),
        # 32 rollouts of 32 rows, and 2 x 4 gradient steps in each
        ("ppo", {**ROLLOUT, "epochs": 2, "minibatches": 4, "clip": 0.375, "value_clip": 0.625,
                 "target_kl": 0.0625, "learning_rate": COSINE},
         {**LEARNT, **ADAM, "clip": [0.375], "value_clip": [0.625], "target_kl": [0.0625],
          "normalise": [1], "lr.actor": [0.5, 0.25, 256, 1], "lr.critic": [0.5, 0.25, 256, 1]}),
        ("ppo", {**ROLLOUT, "spaces": BOX, "epochs": 1, "anneal": True, "learning_rate": 0.125,
                 "returns": "monte_carlo", "gae_lambda": 1.0, "normalise_advantages": False},
         {**LEARNT, **ADAM, **BOUNDS, "gae_lambda": [1], "clip": [0.2], "anneal": [32],
          "lr.actor": [0.125], "lr.critic": [0.125]}),
        ("a2c", {**ROLLOUT, "rmsprop": {"decay": 0.75, "eps": 0.25}, "learning_rate": LINEAR},
         {**LEARNT, "adam": [0.9, 0.999, 0], "rmsprop": [0.75, 0.25],
          "lr.actor": [0.5, 0.25, 32, 0], "lr.critic": [0.5, 0.25, 32, 0]}),
        ("a2c", {**ROLLOUT, "optimiser": "adam", "learning_rate": 0.125, "rollout_steps": 7,
                 "anneal": True},  # 36 rollouts of 28 rows, the last one over the end
         {**LEARNT, "adam": [0.9, 0.999, 0], "anneal": [36], "lr.actor": [0.125],
          "lr.critic": [0.125]}),
        ("q_learning", {"spaces": {"states": 6, "actions": 2}, "initial_value": 2.0,
                        "learning_rate": 0.5, "learning_rate_power": 0.25, "discount": 0.9},
         {"lr.q": [0.5, 0.25], "discount": [0.9], "explore": [1, 0.05, 10_000, 0]}),
        ("examples.own_algorithm", {**REPLAY, "spaces": DISCRETE, "learning_rate": LINEAR,
                                    "exploration": {"initial": 0.75, "final": 0.5, "steps": 9}},
         {**SHARED, "tau": [0.125], "lr.q": [0.5, 0.25, 240, 0], "explore": [0.75, 0.5, 9, 40]}),
    ],
)  # fmt: skip
def test_options_reach_their_arrays(name: str, options: Any, expected: Any) -> None:
    found = written(first(name, **options))
    assert found == {n: pytest.approx(values, rel=1e-6) for n, values in expected.items()}


def test_the_entropy_that_a_spec_gives_is_the_target_and_a_table_begins_as_it_says() -> None:
    arrays = first("sac", **REPLAY, target_entropy=-0.5, temperature=0.25)
    assert arrays["hyper.target_entropy"].tolist() == [-0.5]
    assert arrays["learner.alpha"].tolist() == [pytest.approx(math.log(0.25), rel=1e-6)]
    table = first("sarsa", spaces={"states": 6, "actions": 2}, initial_value=2.0)
    np.testing.assert_array_equal(table["policy.q"], np.full((6, 2), 2.0))


def test_networks_are_drawn_each_from_a_stream_of_its_own_and_copied() -> None:
    def drawn(name: str, widths: tuple[int, ...], **more: Any) -> Any:
        return init_params(widths, key(3, f"network {name}"), **more)

    near = {"final_scale": 3e-3}
    for name, networks in {
        "dqn": {"q": ((3, 5, 2), {})},
        "ddpg": {"actor": ((3, 5, 2), near), "critic": ((5, 5, 1), near)},
        "td3": {"actor": ((3, 5, 2), {}), "critic1": ((5, 5, 1), {}), "critic2": ((5, 5, 1), {})},
        "sac": {"actor": ((3, 5, 4), {}), "critic1": ((5, 5, 1), {}), "critic2": ((5, 5, 1), {})},
        "examples.own_algorithm": {"q": ((3, 5, 2), {})},
    }.items():
        made = {**REPLAY, "spaces": BOX if "actor" in networks else DISCRETE}
        arrays = first(name, **made)
        for network, (widths, more) in networks.items():
            expected = drawn(network, widths, **more)
            sides = [side for side in ("learner.{}", "learner.{}.target", "policy.{}")
                     if side.format(network) in arrays]  # fmt: skip
            assert len(sides) == 1 + (network in ("actor", "q")) + (
                (name, network) != ("sac", "actor")
            )
            for side in sides:
                np.testing.assert_array_equal(arrays[side.format(network)], expected, err_msg=name)


@pytest.mark.parametrize("spaces", [DISCRETE, BOX, {"obs": 3, "choices": [2, 3]}])
def test_first_policies_of_rollouts_are_near_uniform_with_the_deviation_asked_for(spaces):
    arrays = first("ppo", **{**ROLLOUT, "spaces": spaces, "log_std": -0.5})
    outputs = spaces.get("actions") or spaces.get("act") or sum(spaces["choices"])
    for network, widths, gain in (("actor", (3, 5, outputs), 0.01), ("critic", (3, 5, 1), 1.0)):
        expected = orthogonal_params(widths, key(3, f"network {network}"), final_gain=gain)
        for side in ("learner", "policy"):
            found = arrays[f"{side}.{network}"]
            np.testing.assert_allclose(found[: expected.size], expected, rtol=1e-5, atol=1e-7)
            deviations = [-0.5] * spaces.get("act", 0) if network == "actor" else []
            assert found[expected.size :].tolist() == deviations
    for activation, tanh in (("tanh", 1), ("relu", 0)):
        graph = algorithm("ppo").graph(system("ppo", **ROLLOUT, activation=activation))
        assert {graph.task(t).kernel.dims["tanh"] for t in ("act", "advantages", "learn")} == {tanh}
    if "choices" in spaces:
        assert arrays["act.choices"].tolist() == [2, 3]


def test_a_schedule_lasts_at_least_one_step() -> None:
    given: dict[str, Any] = {"hyper.lr.q": np.zeros(4)}
    write(given, "q", RateSchedule(initial=0.5, final=0.25), 0.5)
    assert given["hyper.lr.q"].tolist() == [0.5, 0.25, 1.0, 0.0]


@pytest.mark.parametrize(
    ("d", "u", "learning"),
    [
        # sync fires with the acting side …
        (2, 3, {("learn", "sync"): (2, 3, 1), ("sync", "act"): (1, 1, 1),
                ("act", "sync"): (1, 1, 0), ("sync", "learn"): (3, 2, 3)}),
        (1, 1, {("learn", "sync"): (1, 1, 0), ("sync", "act"): (1, 1, 1),
                ("act", "sync"): (1, 1, 0), ("sync", "learn"): (1, 1, 1)}),
        # … or with the learning side
        (3, 2, {("learn", "sync"): (1, 1, 0), ("sync", "act"): (3, 2, 4),
                ("act", "sync"): (2, 3, 0), ("sync", "learn"): (1, 1, 1)}),
        (4, 2, {("learn", "sync"): (1, 1, 0), ("sync", "act"): (4, 2, 5),
                ("act", "sync"): (2, 4, 0), ("sync", "learn"): (1, 1, 1)}),
    ],
)  # fmt: skip
def test_tokens_of_a_replay_are_those_of_the_table_in_the_theory(d, u, learning):
    sent = {"action": 1.0, "obs": 2.0, "transition": 3.0, "batch": 4.0, "td": 5.0, "params": 6.0}
    back = d + u - math.gcd(d, u)
    expected = {
        ("act", "step"): (1, 1, 0), ("step", "act"): (1, 1, 2),
        ("step", "store"): (1, 1, 0), ("store", "sample"): (u, d, 0),
        ("sample", "store"): (d, u, back), ("sample", "learn"): (1, 1, 0),
        **learning,
        **{(n, n): (1, 1, 1) for n in ("step", "store", "learn", "sync")},
    }  # fmt: skip
    ranked = {
        ("learn", "priorities"): (1, 1, 0), ("sample", "priorities"): (1, 1, 0),
        ("priorities", "sample"): (1, 1, 1),
        ("priorities", "store"): (d, u, back),
    }  # fmt: skip
    for prioritised in (False, True):
        edges = _edges(d, u, prioritised, 2, **sent)
        found = {(e.src, e.dst): (e.production, e.consumption, e.tokens_seq) for e in edges}
        assert found == expected | (ranked if prioritised else {})
        carried = {(e.src, e.dst): (e.bytes, e.limit) for e in edges if e.bytes}
        assert carried == {
            ("act", "step"): (1.0, None), ("step", "act"): (2.0, None),
            ("step", "store"): (3.0, "insertion_lag"),
            ("sample", "learn"): (4.0, "prefetch"),
            ("sync", "act"): (6.0, "policy_lag"),
            **({("learn", "priorities"): (5.0, "priority_staleness")} if prioritised else {}),
        }  # fmt: skip
