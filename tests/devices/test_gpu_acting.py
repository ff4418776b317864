"""Inference in CUDA, on the stand-in for a GPU, against the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import Kernel, kernel
from pearl_devices.gpu import acting, nets
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.primitives.math.rng import key
from tests.devices import gpu_stand_in as stand_in

HIDDEN = (37, 24)


def kernels(envs: int, hidden: tuple[int, ...] = HIDDEN) -> dict[str, Kernel]:
    """One of each that acts."""

    def acts(kind: str, act: int, outputs: int, **more: Any) -> Kernel:
        network = {"q" if kind == "dqn" else "actor": (5, *hidden, outputs)}
        return kernel(f"inference.{kind}", envs=envs, obs=5, act=act, **network, **more)

    return {
        "dqn": acts("dqn", 0, 3), "duelling": acts("dqn", 0, 4, duelling=1),
        "ddpg": acts("ddpg", 3, 3), "sac": acts("sac", 3, 6), "ppo": acts("ppo", 0, 4, tanh=1),
        "ppo continuous": acts("ppo", 3, 3, tanh=1), "ppo of relu": acts("ppo", 0, 4, tanh=0),
    }  # fmt: skip


def begun(
    k: Kernel, explore: tuple[float, ...] = (0.1, 0.1, 0.0, 0.0)
) -> dict[str, stand_in.Array]:
    """Random observations and parameters, amid a run."""
    random, found = np.random.default_rng(2), stand_in.arrays(k)
    for name, array in found.items():
        if name.startswith("policy.") or name == "env.obs":
            array[:] = random.normal(size=array.shape) * (1.0 if name == "env.obs" else 0.4)
    found["rng.inference"][:] = key(4, "inference"), 11
    if "explore" in found:
        found["explore"][:] = explore
    if "act.low" in found:
        found["act.low"][:], found["act.high"][:] = [-2.0, -1.0, 0.5], [2.0, 3.0, 0.75]
    return found


@pytest.mark.sweep(4)
@pytest.mark.parametrize("order", stand_in.ORDERS)
@pytest.mark.parametrize("name", sorted(kernels(1)))
def test_actions_are_those_of_the_cpu(name: str, order: int) -> None:
    k = kernels(37)[name]
    given = begun(k)
    found, wanted = (
        stand_in.fire_cuda(k, given, driver=HostDriver(order)),
        stand_in.fire_native(k, given),
    )
    stand_in.assert_equal(found, wanted, "rng.inference")
    if not k.dim("act"):
        stand_in.assert_equal(found, wanted, "act.action")
        assert len(np.unique(found["act.action"])) > 1
    for array in ("act.action", "act.sample", "act.log_prob"):
        if array in found and found[array].dtype == np.float32:
            stand_in.assert_near(found[array], wanted[array], name=array)


@pytest.mark.parametrize("name", ["dqn", "ddpg", "sac"])
def test_exploration_goes_by_the_env_steps_done(name: str) -> None:
    """Random at the start, then less and less: 37 environments, from firing 11 on."""
    k = kernels(37)[name]
    for start, over in ((12 * 37, 0), (11 * 37, 0), (0, 24 * 37)):
        given = begun(k, (1.0, 0.0, float(over), float(start)))
        found, wanted = stand_in.fire_cuda(k, given, 2), stand_in.fire_native(k, given, 2)
        stand_in.assert_equal(found, wanted, "rng.inference")
        if name == "dqn":
            stand_in.assert_equal(found, wanted, "act.action")
        else:
            stand_in.assert_near(found["act.action"], wanted["act.action"])
    at_random = begun(k, (0.0, 0.0, 0.0, 1e9))
    stand_in.assert_equal(
        stand_in.fire_cuda(k, at_random), stand_in.fire_native(k, at_random), "act.action"
    )


@pytest.mark.parametrize(("envs", "hidden", "most", "as_cut"), [
    (nets.FEW + 21, (64, 64), 3, (32, True, False)),
    (nets.FEW + 21, (160, 160), 2, (32, False, False)),
    (9, (400, 400), 1, (8, False, False)),
    (19, (1300,), 2, (8, True, True)),
    (5, (16,) * 9, 1, (8, True, False)),
])  # fmt: skip
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
    driver = stand_in.NotingTwin(7)
    found, wanted = stand_in.fire_cuda(k, given, driver=driver), stand_in.fire_native(k, given)
    if as_cut[2]:  # each block has activations of its own
        scratch = driver.prepared[0].arguments[10].numpy()
        scratch = scratch.reshape(most, 2, max(k.layers()), -1)
        assert (np.abs(scratch[:, 1, : hidden[0]]).sum((1, 2)) > 0).all()
    for array in ("act.sample", "act.action", "act.log_prob"):
        stand_in.assert_near(found[array], wanted[array], name=array)


@pytest.mark.parametrize("hidden", [(37, 24), (2100,)])
def test_nothing_lies_beyond_the_arrays(hidden: tuple[int, ...], tmp_path: Path) -> None:
    k = kernels(11, hidden)["ppo continuous"]
    device, driver = stand_in.tensors(begun(k)), stand_in.NotingTwin()
    stand_in.bind_cuda(k, device, driver)
    short = [device[name] for name in ("env.obs", "policy.actor", "act.sample")]
    stand_in.assert_stays_inside(driver.prepared, tmp_path, *short)
