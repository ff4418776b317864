"""The examples after papers: a learned scheduler, and a spiking policy on a machine of tiles."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import Device, Refused, kernel

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def from_the_root() -> Iterator[None]:
    """The examples are modules below the root of the repository."""
    sys.path.insert(0, str(ROOT))
    yield
    sys.path.remove(str(ROOT))


def test_loads_of_the_learned_scheduler_are_the_periods_of_the_planner() -> None:
    from examples.learned_scheduler.graphs import STAGES, Loads, bottleneck_s, draw_graph

    random = np.random.default_rng(5)
    for nodes in (4, 9, 20):
        loads = Loads(draw_graph(random, nodes))
        for node in random.permutation(nodes):
            loads.place(int(node), int(random.integers(STAGES)))
        expected = bottleneck_s(loads.graph, loads.stage)
        assert loads.seconds.max() == pytest.approx(expected, rel=1e-9)


def test_rewards_of_the_learned_scheduler_add_up_to_its_bottleneck() -> None:
    from examples.learned_scheduler.cutting import Cutting

    env = Cutting()
    obs, _ = env.reset(seed=3)
    total, over = 0.0, False
    while not over:
        assert obs.shape == env.observation_space.shape
        obs, reward, over, _, _ = env.step(env.next % 3)
        total += reward
    assert -total == pytest.approx(env.loads.seconds.max() / env.loads.graph.least_s)
    assert (env.loads.stage >= 0).all()


def spikes(obs: Any, weights: dict[str, Any]) -> Any:
    """The recurrence, written by hand: potentials of two layers and of the readout."""
    from examples.spiking.network import BETA, STEPS

    one = two = out = 0.0
    means = 0.0
    for _ in range(STEPS):
        one = BETA * one + obs @ weights["first.weight"].T + weights["first.bias"]
        fired = (one > 1.0).astype(obs.dtype)
        one = one - fired
        two = BETA * two + fired @ weights["second.weight"].T + weights["second.bias"]
        fired = (two > 1.0).astype(obs.dtype)
        two = two - fired
        out = BETA * out + fired @ weights["last.weight"].T + weights["last.bias"]
        means = means + out / STEPS
    return means


def test_the_spiking_network_is_the_recurrence() -> None:
    torch = pytest.importorskip("torch")
    from examples.spiking.network import Spiking

    torch.manual_seed(0)
    net = Spiking(4, 2).double()
    obs = 4.0 * torch.randn(7, 4, dtype=torch.float64)
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    found = net(obs).detach().numpy()
    assert found == pytest.approx(spikes(obs.numpy(), weights), abs=1e-12)
    assert np.ptp(found) > 1e-3  # some neurons fire


def test_the_gradient_of_a_spike_is_that_of_the_smoothed_neuron() -> None:
    torch = pytest.importorskip("torch")
    from examples.spiking.network import Spike, Spiking, smooth

    potential = torch.linspace(-2.0, 4.0, 41, dtype=torch.float64, requires_grad=True)
    Spike.apply(potential).sum().backward()
    step = 1e-6
    with torch.no_grad():
        expected = (smooth(potential + step) - smooth(potential - step)) / (2 * step)
    assert potential.grad.numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-6)

    torch.manual_seed(1)
    net = Spiking(3, 2, fire=smooth).double()
    obs = torch.randn(5, 3, dtype=torch.float64)
    net(obs).pow(2).sum().backward()
    weight = net.first.weight
    with torch.no_grad():
        for i, j in ((0, 0), (7, 2)):
            ends = []
            for moved in (step, -2 * step):
                weight[i, j] += moved
                ends.append(float(net(obs).pow(2).sum()))
            weight[i, j] += step
            slope = (ends[0] - ends[1]) / (2 * step)
            assert float(weight.grad[i, j]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_tiles_refuse_what_their_memory_does_not_hold_and_what_is_no_network() -> None:
    from examples.spiking import tiles

    figures = {"tile_memory_bytes": 1e3, "exchange_bytes_per_s": 1e12, "sync_s": 1e-6}
    device = Device("ipu", "examples.spiking.tiles", width=4, figures=figures)
    copy = kernel("param_sync", params=5_000)
    refused = tiles.offers(copy, device)
    assert isinstance(refused, Refused)
    assert "has 0.00 MB; a smaller network or more tiles fit" in str(refused)
    assert tiles.offers(copy, Device("ipu", "x", width=1472, figures=figures)) == (("tiles", 1472),)
    env = tiles.offers(
        kernel("replay_insert", envs=4, obs=4, act=0, capacity=64, prioritised=0, fanout=4), device
    )
    assert isinstance(env, Refused)


@pytest.mark.parametrize("latency_s", [1e-5, 1e-3])
def test_the_plan_of_the_spiking_policy_is_the_best_of_all_placements(latency_s: float) -> None:
    pytest.importorskip("torch")
    from examples.spiking.__main__ import choose

    best = choose(latency_s)
    values = {
        pair: choose(latency_s, act=pair[0], learn=pair[1]).value
        for pair in itertools.product(("cpu", "ipu"), repeat=2)
    }
    assert best.value == pytest.approx(max(values.values()))
    placed = best.task("act").device, best.task("learn").device
    assert placed == max(values, key=values.__getitem__)
    assert placed == (("ipu", "ipu") if latency_s == 1e-5 else ("cpu", "cpu"))
