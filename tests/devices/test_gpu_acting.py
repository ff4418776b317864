"""Inference in CUDA, on the stand-in for a GPU, against the CPU's and a float64 reference."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import Kernel, kernel
from pearl_devices.gpu import acting, nets
from pearl_devices.gpu.driver import HostTwin
from pearl_devices.primitives import LOG_STD
from pearl_devices.primitives.math.rng import key, normal, normals, stream, uniform
from tests.devices.gpu_stand_in import (
    ORDERS,
    Array,
    NotingTwin,
    arrays,
    assert_equal,
    assert_near,
    bind_cuda,
    fire_cuda,
    fire_native,
    sanitized,
    tensors,
)

HIDDEN = (37, 24)


def kernels(envs: int, hidden: tuple[int, ...] = HIDDEN) -> dict[str, Kernel]:
    """One of each that acts."""

    def acts(kind: str, act: int, outputs: int, **more: Any) -> Kernel:
        network = {"q" if kind == "dqn" else "actor": (5, *hidden, outputs)}
        return kernel(f"inference.{kind}", envs=envs, obs=5, act=act, **network, **more)

    return {
        "dqn": acts("dqn", 0, 3),
        "duelling": acts("dqn", 0, 4, duelling=1),
        "ddpg": acts("ddpg", 3, 3),
        "sac": acts("sac", 3, 6),
        "ppo": acts("ppo", 0, 4, tanh=1),
        "ppo continuous": acts("ppo", 3, 3, tanh=1),
        "ppo of relu": acts("ppo", 0, 4, tanh=0),
    }


def begun(k: Kernel, explore: tuple[float, ...] = (0.1, 0.1, 0.0, 0.0)) -> dict[str, Array]:
    """Random observations and parameters, amid a run."""
    random, found = np.random.default_rng(2), arrays(k)
    for name, array in found.items():
        if name.startswith("policy.") or name == "env.obs":
            array[:] = random.normal(size=array.shape) * (1.0 if name == "env.obs" else 0.4)
    found["rng.inference"][:] = key(4, "inference"), 11
    if "explore" in found:
        found["explore"][:] = explore
    if "act.low" in found:
        found["act.low"][:], found["act.high"][:] = [-2.0, -1.0, 0.5], [2.0, 3.0, 0.75]
    return found


def outputs(k: Kernel, given: dict[str, Array]) -> Array:
    """The network's, in float64."""
    (name,) = k.networks
    params, x, at = given[f"policy.{name}"].astype(np.float64), given["env.obs"], 0
    for layer, (i, o) in enumerate(pairwise(k.layers())):
        x = x @ params[at : at + i * o].reshape(i, o) + params[at + i * o : at + i * o + o]
        at += i * o + o
        if layer < len(k.layers()) - 2:
            x = np.tanh(x) if k.dims.get("tanh") else np.maximum(x, 0.0)
    return np.asarray(x)


def reference(k: Kernel, given: dict[str, Array], taken: Array) -> dict[str, Array]:
    """What a firing should write, in float64. taken: the discrete actions that were drawn."""
    z, n, act = outputs(k, given), k.dim("envs"), k.dim("act")
    base = np.uint64(stream(given["rng.inference"][0], given["rng.inference"][1]))
    pairs = np.zeros(n * act, np.float32)
    if act == 0:
        log_prob = z - np.log(np.exp(z).sum(1, keepdims=True))
        return {"act.log_prob": log_prob[np.arange(n), taken]}
    low, high = given["act.low"].astype(float), given["act.high"].astype(float)
    middle, half = (low + high) / 2, (high - low) / 2
    normals(base, 0, pairs)
    noise = pairs.reshape(n, act)
    if k.kind == "inference.ddpg":
        singles = np.array([normal(base, i) for i in range(n * act)]).reshape(n, act)
        wanted = middle + half * np.tanh(z) + given["explore"][0] * half * singles
        return {"act.action": np.clip(wanted, low, high)}
    if k.kind == "inference.sac":
        u = z[:, :act] + np.exp(np.clip(z[:, act:], *LOG_STD)) * noise
        return {"act.action": middle + half * np.tanh(u)}
    log_std = given["policy.actor"][-act:].astype(float)
    sample = z + np.exp(log_std) * noise
    log_prob = -(noise.astype(float) ** 2) / 2 - log_std - np.log(2 * np.pi) / 2
    return {
        "act.sample": sample,
        "act.action": np.clip(middle + half * sample, low, high),
        "act.log_prob": log_prob.sum(1),
    }


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", sorted(kernels(1)))
def test_actions_are_those_of_the_cpu_and_of_float64(name: str, order: int) -> None:
    k = kernels(37)[name]
    given = begun(k)
    found, wanted = fire_cuda(k, given, driver=HostTwin(order)), fire_native(k, given)
    assert_equal(found, wanted, "rng.inference")
    if not k.dim("act"):
        assert_equal(found, wanted, "act.action")
        assert len(np.unique(found["act.action"])) > 1
    for array in ("act.action", "act.sample", "act.log_prob"):
        if array in found and found[array].dtype == np.float32:
            assert_near(found[array], wanted[array], name=array)
    if "dqn" in k.kind:
        return
    for array, exact in reference(k, given, found["act.action"]).items():
        assert_near(found[array], exact, name=array)


