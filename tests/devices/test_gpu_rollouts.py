"""Rollouts in CUDA, on the stand-in for a GPU, against the CPU's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pearl_devices import Kernel, kernel
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.kernels import find_written
from pearl_devices.kernels.arrays import ANEW
from tests.devices import gpu_stand_in as stand_in

JUDGED = ("rollout.value", "rollout.advantage", "rollout.returns")


def filled(k: Kernel) -> dict[str, stand_in.Array]:
    """Its arrays with random numbers; episodes that end here and there, both ways or one."""
    random, found = np.random.default_rng(6), stand_in.arrays(k)
    for name, array in found.items():
        if array.dtype == np.float32:
            array[:] = random.normal(size=array.shape)
        elif name.endswith("terminated"):
            array[:] = random.random(array.shape) < 0.1
        elif name.endswith("truncated"):
            array[:] = random.random(array.shape) < 0.03
            array[random.random(array.shape) < 0.03] += ANEW
        elif name.endswith("action"):
            array[:] = random.integers(0, 5, array.shape)
    for name, value in (("hyper.discount", 0.98), ("hyper.gae_lambda", 0.9)):
        if name in found:
            found[name][0] = value
    if "policy.critic" in found:
        found["policy.critic"] *= 0.3
    return found


def inserting(act: int, envs: int = 37) -> Kernel:
    return kernel("rollout_insert", envs=envs, obs=5, act=act, horizon=3)


def judging(envs: int, horizon: int, hidden: tuple[int, ...] = (37, 24), tanh: int = 1) -> Kernel:
    critic = (5, *hidden, 1)
    return kernel("gae", envs=envs, obs=5, act=0, horizon=horizon, tanh=tanh, critic=critic)


def syncing(**sizes: int) -> Kernel:
    return kernel("param_sync", params=sum(sizes.values()), args={"network": "+".join(sizes)}, **(
        sizes if len(sizes) > 1 else {}
    ))  # fmt: skip


@pytest.mark.parametrize("order", stand_in.ORDERS)
@pytest.mark.parametrize("act", [0, 2])
def test_vector_steps_are_stored_one_after_another(act: int, order: int) -> None:
    """Four firings in a rollout of three: the last is stored over the first."""
    for envs in (37, 600):
        k = inserting(act, envs)
        given = filled(k)
        given["rollout.at"][0] = 2
        for firings in (1, 4):
            found = stand_in.fire_cuda(k, given, firings, driver=HostDriver(order))
            stand_in.assert_equal(found, stand_in.fire_native(k, given, firings))
            assert found["rollout.at"][0] == (2 + firings) % 3


@pytest.mark.parametrize("order", stand_in.ORDERS)
@pytest.mark.parametrize(
    "k", [judging(37, 70), judging(5, 3, tanh=0), judging(9, 1, (1100,)), judging(70, 32)]
)
def test_advantages_are_those_of_the_cpu(k: Kernel, order: int) -> None:
    given = filled(k)
    found, wanted = (
        stand_in.fire_cuda(k, given, driver=HostDriver(order)),
        stand_in.fire_native(k, given),
    )
    for name in JUDGED:
        stand_in.assert_near(found[name], wanted[name], name=name)
    stand_in.assert_equal(found, given, *(n for n in given if n not in JUDGED))


def test_only_successors_that_are_asked_for_count() -> None:
    """Elsewhere their observations may be anything."""
    k = judging(37, 70)
    given = filled(k)
    wanted = stand_in.fire_cuda(k, given)
    asked = (given["rollout.truncated"] > 0) & (given["rollout.terminated"] == 0)
    asked[-1] = given["rollout.terminated"][-1] == 0
    assert 0 < asked.sum() < asked.size / 2
    given["rollout.next_obs"][~asked] = np.nan
    found = stand_in.fire_cuda(k, given)
    stand_in.assert_equal(found, wanted, *JUDGED)


@pytest.mark.parametrize("sizes", [{"q": 1000}, {"actor": 70_000, "critic": 300}])
def test_parameters_are_copied_to_the_side_that_acts(sizes: dict[str, int]) -> None:
    k = syncing(**sizes)
    given = filled(k)
    found = stand_in.fire_cuda(k, given, driver=HostDriver(1))
    stand_in.assert_equal(found, stand_in.fire_native(k, given))
    for name in sizes:
        assert not np.array_equal(given[f"policy.{name}"], found[f"policy.{name}"])


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("k", "short"), [
    (inserting(2), ["act.sample", "rollout.truncated", "rollout.obs"]),
    (judging(37, 70), ["policy.critic", "rollout.next_obs", "rollout.returns"]),
    (syncing(actor=7000, critic=300), ["policy.actor", "learner.critic"]),
])  # fmt: skip
def test_nothing_lies_beyond_the_arrays(k: Kernel, short: list[str], tmp_path: Path) -> None:
    given = filled(k)
    if "rollout.terminated" in given:
        given["rollout.terminated"][-1] = 0
    if k.kind == "rollout_insert":
        given["rollout.at"][0] = 2
    device, driver = stand_in.tensors(given), stand_in.NotingTwin()
    stand_in.bind_cuda(k, device, driver)
    assert len(driver.prepared) == find_written(k)["cuda"].launches(k)
    stand_in.assert_stays_inside(driver.prepared, tmp_path, *(device[name] for name in short))
