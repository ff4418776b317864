"""Data that restores an environment outside the arrays, as JSON: the state of its generator at its
last reset, and the actions since.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LOG = 100_000
"""Most actions kept of an episode; a longer episode cannot be restored."""

GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""Numpy's bit generators, by the names in their states."""


def pack(array: Array) -> dict[str, Any]:
    """Return an array as JSON."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def unpack(found: dict[str, Any]) -> Array:
    """Return the array that `pack` wrote as JSON; it is writable."""
    flat = np.frombuffer(base64.b64decode(found["data"]), found["dtype"])
    return flat.reshape(found["shape"]).copy()


def generator_state(env: Any) -> dict[str, Any] | None:
    """Return the state of an environment's own generator; None if it has no numpy generator."""
    generator = getattr(getattr(env, "unwrapped", env), "np_random", None)
    if not isinstance(generator, np.random.Generator):
        return None
    found: dict[str, Any] = dict(generator.bit_generator.state)
    inner = found["state"]
    found["state"] = {k: pack(v) if isinstance(v, np.ndarray) else v for k, v in inner.items()}
    return {k: pack(v) if isinstance(v, np.ndarray) else v for k, v in found.items()}


def generator(state: dict[str, Any]) -> np.random.Generator:
    """Build a random generator from a stored state.

    Raises:
        ValueError: numpy has no bit generator of that name.
    """
    name = state.get("bit_generator")
    if name not in GENERATORS:
        raise ValueError(f"a random generator {name!r}; numpy has {', '.join(GENERATORS)}")

    def whole(value: Any) -> Any:
        return unpack(value) if isinstance(value, dict) and "data" in value else value

    bits = getattr(np.random, name)()
    inner = {k: whole(v) for k, v in state["state"].items()}
    bits.state = {k: whole(v) for k, v in state.items()} | {"state": inner}
    return np.random.Generator(bits)


def replay_actions(env: Any, origin: Any, actions: Sequence[Any]) -> Any:
    """Return an environment's observation after a reset from `origin` and these actions."""
    if origin and "seed" in origin:
        seen, _ = env.reset(seed=origin["seed"])
    else:
        if origin:
            env.unwrapped.np_random = generator(origin)
        seen, _ = env.reset()
    for action in actions:
        seen, *_ = env.step(action)
    return seen
