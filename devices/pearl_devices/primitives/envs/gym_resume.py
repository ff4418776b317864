"""What an environment outside the arrays needs to come back as it was: the state of its generator
at its last reset, and the actions since. All of it is JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LOG = 100_000
"""Actions that are kept of one episode; one that is longer cannot be brought back."""

GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""Numpy's bit generators, by the names that their states bear."""


def packed(array: Array) -> dict[str, Any]:
    """An array as JSON."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def unpacked(found: dict[str, Any]) -> Array:
    """What `packed` made JSON of; it may be written to."""
    flat = np.frombuffer(base64.b64decode(found["data"]), found["dtype"])
    return flat.reshape(found["shape"]).copy()


def generator_state(env: Any) -> dict[str, Any] | None:
    """The state of an environment's own generator, None where it has none that is numpy's."""
    generator = getattr(getattr(env, "unwrapped", env), "np_random", None)
    if not isinstance(generator, np.random.Generator):
        return None
    found: dict[str, Any] = dict(generator.bit_generator.state)
    inner = found["state"]
    found["state"] = {k: packed(v) if isinstance(v, np.ndarray) else v for k, v in inner.items()}
    return {k: packed(v) if isinstance(v, np.ndarray) else v for k, v in found.items()}


def generator(state: dict[str, Any]) -> np.random.Generator:
    """Build a random generator in a state that was written.

    Raises:
        ValueError: numpy has no bit generator of that name.
    """
    name = state.get("bit_generator")
    if name not in GENERATORS:
        raise ValueError(f"a random generator {name!r}; numpy has {', '.join(GENERATORS)}")

    def whole(value: Any) -> Any:
        return unpacked(value) if isinstance(value, dict) and "data" in value else value

    bits = getattr(np.random, name)()
    inner = {k: whole(v) for k, v in state["state"].items()}
    bits.state = {k: whole(v) for k, v in state.items()} | {"state": inner}
    return np.random.Generator(bits)


def replayed(env: Any, origin: Any, actions: Sequence[Any]) -> Any:
    """The observation of an environment after a reset from `origin` and these actions."""
    if origin and "seed" in origin:
        seen, _ = env.reset(seed=origin["seed"])
    else:
        if origin:
            env.unwrapped.np_random = generator(origin)
        seen, _ = env.reset()
    for action in actions:
        seen, *_ = env.step(action)
    return seen
