"""Data that restores an environment outside the arrays, as JSON: the state of its generator at its
last reset, and the actions since.

An environment that depends on more (a global generator, a generator of its own, a clock, hardware)
observes something else after these actions. It then begins a new episode.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices.primitives.envs.border import read_step, reset

Array = npt.NDArray[Any]

LOG = 100_000
"""Most actions kept of an episode; a longer episode cannot be restored."""

AT_RESUME = 1 << 14
"""Attempt from which the seeds of environments that begin new episodes at a resume are drawn."""

TOO_LONG = f"its episode is longer than the {LOG:,} actions that are kept to repeat it"

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


def describe_difference(kept: Array, found: Array) -> str:
    """Say what an environment observes that was not brought back, in its first component that
    differs."""
    at = int(np.argmax(kept != found))
    which = f" in component {at}" if kept.size > 1 else ""
    return (
        f"observes {found[at]:g} instead of {kept[at]:g}{which}: it depends on more than its "
        "np_random and its actions (a global generator, one of its own, a clock)"
    )


def describe_lost(name: str, first: int, envs: int, lost: Mapping[int, str]) -> list[str]:
    """Return a sentence about the environments that begin new episodes; none if all came back.

    first: number of the first of these `envs` environments.
    lost: number of an environment here → why it was not brought back.
    """
    if not lost:
        return []
    one = min(lost)
    count = "it begins a new episode"
    if len(lost) > 1:
        count = f"{len(lost)} of {envs} environments begin new episodes"
    return [
        f"environment {name!r}, number {first + one}, was not brought back: {lost[one]}; {count}"
    ]


def replay_actions(env: Any, origin: Any, actions: Sequence[Any]) -> Any:
    """Return an environment's observation after a reset from `origin` and these actions."""
    if origin and "seed" in origin:
        seen, _ = reset(env, seed=origin["seed"])
    else:
        if origin:
            env.unwrapped.np_random = generator(origin)
        seen, _ = reset(env)
    for action in actions:
        seen, *_ = read_step(env.step(action))
    return seen
