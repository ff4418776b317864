"""TD3 and SAC: the contract, what is particular to their gradient steps, and whole runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import pearl
from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import Buffers, Kernel, kernel
from pearl_devices.primitives.math import nets, rng
from pearl_devices.primitives.updates import sac, td3

CRITIC = (5, 16, 16, 1)
NETWORKS: dict[str, dict[str, Any]] = {
    "td3": {"actor": (3, 16, 2), "critic1": CRITIC, "critic2": CRITIC, "policy_delay": 2},
    "sac": {"actor": (3, 16, 4), "critic1": CRITIC, "critic2": CRITIC, "alpha": (0, 1)},
}
SPACES: dict[str, Any] = {"obs": 3, "act": 2}


def update(algorithm: str, **changes: Any) -> Kernel:
    sizes = {**SPACES, **NETWORKS[algorithm], "batch": 8, "steps": 2, **changes}
    return kernel(f"update.{algorithm}", sizes, program=f"pearl.algorithms.{algorithm}:losses")


# One gradient step


def started(k: Kernel, seed: int = 3) -> Buffers:
    """Arrays whose networks are as a run draws them and whose optimiser has not moved yet."""
    buffers = fill_arrays([k], seed)
    for place, (name, layers) in enumerate(k.networks.items()):
        if layers[0]:
            buffers[f"learner.{name}"][:] = nets.init_params(layers, seed + place)
        for suffix in (".m", ".v"):
            buffers[f"learner.{name}{suffix}"][:] = 0
    return buffers


def test_td3_smooths_by_clipped_noise_inside_the_bounds() -> None:
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
    noise = np.random.default_rng(0).normal(size=(5000, 2)).astype(np.float32)
    middle = np.tile(np.array([0.0, 0.5], np.float32), (5000, 1))
    action = middle.copy()
    td3.smooth(action, noise, np.array([0.2, 0.3]), low, high)
    shares = (action - middle) / (0.5 * (high - low))
    np.testing.assert_allclose(shares, np.clip(0.2 * noise, -0.3, 0.3), atol=1e-6)
    edge = np.tile(high, (5000, 1))
    td3.smooth(edge, noise, np.array([0.2, 0.3]), low, high)
    assert (edge <= high).all()
    assert (edge[noise > 0] == np.tile(high, (5000, 1))[noise > 0]).all()


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_the_density_of_a_squashed_gaussian_is_exact_even_far_out(scale: float) -> None:
    """Against torch's own transformed normal in float64, by a formula that stays finite."""
    random = np.random.default_rng(1)
    z = (scale * random.normal(size=(200, 4))).astype(np.float32)
    noise = random.normal(size=(200, 2)).astype(np.float32)
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
    squashed, action = np.zeros((2, 200, 2), np.float32)
    density = np.zeros(200, np.float32)
    sac.sample(z, noise, low, high, squashed, action, density)
    mean, log_std = torch.tensor(z).double().chunk(2, 1)
    normal: Any = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + normal.scale * torch.tensor(noise).double()
    tanh: Any = torch.distributions.TanhTransform()
    exact = (normal.log_prob(u) - tanh.log_abs_det_jacobian(u, torch.tanh(u))).sum(1)
    np.testing.assert_allclose(density, exact.numpy(), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(squashed, torch.tanh(u).numpy(), atol=2e-6)
    half = 0.5 * (high - low)
    np.testing.assert_allclose(action, low + half + half * torch.tanh(u).numpy(), atol=4e-6)


def test_pairs_of_normal_numbers_are_normal_and_depend_on_their_index_alone() -> None:
    base = np.uint64(rng.stream_base(np.uint64(7), np.uint64(3)))
    whole, tail = np.zeros(100_001, np.float32), np.zeros(5, np.float32)
    rng.normals(base, 0, whole)
    rng.normals(base, 100, tail)
    assert np.array_equal(tail, whole[100:105])
    for part in (whole[::2], whole[1::2]):
        assert part.mean() == pytest.approx(0.0, abs=0.02)
        assert part.std() == pytest.approx(1.0, abs=0.02)
        assert np.mean(np.abs(part) < 1) == pytest.approx(0.6827, abs=0.01)
    assert abs(np.corrcoef(whole[:-1:2], whole[1::2])[0, 1]) < 0.02


# Whole runs


def spec(algorithm: str, replay: str) -> dict[str, Any]:
    return {
        "algorithm": {
            "name": algorithm, "env": "Pendulum-v1", "num_envs": 2, "hidden": [16, 16],
            "batch_size": 16, "replay": {"kind": replay, "capacity": 500, "fanout": 8},
            "learning_starts": 100,
        },
        "train": {"steps": 400, "evaluate_every": 0, "final_episodes": 1, "checkpoint_every": 200},
    }  # fmt: skip


def test_options_reach_their_arrays() -> None:
    changes = {
        "algorithm.temperature": 0.2,
        "algorithm.target_entropy": -0.5,
        "algorithm.temperature_learning_rate": 0.0,
    }
    arrays = pearl.compile(spec("sac", "uniform"), set=changes).session.arrays
    assert arrays["learner.alpha"][0] == pytest.approx(math.log(0.2))
    assert arrays["hyper.target_entropy"][0] == -0.5
    assert arrays["hyper.lr.alpha"][0] == 0.0
    assert pearl.compile(spec("sac", "uniform")).session.arrays["hyper.target_entropy"][0] == -1.0
    trainer = pearl.compile(spec("td3", "uniform"), set={"algorithm.policy_delay": 3})
    assert trainer.graph.task("learn").kernel.dim("policy_delay") == 3
    assert tuple(trainer.session.arrays["hyper.smoothing"]) == (0.2, 0.5)
