"""What the documents promise to authors of algorithms."""

import numpy as np
import pytest

from pearl.errors import SpecError
from pearl.spec.reading import load
from pearl_devices.kernels import kernel
from pearl_devices.primitives.math.nets import init_params
from pearl_devices.primitives.torch.off_policy import act_greedily


def test_a_network_without_inputs_is_one_constant():
    first = init_params((0, 1), 3)
    assert first.shape == (1,)
    assert np.isfinite(first).all()


def half_way(nets, obs, explore, noise):
    """The middle of the bounds, whatever is observed."""
    return (0.5 * (nets.act_low + nets.act_high)).expand(len(obs), -1)


def test_a_program_that_acts_gets_the_bounds():
    k = kernel(
        "inference.mine", {"q": (3, 1)}, program="tests.devices.test_own_parts:half_way",
        envs=2, obs=3, act=2,
    )  # fmt: skip
    low, high = np.float32([-2, 0]), np.float32([0, 6])
    found = act_greedily(k, np.zeros(4, np.float32), np.zeros((2, 3), np.float32), low, high)
    np.testing.assert_array_equal(found, [[-1, 3], [-1, 3]])


def test_factored_actions_are_not_called_continuous():
    with pytest.raises(SpecError) as refused:
        load({"algorithm": {"name": "dqn", "env": "tests.envs_factored:Two"}})
    assert "2 discrete components" in str(refused.value)
    assert "continuous" not in str(refused.value)
