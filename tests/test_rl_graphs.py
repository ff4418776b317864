"""The graph of PPO for the solver benchmark, its counted work, and the rules of the table."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import solver_rl
from benchmarks.rl_graphs import (
    CLIP_FLOPS,
    DRAW_FLOPS,
    GAE_FLOPS,
    OWN,
    PPO_LOSS_FLOPS,
    Rollouts,
    launches,
    modes,
    ppo,
    ppo_gae,
    ppo_inference,
    ppo_update,
)
from pearl.algorithms import ALGORITHMS
from pearl.graph import TaskGraph
from pearl.limits import Limits
from pearl.listing import machines
from pearl.solvers import solve
from pearl_devices import Platform
from pearl_devices.work import ADAM_FLOPS, KINDS
from tests import test_pearl_original as original
from tests.graphs import devices, dqn, dqn_costs, star

HIDDEN = (24, 16)
CONTINUOUS = Rollouts("Pendulum-v1", 4, 32, 3, 2, 3, 0, 2, HIDDEN)
DISCRETE = Rollouts("CartPole-v1", 8, 16, 4, 4, 4, 2, 0, HIDDEN)
Layers = tuple[int, ...]


def network(layers: Layers) -> torch.nn.Sequential:
    parts: list[torch.nn.Module] = []
    for i, o in pairwise(layers):
        parts += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def forward_rest(layers: Layers, batch: int) -> int:
    """What a forward pass adds to its products: biases, and an activation a hidden unit."""
    return batch * (sum(layers[1:]) + sum(layers[1:-1]))


def backward_rest(layers: Layers, batch: int) -> int:
    """Likewise backward: bias gradients, and activations of the hidden layers."""
    return batch * (sum(layers[1:]) + sum(layers[1:-1]))


class Flat:
    """Adam on one flat vector, as the eager variants have it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.size = sum(p.numel() for p in module.parameters())
        self.m, self.v = torch.zeros(self.size), torch.zeros(self.size)
        self.p, self.g = torch.zeros(self.size), torch.ones(self.size)

    def step(self, clip: bool = False) -> None:
        g = self.g
        if clip:
            g = g * (0.5 / (g.norm() + 1e-6)).clamp(max=1.0)
        self.m.mul_(0.9).add_(g, alpha=0.1)
        self.v.mul_(0.999).addcmul_(g, g, value=0.001)
        bottom = (self.v / 0.5).sqrt_().add_(1e-8)
        self.p.addcdiv_(self.m / 0.5, bottom, value=-1e-3)


def ppo_step(r: Rollouts) -> None:
    """One minibatch of PPO with discrete actions, in eager torch."""
    actor, critic = network(r.actor), network(r.critic)
    b = r.minibatch
    obs, action = torch.randn(b, r.obs), torch.zeros(b, 1, dtype=torch.int64)
    density, gain, returns = (torch.randn(b) for _ in range(3))
    adam = Flat(torch.nn.ModuleList([actor, critic]))
    yield
    logits = actor(obs).log_softmax(dim=1)
    now = logits.gather(1, action).squeeze(1)
    entropy = -(logits.exp() * logits).sum(dim=1).mean()
    ratio = (now - density).exp()
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    clipped = ratio.clamp(0.8, 1.2)
    policy = -torch.minimum(ratio * gain, clipped * gain).mean()
    seen = critic(obs).squeeze(1)
    error = 0.5 * (seen - returns).square().mean()
    loss = policy + 0.5 * error - 0.01 * entropy
    torch.autograd.grad(loss, [*actor.parameters(), *critic.parameters()])
    adam.step(clip=True)
    yield


