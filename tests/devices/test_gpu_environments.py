"""Environments in CUDA, on the stand-in for a GPU, against the native ones of the CPU.

Both take sines from the C library here, so that even an acrobot goes the same way for 1,000 steps.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import Kernel, UnsupportedError, backend, kernel
from pearl_devices.gpu import environments
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.nvrtc import compile_program
from pearl_devices.kernels.arrays import EPISODES
from pearl_devices.primitives import NATIVE_ENVS
from pearl_devices.primitives.envs import normalise
from pearl_devices.primitives.math.rng import key
from tests.devices import gpu_stand_in as stand_in

COUNTED = (
    "env.elapsed", "episode.lengths", "episode.count", "rng.env_step", "step.action",
    "step.terminated", "step.truncated",
)  # fmt: skip
NEAR = 1e-5
"""Largest difference of a number of the CPU's from the GPU's, relative to 1 or the number."""


def env_kernel(program: str, envs: int, **more: int) -> Kernel:
    sizes = NATIVE_ENVS[program]
    return kernel("env_step", program=program, envs=envs, obs=sizes.obs, act=sizes.act, **more)


def begun(k: Kernel) -> dict[str, stand_in.Array]:
    """Its arrays before the first firing."""
    found = stand_in.arrays(k, {"rng.env_step": [key(3, "env_step"), 0]})
    normalise.initialise(found, clip=10.0, epsilon=1e-8, discount=0.99)
    return found


def actions(k: Kernel, obs: stand_in.Array, random: np.random.Generator) -> stand_in.Array:
    """Random ones, or those that push with the motion, which brings cars and acrobots to their
    goals."""
    sizes, envs = NATIVE_ENVS[str(k.program)], k.dim("envs")
    along = np.sign(obs[:, -1]) * (random.random(envs) < 0.8) * (sizes.obs in (2, 6))
    if sizes.actions:
        chosen = random.integers(0, sizes.actions, envs)
        return np.where(along == 0, chosen, 1 + along).astype(np.int64)
    drawn = random.uniform(-2.5, 2.5, envs)
    return np.where(along == 0, drawn, along * np.abs(drawn)).astype(np.float32)[:, None]


def assert_same(
    found: dict[str, stand_in.Array], wanted: dict[str, stand_in.Array], at: int
) -> None:
    for name, array in wanted.items():
        if name in COUNTED:
            assert np.array_equal(found[name], array), (name, at)
        elif name != "act.action":
            off = np.abs(found[name] - array.astype(np.float64))
            assert (off <= NEAR * np.maximum(1.0, np.abs(array))).all(), (name, at)


def run_both(
    k: Kernel, steps: int, order: int = 0, elapsed: int = 0, bits: bool = False
) -> dict[str, stand_in.Array]:
    """Both sides side by side, equal after every step; the arrays of the CPU. elapsed: steps of the
    first episodes that count as done. bits: equal to the last one."""
    wanted, random = begun(k), np.random.default_rng(5)
    device = stand_in.tensors(wanted)
    found = {name: tensor.numpy() for name, tensor in device.items()}
    native = backend("cpu").bind(k, "native", wanted)
    cuda = stand_in.bind_cuda(k, device, HostDriver(order))
    assert_same(found, wanted, -1)
    wanted["env.elapsed"][:] = found["env.elapsed"][:] = elapsed
    for at in range(steps):
        wanted["act.action"][:] = found["act.action"][:] = actions(k, wanted["env.obs"], random)
        native()
        cuda()
        assert_same(found, wanted, at)
        assert not bits or np.array_equal(found["env.state"], wanted["env.state"]), at
    return wanted


@pytest.mark.parametrize("program", sorted(NATIVE_ENVS))
def test_a_thousand_steps_are_those_of_the_cpu(program: str) -> None:
    # The cars have gymnasium's bits.
    found = run_both(env_kernel(program, 37), 1000, bits=program.startswith("MountainCar"))
    assert found["episode.count"][0] >= 2 * 37
    assert found["rng.env_step"][1] == 1000
    if program != "Pendulum-v1":  # whose episodes last their 200 steps
        assert len(np.unique(found["episode.lengths"])) > 10


@pytest.mark.parametrize("order", stand_in.ORDERS)
def test_one_block_and_several_note_episodes_in_the_order_of_environments(order: int) -> None:
    """Pendulum's episodes all end in the same steps, so that one firing fills the whole ring
    more than once; CartPole's end here and there."""
    for envs in (37, 600):
        found = run_both(env_kernel("CartPole-v1", envs), 40, order)
        assert found["episode.count"][0] > envs
    found = run_both(env_kernel("Pendulum-v1", EPISODES + 300), 2, order, elapsed=199)
    assert found["episode.count"][0] == EPISODES + 300
    assert len(np.unique(found["episode.returns"])) == EPISODES


