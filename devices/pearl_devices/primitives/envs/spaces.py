"""How spaces of gymnasium's environments map to arrays: the parts of observations, actions counted
from 0, images; and one environment made of a vector environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim

from pearl_devices.primitives.envs.border import (
    ObservationPart,
    read_batch_step,
    read_reset,
    size_of,
)

Array = npt.NDArray[Any]
Ranges = tuple[tuple[int, int], ...]


class UnknownSpaceError(ValueError):
    """Observations of a space are not read; the text names the entry and the way out."""


def parts(space: Any) -> tuple[ObservationPart, ...]:
    """Return the parts of observations of a space, in the order in which gymnasium flattens them.

    Raises:
        UnknownSpaceError: it has no fixed number of components, or is of a class of its own.
    """
    found = _parts(space, ())
    if not size_of(found):
        raise UnknownSpaceError(f"observations are {kind_of(space)}, which is empty")
    return found


KNOWN = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"


def _parts(space: Any, path: tuple[str | int, ...]) -> tuple[ObservationPart, ...]:
    if isinstance(space, Dict | Tuple):
        inner = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return tuple(part for key, each in inner for part in _parts(each, (*path, key)))
    if isinstance(space, Box | MultiBinary):
        return (ObservationPart(path, tuple(int(extent) for extent in space.shape)),)
    if isinstance(space, Discrete):
        return (ObservationPart(path, (), (int(space.n),), (int(space.start),)),)
    if isinstance(space, MultiDiscrete):
        counts, first = (tuple(a.reshape(-1).tolist()) for a in (space.nvec, space.start))
        return (
            ObservationPart(path, tuple(int(extent) for extent in space.nvec.shape), counts, first),
        )
    entry = "".join(f"[{key!r}]" for key in path)
    way = "gymnasium.wrappers.TransformObservation, which makes a Box of it"
    if len(path) == 1 and isinstance(path[0], str):
        way = f"gymnasium.wrappers.FilterObservation, which leaves it out, or {way}"
    raise UnknownSpaceError(
        f"observations{entry} are {kind_of(space)}, which cannot be read as numbers; "
        f"needed are {KNOWN}. Give the environment a wrapper "
        f"(`module:callable`): {way}"
    )


def kind_of(space: Any) -> str:
    """The class of a space, in words."""
    return type(space).__name__


def is_image(space: Any) -> bool:
    """Whether observations are images: uint8 of 0 … 255 with two or three axes."""
    if not (isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)):
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def units(space: Any, pixels: Ranges) -> int:
    """Return how many uint8 of an observation are 1.0 to a network, 255 of scaled pixels or 1; 0 if
    parts are no Box of uint8, or only some are scaled."""
    if not _is_bytes(space):
        return 0
    scaled = sum(end - first for first, end in pixels)
    return {flatdim(space): 255, 0: 1}.get(scaled, 0)


def _is_bytes(space: Any) -> bool:
    if isinstance(space, Dict | Tuple):
        inner = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return all(_is_bytes(each) for each in inner)
    return isinstance(space, Box) and space.dtype == np.uint8


def pixels(space: Any) -> Ranges:
    """Return (first, end) of the components of a flat observation that are pixels of images."""
    if isinstance(space, Dict | Tuple):
        inner = space.spaces.values() if isinstance(space, Dict) else space.spaces
        found, at = [], 0
        for each in inner:
            found += [(at + first, at + end) for first, end in pixels(each)]
            at += flatdim(each)
        return tuple(found)
    return ((0, flatdim(space)),) if is_image(space) else ()


def scale(size: int, ranges: Ranges) -> npt.NDArray[np.float32]:
    """Return the factor of each component of an observation that brings pixels to 0 … 1."""
    factors = np.ones(size, np.float32)
    for first, end in ranges:
        factors[first:end] = 1 / 255
    return factors


def choices(space: Any) -> tuple[int, ...]:
    """Return the number of choices of each component of a factored action; () for other actions."""
    if isinstance(space, MultiBinary):
        return (2,) * flatdim(space)
    return tuple(space.nvec.reshape(-1).tolist()) if isinstance(space, MultiDiscrete) else ()


def starts(space: Any) -> tuple[int, ...]:
    """Return the first number of discrete actions, or of each component; () if all are 0."""
    first = np.ravel(getattr(space, "start", ()))
    return tuple(int(n) for n in first) if first.any() else ()


def to_env_actions(space: Any, action: Array) -> Array:
    """Return actions (N) or (N, A) as environments take them: counted from the space's first
    number, in the space's shape and type."""
    if isinstance(space, Discrete):
        return action + space.start if space.start else action
    if isinstance(space, MultiDiscrete):
        action = action + space.start.reshape(-1)
    return action.reshape(len(action), *space.shape).astype(space.dtype, copy=True)


class Lone(gymnasium.Env[Any, Any]):
    """The only environment of a vector environment of one."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.spec = env.spec

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seen, infos = read_reset(self.env.reset(seed=seed, options=options))
        return self._one(seen), dict(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do one step; `reset` must follow the last step of an episode."""
        batch = np.asarray(action, self.action_space.dtype)[np.newaxis]
        found = read_batch_step(self.env.step(batch), 1)
        seen, reward, terminated, truncated, infos = found
        return self._one(seen), float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos

    def _one(self, seen: Any) -> Any:
        return next(iter(gymnasium.vector.utils.iterate(self.env.observation_space, seen)))

    def close(self) -> None:
        self.env.close()
