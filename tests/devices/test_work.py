"""Counted work against the arrays that kernels touch and against torch's counter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pearl_devices import Kernel, kernel
from pearl_devices.buffers import allocate
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import ADAM_FLOPS, parameters
from pearl_devices.kernels.on_policy import CLIP_FLOPS, DRAW_FLOPS, ON_POLICY_LOSS_FLOPS
from pearl_devices.kernels.replay import row_bytes

STORE = {"envs": 8, "obs": 4, "act": 0, "capacity": 1000, "fanout": 16}
DRAW = {**STORE, "batch": 32, "steps": 2, "n_step": 1}
ACTOR, CRITIC = (4, 24, 16, 2), (4, 24, 16, 1)
SPACES: dict[str, Any] = {"envs": 8, "obs": 4, "act": 0, "tanh": 1}
LEARNED: dict[str, Any] = {**SPACES, "horizon": 16, "actor": ACTOR, "critic": CRITIC}
PPO = kernel(
    "update.ppo", LEARNED, epochs=2, steps=8, batch=32, program="pearl.algorithms.ppo:losses"
)
A2C = kernel(
    "update.a2c", LEARNED, epochs=1, steps=1, batch=128, program="pearl.algorithms.a2c:losses"
)
GAE = kernel("gae", SPACES, horizon=16, critic=CRITIC)
ACT = kernel("inference.ppo", SPACES, actor=ACTOR)


def matmul_flops(of: Kernel) -> int:
    return sum(2 * m * k * n for m, k, n in kind_of(of).products(of))


def network(layers: tuple[int, ...]) -> torch.nn.Sequential:
    parts: list[torch.nn.Module] = []
    for i, o in pairwise(layers):
        parts += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


@pytest.mark.parametrize("double", [0, 1])
def test_products_of_a_dqn_update_are_those_that_torch_multiplies(double):
    layers, batch = (4, 24, 16, 3), 32
    q, target = network(layers), network(layers)
    obs, ahead = torch.randn(batch, 4), torch.randn(batch, 4)
    with FlopCounterMode(display=False) as counter:
        with torch.no_grad():
            value = target(ahead)
            if double:
                value = value * q(ahead)
        (q(obs).sum() - value.sum()).backward()
    k = kernel("update.dqn", obs=4, act=0, q=layers, batch=batch, steps=1, double=double)
    assert matmul_flops(k) == counter.get_total_flops()


def test_products_of_a_ddpg_update_are_those_that_torch_multiplies():
    actor_layers, critic_layers, batch = (5, 24, 16, 2), (7, 16, 24, 1), 32
    actor, critic = network(actor_layers), network(critic_layers)
    obs, ahead, action = torch.randn(batch, 5), torch.randn(batch, 5), torch.randn(batch, 2)
    with FlopCounterMode(display=False) as counter:
        with torch.no_grad():
            critic(torch.cat((ahead, actor(ahead)), 1))
        loss = critic(torch.cat((obs, action), 1)).sum()
        torch.autograd.grad(loss, list(critic.parameters()))
        policy_loss = critic(torch.cat((obs, actor(obs)), 1)).sum()
        torch.autograd.grad(policy_loss, list(actor.parameters()))
    k = kernel(
        "update.ddpg", obs=5, act=2, actor=actor_layers, critic=critic_layers, batch=batch, steps=1
    )
    assert matmul_flops(k) == counter.get_total_flops()


def twin_products(actor: torch.nn.Module, double_actor: bool, delayed: bool) -> int:
    """Flops that torch multiplies in one gradient step with two critics, 5 observations, 2 actions:
    with the actor's part, or `delayed` without it."""
    critics, targets = [network(TWIN) for _ in range(2)], [network(TWIN) for _ in range(2)]
    obs, ahead, action = torch.randn(32, 5), torch.randn(32, 5), torch.randn(32, 2)
    with FlopCounterMode(display=False) as counter:
        with torch.no_grad():
            joined = torch.cat((ahead, actor(ahead)[:, :2]), 1)
            least = torch.minimum(targets[0](joined), targets[1](joined)).sum()
        for critic in critics:
            loss = critic(torch.cat((obs, action), 1)).sum() - least
            torch.autograd.grad(loss, list(critic.parameters()))
        if not delayed:
            joined = torch.cat((obs, actor(obs)[:, :2]), 1)
            value = critics[0](joined)
            if double_actor:
                value = torch.minimum(value, critics[1](joined))
            torch.autograd.grad(value.sum(), list(actor.parameters()))
    return counter.get_total_flops()