@pytest.mark.sweep(2)
@pytest.mark.parametrize("envs", [1, 256, 65_536 + 300])
def test_any_number_of_environments(envs: int) -> None:
    """One, a whole block, and more blocks than a block has threads, for a step alone."""
    k = env_kernel("CartPole-v1", envs, normalise_obs=1, normalise_reward=1)
    run_both(k, 2 if envs <= 256 else 1, order=1)


@pytest.mark.parametrize(("program", "envs"), [("CartPole-v1", 300), ("Pendulum-v1", 5)])
@pytest.mark.parametrize("what", [("obs",), ("reward",), ("obs", "reward")])
def test_observations_and_rewards_are_normalised_as_on_the_cpu(
    program: str, envs: int, what: tuple[str, ...]
) -> None:
    k = env_kernel(program, envs, **{f"normalise_{name}": 1 for name in what})
    found = run_both(k, 60 if envs > 5 else 230, order=7)
    for name in what:
        assert found[f"normalise.{name}.count"][0] > 60 * envs
        assert found[f"normalise.{name}"][1].max() != 1.0


def test_a_run_goes_on_from_its_arrays() -> None:
    """Bound anew amid a run nothing begins anew."""
    k = env_kernel("CartPole-v1", 37, normalise_obs=1)
    given = begun(k)
    whole, halves = stand_in.copied(given), stand_in.tensors(given)
    native = backend("cpu").bind(k, "native", whole)
    for at in range(40):
        if at % 20 == 0:
            cuda = stand_in.bind_cuda(k, halves, HostDriver())
        native()
        cuda()
    assert_same({name: tensor.numpy() for name, tensor in halves.items()}, whole, 40)


def test_no_product_and_sum_are_fused() -> None:
    """A fused one is rounded otherwise than the CPU's."""
    exact = environments.program(env_kernel("Pendulum-v1", 8))
    fused = replace(exact, exact=False)
    assert compile_program(exact, "sm_80").code != compile_program(fused, "sm_80").code


def test_nothing_lies_beyond_the_arrays(tmp_path: Path) -> None:
    k = env_kernel("CartPole-v1", 300, normalise_obs=1, normalise_reward=1)
    device, driver = stand_in.tensors(begun(k)), stand_in.NotingTwin()
    stand_in.bind_cuda(k, device, driver)()
    assert {launch.kernel for launch in driver.prepared} == {"start", "first", "move", "finish"}
    short = [device[name] for name in ("env.return", "step.next_obs", "step.truncated")]
    stand_in.assert_stays_inside(driver.prepared, tmp_path, *short)


@pytest.mark.parametrize(
    ("program", "sizes"),
    [("CartPole-v1", {"obs": 5}), ("Ant-v5", {"obs": 4}), ("CartPole-v1", {"obs": 4, "stack": 2})],
)
def test_another_environment_is_refused_by_name(program: str, sizes: dict[str, Any]) -> None:
    k = kernel("env_step", program=program, envs=2, act=0, **sizes)
    with pytest.raises(UnsupportedError, match=f"env_step: '{program}'.*'cuda'"):
        environments.bind_step(k, {}, HostDriver())
