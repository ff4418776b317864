"""Counted work of PPO and A2C against sums by hand, against torch, and of fused calls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pearl_devices import Device, kernel
from pearl_devices.kernels import kind_of, parts
from pearl_devices.kernels.counting import ADAM_FLOPS, parameters
from pearl_devices.kernels.on_policy import CLIP_FLOPS, DRAW_FLOPS, ON_POLICY_LOSS_FLOPS
from pearl_devices.kernels.rollouts import GAE_FLOPS
from pearl_estimators import estimate

ACTOR, CRITIC = (4, 24, 16, 2), (4, 24, 16, 1)
SPACES: dict[str, Any] = {"envs": 8, "obs": 4, "act": 0, "tanh": 1}
ROLLOUT: dict[str, Any] = {**SPACES, "horizon": 16}
LEARNED: dict[str, Any] = {**ROLLOUT, "actor": ACTOR, "critic": CRITIC}
PPO = kernel(
    "update.ppo", LEARNED, epochs=2, steps=8, batch=32, program="pearl.algorithms.ppo:losses"
)
A2C = kernel(
    "update.a2c", LEARNED, epochs=1, steps=1, batch=128, program="pearl.algorithms.a2c:losses"
)
GAE = kernel("gae", ROLLOUT, critic=CRITIC)
ACT = kernel("inference.ppo", SPACES, actor=ACTOR)


def rest(layers: tuple[int, ...]) -> int:
    """What a forward pass adds to the products of one row; a backward pass adds as much."""
    return sum(layers[1:]) + sum(layers[1:-1])


def once(layers: tuple[int, ...]) -> int:
    return sum(2 * i * o for i, o in pairwise(layers)) + rest(layers)


def test_acting_storing_and_judging_by_hand() -> None:
    assert ACT.flops == 8 * (once(ACTOR) + 2 * DRAW_FLOPS)
    assert ACT.bytes_out == 8 * (4 * 2 + 4 + 8)  # logits, density, action
    assert GAE.flops == 8 * 16 * (once(CRITIC) + GAE_FLOPS) + 8 * once(CRITIC)
    assert GAE.bytes_out == 3 * 4 * 8 * 16
    insert = kernel("rollout_insert", envs=8, obs=4, act=0, horizon=16)
    assert insert.bytes_in == insert.bytes_out == 8 * (2 * 4 * 4 + 4 + 8 + 2 + 4)


def test_the_products_of_an_update_are_those_that_torch_multiplies() -> None:
    def run(layers: tuple[int, ...], x: Tensor) -> Tensor:
        wide = []
        for i, o in pairwise(layers):
            wide += [torch.nn.Linear(i, o), torch.nn.Tanh()]
        out: Tensor = torch.nn.Sequential(*wide[:-1])(x)
        return out

    counter = FlopCounterMode(display=False)
    with counter:
        obs = torch.randn(32, 4)
        (run(ACTOR, obs).sum() + run(CRITIC, obs).sum()).backward()  # type: ignore[no-untyped-call]
    assert sum(2 * m * k * n for m, k, n in kind_of(PPO).products(PPO)) == counter.get_total_flops()
    size = parameters(ACTOR) + parameters(CRITIC)
    row = 2 * (rest(ACTOR) + rest(CRITIC)) + ON_POLICY_LOSS_FLOPS + 2 * DRAW_FLOPS
    own = counter.get_total_flops() + 32 * row + (ADAM_FLOPS + CLIP_FLOPS) * size
    assert PPO.flops == 8 * own
    assert PPO.bytes_in == 8 * (16 * size + 32 * (4 * (4 + 4) + 8))
    assert PPO.bytes_out == 8 * 12 * size


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_fused_call_does_what_its_parts_do(name: str) -> None:
    update = {"ppo": PPO, "a2c": A2C}[name]
    whole = kernel(f"iteration.{name}", update.dims, program="CartPole-v1")
    found = {part.kind: n for part, n in parts(whole)}
    acts = {"inference.ppo": 16, "env_step": 16, "rollout_insert": 16}
    assert found == {**acts, "gae": 1, f"update.{name}": 1, "param_sync": 1}
    assert whole.flops == sum(n * part.flops for part, n in parts(whole))
    rollout = kernel("rollout.ppo", ROLLOUT, actor=ACTOR, program="CartPole-v1")
    assert {part.kind: n for part, n in parts(rollout)} == acts
    host = Device("host", "cpu")
    apart = sum(n * estimate(part, host).latency_s for part, n in parts(whole))
    assert 0.1 * apart < estimate(whole, host).latency_s < apart


def test_an_iteration_is_cut_into_its_parts_or_a_whole_rollout_and_the_rest() -> None:
    sizes: dict[str, Any] = {"obs": 4, "act": 0, "envs": 4, "horizon": 8, "tanh": 1}
    nets: dict[str, Any] = {"actor": (4, 16, 2), "critic": (4, 16, 1)}
    more: dict[str, Any] = {"epochs": 1, "batch": 32, "steps": 1}
    whole = kernel("iteration.a2c", {**sizes, **nets, **more}, program="CartPole-v1")
    fine, coarse = kind_of(whole).cuts(whole)
    assert fine == parts(whole)
    assert [k.kind for k, _ in coarse] == ["rollout.ppo", "gae", "update.a2c", "param_sync"]
    assert sum(n * k.flops for k, n in coarse) == pytest.approx(sum(n * k.flops for k, n in fine))
    assert kind_of(fine[0][0]).cuts(fine[0][0]) == ()
