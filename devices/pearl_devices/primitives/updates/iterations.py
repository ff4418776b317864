"""Whole iterations in one call: acting, storing, learning and copying the parameters, in program
order, where all of them are native.

The `iterate` of an algorithm calls the very functions that the tasks run one by one, on the same
arrays, so the results agree bit for bit. Until learning starts an iteration only acts and stores,
as a lane does then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import parts
from pearl_devices.primitives.envs.native_envs import bind_step, marked
from pearl_devices.primitives.math.nets import bind_sync
from pearl_devices.primitives.native import bound, fast, parts_only
from pearl_devices.primitives.replay.ring import bind_insert
from pearl_devices.primitives.updates.stop_word import under_way


class Repetition(NamedTuple):
    """more: iterations beyond the first that one call runs, and beyond that in hand once it has
    returned. stop: `stop_word`. rng, explore: those of inference. envs: environments.
    vector_steps: of one iteration. env: which environment it is (`marked`)."""

    more: Any
    stop: Any
    rng: Any
    explore: Any
    envs: int
    vector_steps: int
    env: tuple[int, ...]


@fast
def learns(loop):
    """Whether the iteration about to start learns: explore[3] env steps only act."""
    return np.float64(loop.rng[1]) * loop.envs >= loop.explore[3]


@fast
def to_act(loop):
    """Vector steps before the gradient steps; none in an iteration that has begun these."""
    return 0 if under_way(loop.stop) else loop.vector_steps


@fast
def goes_on(loop):
    """After an iteration: whether the call runs another."""
    if loop.more[0] == 0 or loop.stop[0] != 0:
        return False
    loop.more[0] -= 1
    return True


def bind(iterate: Any, kernel: Kernel, buffers: Buffers, inference: Any, learn: Any) -> Call:
    """iteration.*: `loop.more` + 1 iterations of `iterate`.

    inference, learn: the functions that bind these two parts; their arguments, and those of the
    other parts, are what `iterate` passes on.
    """
    binders = {
        "inference": inference,
        "env_step": bind_step,
        "replay_insert": bind_insert,
        "learn": learn,
        "param_sync": bind_sync,
    }
    with parts_only():
        calls: list[Any] = [
            binders[part.kind.partition(".")[0]](part, buffers) for part, _ in parts(kernel)
        ]
    loop = Repetition(
        buffers["loop.more"],
        buffers["loop.stop"],
        buffers["rng.inference"],
        buffers["explore"],
        kernel.dim("envs"),
        kernel.dim("vector_steps"),
        marked(str(kernel.program)),
    )
    return bound(iterate, loop, *(call.args for call in calls))
