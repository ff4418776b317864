"""Environments that draw from the generators of their process repeat with the seed of the run."""

import random

import numpy as np
import pytest

from pearl_devices.buffers import allocate
from pearl_devices.kernels import kernel
from pearl_devices.primitives.envs import gym_envs, gym_processes
from pearl_devices.primitives.envs.global_generators import generators_from


def rows(source, key, bind):
    """What two environments observe in three steps."""
    args = {"source": source, "length": 2}
    k = kernel("env_step", program="tests.hidden_envs:Luck", args=args, envs=2, obs=3, act=0)
    arrays = allocate([k])
    arrays["rng.env_step"][0] = key
    step, found = bind(k, arrays), [arrays["env.obs"].copy()]
    for _ in range(3):
        step()
        found.append(arrays["step.next_obs"].copy())
    return np.array(found)


@pytest.mark.parametrize("source", ["numpy", "random"])
@pytest.mark.parametrize("bind", [gym_envs.bind_step, gym_processes.bind_step])
def test_global_generators_start_from_the_key(source, bind):
    one, same, other = rows(source, 1, bind), rows(source, 1, bind), rows(source, 2, bind)
    np.testing.assert_array_equal(one, same)
    assert (one[:, :, 1] != other[:, :, 1]).all()
    assert (one[:, 0, 1] != one[:, 1, 1]).all()  # two environments are not alike


def test_an_evaluation_does_not_disturb_what_draws_around_it():
    random.seed(5)
    np.random.seed(5)
    wanted = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    with generators_from(1):
        first = random.random(), np.random.random()
    with generators_from(1):
        assert (random.random(), np.random.random()) == first
    assert (random.random(), np.random.random()) == wanted