TWIN = (7, 16, 24, 1)


def test_products_of_a_td3_update_are_those_that_torch_multiplies():
    layers = (5, 24, 16, 2)
    sizes = {"obs": 5, "act": 2, "actor": layers, "critic1": TWIN, "critic2": TWIN, "batch": 32}
    k = kernel("update.td3", sizes, steps=6, policy_delay=3)
    late, other = (twin_products(network(layers), False, delayed) for delayed in (False, True))
    assert matmul_flops(k) == late + 2 * other
    assert kind_of(k).rounds(k) == 2
    once = kernel("update.td3", sizes, steps=1, policy_delay=3)
    assert once.flops == pytest.approx(k.flops / 6)


def test_products_of_a_sac_update_are_those_that_torch_multiplies():
    layers = (5, 24, 16, 4)
    sizes = {"obs": 5, "act": 2, "actor": layers, "critic1": TWIN, "critic2": TWIN, "batch": 32}
    k = kernel("update.sac", sizes, alpha=(0, 1), steps=1)
    assert matmul_flops(k) == twin_products(network(layers), True, False)


def test_the_products_of_an_update_of_ppo_are_those_that_torch_multiplies():
    with FlopCounterMode(display=False) as counter:
        obs = torch.randn(32, 4)
        (network(ACTOR)(obs).sum() + network(CRITIC)(obs).sum()).backward()
    assert matmul_flops(PPO) == counter.get_total_flops()
    size = parameters(ACTOR) + parameters(CRITIC)
    # of biases and activations: a backward pass adds as much as a forward pass
    rest = sum(sum(layers[1:]) + sum(layers[1:-1]) for layers in (ACTOR, CRITIC))
    row = 2 * rest + ON_POLICY_LOSS_FLOPS + 2 * DRAW_FLOPS
    own = counter.get_total_flops() + 32 * row + (ADAM_FLOPS + CLIP_FLOPS) * size
    assert PPO.flops == 8 * own
    assert PPO.bytes_in == 8 * (16 * size + 32 * (4 * (4 + 4) + 8))
    assert PPO.bytes_out == 8 * 12 * size


def test_a_stored_row_has_the_bytes_of_its_arrays():
    for act in (0, 3):
        k = kernel("replay_insert", {**STORE, "act": act, "prioritised": 0})
        arrays = allocate([k])
        stored = sum(
            a.nbytes
            for name, a in arrays.items()
            if name.startswith("replay.") and name != "replay.cursor"
        )
        assert stored == k.dim("capacity") * row_bytes(k)
        assert k.bytes_in == k.bytes_out == 8 * row_bytes(k)


def test_a_sample_writes_the_bytes_of_its_batch():
    for act in (0, 3):
        k = kernel("replay_sample", {**DRAW, "act": act, "prioritised": 0})
        batch = [a for name, a in allocate([k]).items() if name.startswith("batch.")]
        assert k.bytes_out == sum(a.nbytes for a in batch)


def test_an_update_reads_its_batch_and_four_numbers_a_parameter_and_the_target():
    for k in (
        kernel("update.dqn", obs=4, act=0, q=(4, 8, 2), batch=16, steps=1, double=1),
        kernel("update.ddpg", obs=3, act=2, actor=(3, 8, 2), critic=(5, 8, 1), batch=16, steps=1),
    ):
        arrays = allocate([k])
        batch = sum(
            a.nbytes for n, a in arrays.items() if n.startswith("batch.") and n != "batch.td"
        )
        size = sum(parameters(v) for v in k.dims.values() if isinstance(v, tuple))
        assert k.bytes_in == batch + (4 + 1) * 4 * size
        assert k.bytes_out == (3 + 1) * 4 * size + arrays["batch.td"].nbytes


def test_a_missing_size_names_kernel_and_size():
    with pytest.raises(KeyError, match=r"inference.dqn has no size 'envs'"):
        kernel("inference.dqn", obs=4, act=0, q=(4, 2))