class Dispatched(TorchDispatchMode):
    """Counts the operations that torch dispatches, views apart."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returns = function._schema.returns
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.count += not (view or "detach" in str(function))
        return function(*args, **(kwargs or {}))


def counted(step, mode):
    """Run a prepared step under a counting mode."""
    next(step)
    with mode:
        next(step)
    return mode


def test_the_products_of_a_ppo_update_are_those_that_torch_multiplies() -> None:
    r, b = DISCRETE, DISCRETE.minibatch
    rest = sum(forward_rest(n, b) + backward_rest(n, b) for n in (r.actor, r.critic))
    rest += b * (PPO_LOSS_FLOPS + r.actions * DRAW_FLOPS) + (ADAM_FLOPS + CLIP_FLOPS) * r.params
    products = counted(ppo_step(r), FlopCounterMode(display=False)).get_total_flops()
    assert ppo_update(r).flops - rest == products


def test_acting_and_advantages_by_hand() -> None:
    r = DISCRETE
    both = sum(2 * i * o for n in (r.actor, r.critic) for i, o in pairwise(n))
    both += forward_rest(r.actor, 1) + forward_rest(r.critic, 1) + 2 * DRAW_FLOPS
    assert ppo_inference(r).flops == 8 * both
    value = sum(2 * i * o for i, o in pairwise(r.critic)) + forward_rest(r.critic, 1)
    assert ppo_gae(r).flops == GAE_FLOPS * 8 * 16 + 8 * value
    assert ppo_gae(r).bytes_out == 2 * 4 * 8 * 16


def test_launches_are_what_torch_dispatches_within_a_tenth() -> None:
    ppo_count = counted(ppo_step(DISCRETE), Dispatched()).count
    assert launches(ppo_update(DISCRETE)) == pytest.approx(ppo_count, rel=0.1)


@pytest.mark.parametrize("r", [CONTINUOUS, DISCRETE])
def test_an_iteration_of_ppo_is_a_rollout_and_its_updates(r: Rollouts) -> None:
    graph = ppo(r)
    t, u = r.steps, r.updates
    expected = {"inference": t, "env_step": t, "gae": 1, "update": u, "param_sync": 1}
    assert dict(graph.repetition) == expected
    assert (graph.env_steps, graph.updates, graph.batch) == (r.envs * t, u, r.minibatch)
    copy = next(e for e in graph.edges if (e.src, e.dst) == ("param_sync", "inference"))
    assert (copy.tokens_seq, copy.production, copy.limit) == (t, t, None)
    assert all(e.limit is None for e in graph.edges)


def test_ppo_without_slack_is_the_sequential_program() -> None:
    """However many lanes, acting and learning take turns: only the two ends of it may overlap."""
    r = replace(DISCRETE, epochs=1)
    graph = ppo(r)
    costs = modes(graph, machines()["cpu_gpu"])
    native = tuple(m for m in costs.modes if (m.device, m.variant) == ("cpu", "native"))
    plan = solve(graph, replace(costs, modes=native))
    times = {m.tasks[0]: m.estimate.latency_s for m in native}
    q = graph.repetition
    turn = sum(times[t] * q[t] for t in q)
    assert plan.period_s == pytest.approx(turn)


@pytest.mark.parametrize("platform", ["cpu_gpu", "cpu_gpu_fpga"])
def test_every_task_has_modes_and_no_network_is_on_the_fpga(platform: str) -> None:
    graph = ppo(DISCRETE)
    costs = modes(graph, machines()[platform])
    for task in graph.tasks:
        assert costs.of(task.name)
    for m in costs.modes:
        assert m.estimate.latency_s > 0
        if graph.task(m.tasks[0]).kernel.kind in OWN:
            assert m.device != "fpga"
            assert m.estimate.rung == "datasheet"


def test_a_graph_without_kernels_is_no_algorithm() -> None:
    assert "ppo" not in ALGORITHMS
    assert set(OWN).isdisjoint(KINDS)


def renamed(graph: TaskGraph) -> TaskGraph:
    """The composer's graph under our names of tasks."""
    names = {
        "sample": "replay_sample",
        "train": "update",
        "priorities": "replay_update",
        "insert": "replay_insert",
    }
    tasks = tuple(replace(t, name=names[t.name]) for t in graph.tasks)
    edges = tuple(replace(e, src=names[e.src], dst=names[e.dst]) for e in graph.edges)
    return replace(graph, tasks=tasks, edges=edges)


def test_the_greedy_rule_picks_the_composers_pair() -> None:
    graph, costs = renamed(original.graph()), original.costs()
    names = dict(
        zip(
            original.TASKS,
            ("replay_update", "replay_insert", "replay_sample", "update"),
            strict=True,
        )
    )
    table = replace(
        costs,
        modes=tuple(replace(m, tasks=(names[m.tasks[0]],)) for m in costs.modes),
        pair_extra_s={},
    )
    case = solver_rl.Case("dqn", "small", "pearl", graph, table, Limits())
    found = solver_rl.greedy_pins(case)
    assert found is not None
    pins, _ = found
    assert (pins["replay_sample"], pins["update"]) == ("CPU", "GPU1")


def test_the_greedy_rule_leaves_transfers_out_and_is_valued_with_them() -> None:
    graph = dqn(4)
    platform = star(devices("cpu", "acc"), latency_s=1e-3)
    costs = dqn_costs(platform, {"cpu": 1.0, "acc": 2.0})
    acting = {("inference",), ("env_step",)}
    kept = tuple(m for m in costs.modes if m.device == "cpu" or m.tasks not in acting)
    costs = replace(costs, modes=kept)
    case = solver_rl.Case("dqn", "small", "star", graph, costs, Limits())
    found = solver_rl.greedy_pins(case)
    assert found is not None
    pins, store = found
    assert {t for t, d in pins.items() if d == "acc"} == {
        "replay_insert",
        "replay_sample",
        "replay_update",
        "update",
        "param_sync",
    }
    assert store == "acc"  # two of its three users are there
    greedy, best = (solver_rl.solved(case, "throughput", p) for p in (pins, None))
    assert greedy is not None
    assert best is not None
    assert greedy.value < 0.2 * best.value
    assert {t.device for t in best.tasks} == {"cpu"}


def test_ppo_has_no_greedy_rule() -> None:
    r = DISCRETE
    graph = ppo(r)
    platform: Platform = machines()["cpu_gpu"]
    case = solver_rl.Case("ppo", "small", "cpu_gpu", graph, modes(graph, platform), Limits())
    assert solver_rl.greedy_pins(case) is None


def test_ours_is_at_least_as_good_in_every_row_of_the_small_table() -> None:
    rows = list(islice(solver_rl.cases(quick=True), 4))  # the host, which comes next, is measured
    assert {c.platform for c in rows} == {"cpu_gpu"}
    assert [c.algorithm for c in rows] == ["dqn", "ddpg", "sac", "ppo"]
    for case in rows[:3]:
        found, _ = solver_rl.plans_of(case)
        table = {name: solver_rl.figures(plans) for name, plans in found.items()}
        for per_s, per_j in table.values():
            assert per_s is not None
            assert per_j is not None
            assert per_s <= (table["ours"][0] or 0.0) * (1 + 1e-6)
            assert per_j <= (table["ours"][1] or 0.0) * (1 + 1e-6)
