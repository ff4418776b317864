"""Counted work against sums by hand, against the arrays that kernels touch, and against torch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pearl_devices import Kernel, kernel
from pearl_devices.buffers import allocate
from pearl_devices.kernels import dqn, kind_of
from pearl_devices.kernels.counting import backward_flops, forward_flops, parameters, through_flops
from pearl_devices.kernels.replay import row_bytes, tree_depth, tree_levels

STORE = {"envs": 8, "obs": 4, "act": 0, "capacity": 1000, "fanout": 16}
DRAW = {**STORE, "batch": 32, "steps": 2, "n_step": 1}


def matmul_flops(of: Kernel) -> int:
    return sum(2 * m * k * n for m, k, n in kind_of(of).products(of))


def network(layers: tuple[int, ...]) -> torch.nn.Sequential:
    parts: list[torch.nn.Module] = []
    for i, o in pairwise(layers):
        parts += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def test_parameters_by_hand():
    assert parameters((4, 64, 64, 2)) == (4 * 64 + 64) + (64 * 64 + 64) + (64 * 2 + 2)


def test_forward_by_hand():
    # 3→5→2 on 7 rows: products and biases of 3·5 and 5·2, one activation for each hidden unit
    assert forward_flops((3, 5, 2), 7) == 7 * ((2 * 15 + 5) + (2 * 10 + 2) + 5)


def test_backward_by_hand():
    weights = (2 * 15 + 5) + (2 * 10 + 2)
    assert backward_flops((3, 5, 2), 7) == 7 * (weights + (2 * 10 + 5))
    assert through_flops((3, 5, 2), 7) == 7 * (2 * 10 + 5 + 2 * 15 + 3)


def test_inference_by_hand():
    k = kernel("inference.dqn", envs=7, obs=3, act=0, q=(3, 5, 2))
    assert k.flops == forward_flops((3, 5, 2), 7)
    assert k.bytes_in == 4 * (32 + 7 * 3)  # 32 parameters
    assert k.bytes_out == 4 * 7 * 2


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


def test_steps_multiply_an_update():
    sizes = {"obs": 4, "act": 0, "q": (4, 8, 2), "batch": 16, "double": 0}
    one, four = kernel("update.dqn", sizes, steps=1), kernel("update.dqn", sizes, steps=4)
    assert four.flops == 4 * one.flops
    assert four.bytes_in == 4 * one.bytes_in
    assert four.resident_bytes == one.resident_bytes


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


@pytest.mark.parametrize("capacity", [2, 16, 17, 1000, 4096, 4097, 50_000])
@pytest.mark.parametrize("fanout", [2, 8, 16])
def test_the_depth_of_the_tree_is_that_of_its_array(capacity, fanout):
    k = kernel("replay_update", batch=1, steps=1, capacity=capacity, fanout=fanout)
    assert tree_depth(k) == len(tree_levels(capacity, fanout)) - 1


def test_a_tree_draw_by_hand():
    # 1000 rows by 16: 1000 → 63 → 4 → 1, three levels of 16 sums; 4 flops more a draw
    k = kernel("replay_sample", {**DRAW, "prioritised": 1})
    assert k.flops == 64 * (3 * 16 + 4)


@pytest.mark.parametrize("prioritised", [0, 1])
def test_learn_is_the_sum_of_its_parts(prioritised):
    sizes = {**DRAW, "prioritised": prioritised, "q": (4, 8, 2), "double": 1}
    parts = ["replay_sample", "update.dqn"] + ["replay_update"] * prioritised
    whole = kernel("learn.dqn", sizes)
    for name in ("flops", "bytes_in", "bytes_out"):
        assert getattr(whole, name) == sum(getattr(kernel(p, sizes), name) for p in parts)
    assert kind_of(whole).products(whole) == dqn.UPDATE.products(kernel("update.dqn", sizes))


def test_a_missing_size_names_kernel_and_size():
    with pytest.raises(KeyError, match=r"inference.dqn has no size 'envs'"):
        kernel("inference.dqn", obs=4, act=0, q=(4, 2))


@pytest.mark.parametrize("name", ["q_learning", "sarsa", "choose"])
def test_a_tabular_step_by_hand(name):
    # 7 environments, 4 actions: a row of four float64, a transition (two observations and a reward
    # in float32, an int64 action, two flags) in; an entry, its count and a draw out
    k = kernel(f"tabular.{name}", envs=7, obs=1, act=0, states=16, actions=4)
    assert k.flops == 7 * (4 + 10)
    assert k.bytes_in == 7 * (4 * 8 + (4 * (2 * 1 + 1) + 8 + 2))
    assert k.bytes_out == 7 * 24
    assert kind_of(k).products(k) == ()


def test_a_copy_of_parameters_by_hand():
    k = kernel("param_sync", params=4610)
    assert (k.flops, k.bytes_in, k.bytes_out) == (0, 4 * 4610, 4 * 4610)
