"""How gymnasium's spaces become arrays, and what lies between observations and networks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from pearl_devices import kernel
from pearl_devices.kernels.interface import STATISTICS
from pearl_devices.primitives.envs import spaces
from pearl_devices.primitives.envs.interface import Interface


def image(*shape: int, low: int = 0, high: int = 255, kind: Any = np.uint8) -> Box:
    return Box(low, high, shape, kind)


@pytest.mark.parametrize(("space", "found"), [
    (image(2, 3), ((0, 6),)), (image(2, 3, 1), ((0, 6),)), (image(6), ()),
    (image(1, 1, 2, 3), ()), (image(2, 3, low=1), ()), (image(2, 3, high=254), ()),
    (image(2, 3, kind=np.int16), ()), (Discrete(3), ()),
    (
        Dict(a=image(2), b=image(2, 3), c=Tuple((Discrete(3), image(2, 2), image(1, 1)))),
        ((2, 8), (11, 15), (15, 16)),
    ),
])  # fmt: skip
def test_pixels_are_the_components_of_images(space: Any, found: Any) -> None:
    assert spaces.pixels(space) == found
    assert spaces.is_image(space) == (isinstance(space, Box) and bool(found))


def test_pixels_are_scaled_to_1_and_nothing_else() -> None:
    scaled = spaces.scale(5, ((1, 2), (3, 5)))
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, np.array([1, 1 / 255, 1, 1 / 255, 1 / 255], np.float32))


SQUARE = MultiDiscrete([[2, 3], [4, 5]], start=[[0, 0], [0, 7]])


@pytest.mark.parametrize(("space", "choices", "starts", "given", "taken"), [
    (Discrete(3), (), (), [0, 2], [0, 2]),
    (Discrete(3, start=-1), (), (-1,), [0, 2], [-1, 1]),
    (MultiBinary(2), (2, 2), (), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
    (MultiBinary((1, 2)), (2, 2), (), [[0, 1]], [[[0, 1]]]),
    (MultiDiscrete([2, 3]), (2, 3), (), [[1, 2]], [[1, 2]]),
    (SQUARE, (2, 3, 4, 5), (0, 0, 0, 7), [[1, 2, 3, 4]], [[[1, 2], [3, 11]]]),
    (Box(-1, 1, (2, 1), np.float64), (), (), [[0.5, -1]], [[[0.5], [-1]]]),
])  # fmt: skip
def test_actions_are_counted_from_0_and_given_in_the_spaces_shape_and_type(
    space: Any, choices: Any, starts: Any, given: Any, taken: Any
) -> None:
    assert spaces.choices(space) == choices
    assert spaces.starts(space) == starts
    action = np.array(given, np.float32 if isinstance(space, Box) else np.int64)
    found = spaces.to_env_actions(space, action)
    assert found.tolist() == taken
    assert found.dtype == (np.int64 if isinstance(space, Discrete) else space.dtype)
    assert np.shares_memory(found, action) == (isinstance(space, Discrete) and not space.start)


def test_a_vector_environment_of_one_is_that_environment() -> None:
    alone = spaces.Lone(gymnasium.make_vec("CartPole-v1", 1, vectorization_mode="sync"))
    other = gymnasium.make("CartPole-v1")
    assert (alone.observation_space, alone.action_space) == (
        other.observation_space,
        other.action_space,
    )
    assert alone.spec is not None
    assert alone.spec.id == "CartPole-v1"
    np.testing.assert_array_equal(alone.reset(seed=5)[0], other.reset(seed=5)[0])
    for _ in range(30):
        one, two = alone.step(1), other.step(1)
        np.testing.assert_array_equal(one[0], two[0])
        assert one[1:4] == two[1:4]
        assert [type(x) for x in one[1:4]] == [float, bool, bool]
        if two[2]:
            break
    assert two[2]
    alone.close()


@pytest.mark.parametrize("clip", [0.0, 0.4])
def test_observations_are_scaled_then_normalised_then_clipped(clip: float) -> None:
    acting = kernel("inference.dqn", envs=2, obs=3, act=0, q=(3, 2))
    rows = np.array([[255.0, 51.0, -2.0], [0.0, 102.0, 4.0]], np.float32)
    assert Interface(acting, {}).observe(rows) is rows
    shared = rows * np.array([1 / 255, 1 / 255, 1], np.float32)
    np.testing.assert_allclose(Interface(acting, {}, pixels=((0, 2),)).observe(rows), shared)
    held = {STATISTICS: np.array([[0.5, 0.1, 1.0], [4.0, 0.25, 9.0]])}
    between = Interface(acting, held, pixels=((0, 2),), clip=clip, epsilon=0.5)
    wanted = (shared - held[STATISTICS][0]) / np.sqrt(held[STATISTICS][1] + 0.5)
    if clip:
        assert (np.abs(wanted) > clip).any()
        wanted = wanted.clip(-clip, clip)
    found = between.observe(rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    actions = np.array([1, 0])
    assert between.take(actions) is actions