def test_greedy_actions_are_those_of_float64() -> None:
    for name in ("dqn", "duelling"):
        k = kernels(37)[name]
        given = begun(k, (0.0, 0.0, 0.0, 0.0))
        values = outputs(k, given)[:, k.dims.get("duelling", 0) :]
        found = fire_cuda(k, given)["act.action"]
        assert np.array_equal(found, values.argmax(1))
        assert len(np.unique(found)) > 1


@pytest.mark.parametrize("name", ["dqn", "ddpg", "sac"])
def test_exploration_goes_by_the_env_steps_done(name: str) -> None:
    """Random at the start, then less and less: 37 environments, from firing 11 on."""
    k = kernels(37)[name]
    for start, over in ((12 * 37, 0), (11 * 37, 0), (0, 24 * 37)):
        given = begun(k, (1.0, 0.0, float(over), float(start)))
        found, wanted = fire_cuda(k, given, 2), fire_native(k, given, 2)
        assert_equal(found, wanted, "rng.inference")
        if name == "dqn":
            assert_equal(found, wanted, "act.action")
        else:
            assert_near(found["act.action"], wanted["act.action"])
    at_random = begun(k, (0.0, 0.0, 0.0, 1e9))
    assert_equal(fire_cuda(k, at_random), fire_native(k, at_random), "act.action")


@pytest.mark.parametrize(
    ("envs", "hidden", "most", "as_cut"),
    [
        (nets.FEW + 21, (64, 64), 3, (32, True, False)),
        (nets.FEW + 21, (160, 160), 2, (32, False, False)),
        (9, (400, 400), 1, (8, False, False)),
        (19, (2100,), 2, (8, True, True)),
        (5, (16,) * 9, 1, (8, True, False)),
    ],
)
def test_networks_of_any_width_and_any_number_of_environments(
    envs: int,
    hidden: tuple[int, ...],
    most: int,
    as_cut: tuple[int, bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiles large and small, several a block; weights held or not; activations in shared memory or
    not."""
    monkeypatch.setattr(nets, "BLOCKS", most)
    k = kernels(envs, hidden)["ppo continuous"]
    sizes = acting.program(k, acting.GAUSSIAN)[1]
    assert (sizes.tile, sizes.held, sizes.wide) == as_cut
    given = begun(k)
    given["policy.actor"][: -k.dim("act")] *= 0.3
    driver = NotingTwin(7)
    found, exact = fire_cuda(k, given, driver=driver), reference(k, given, np.zeros(0))
    if as_cut[2]:  # each block has activations of its own
        scratch = driver.prepared[0].arguments[10].numpy()
        scratch = scratch.reshape(most, 2, max(k.layers()), -1)
        assert (np.abs(scratch[:, 1, : hidden[0]]).sum((1, 2)) > 0).all()
    for array in ("act.sample", "act.action", "act.log_prob"):
        assert_near(found[array], exact[array], name=array)


@pytest.mark.parametrize("hidden", [(37, 24), (2100,)])
def test_nothing_lies_beyond_the_arrays(hidden: tuple[int, ...], tmp_path: Path) -> None:
    k = kernels(11, hidden)["ppo continuous"]
    device, driver = tensors(begun(k)), NotingTwin()
    bind_cuda(k, device, driver)
    assert sanitized(driver.prepared, tmp_path) == ""
    for name in ("env.obs", "policy.actor", "act.sample"):
        report = sanitized(driver.prepared, tmp_path, short=device[name])
        assert "heap-buffer-overflow" in report, name


def test_the_reference_draws_as_the_generator_says() -> None:
    base = np.uint64(stream(np.uint64(3), np.uint64(4)))
    pair = np.zeros(2, np.float32)
    normals(base, 0, pair)
    assert abs(normal(base, 0) - pair[0]) < 1e-6
    assert 0.0 <= uniform(base, 1) < 1.0
