"""Whole iterations in one call: acting, storing, learning and copying the parameters, in program
order, if all of them are native.

The compiled function of an algorithm (`compile_iterations`) calls the same functions on the same
arrays as its separate tasks, so the results agree bit for bit. Until learning starts, an iteration
only acts and stores, as in a lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import parts
from pearl_devices.primitives.envs.native_envs import bind_step, environment_mark
from pearl_devices.primitives.envs.native_envs import step as step_env
from pearl_devices.primitives.math.nets import bind_sync, copy
from pearl_devices.primitives.native import bind_call, fast, parts_only, rename
from pearl_devices.primitives.replay.ring import bind_insert, insert
from pearl_devices.primitives.updates.stop_word import is_under_way


class Repetition(NamedTuple):
    """Arguments of a call of whole iterations besides those of its parts.

    more: iterations beyond the first that the call must still run, (1,), int64. stop: loop.stop
    (`stop_word`). rng, explore: of inference. envs: number of environments. vector_steps: of one
    iteration. env: mark of the environment (`environment_mark`).
    """

    more: Any
    stop: Any
    rng: Any
    explore: Any
    envs: int
    vector_steps: int
    env: tuple[int, ...]


@fast
def is_learning(loop):
    """Return whether the next iteration learns; the first explore[3] env steps only act."""
    return np.float64(loop.rng[1]) * loop.envs >= loop.explore[3]


@fast
def steps_to_act(loop):
    """Return the vector steps before the gradient steps; 0 if the gradient steps have begun."""
    return 0 if is_under_way(loop.stop) else loop.vector_steps


@fast
def goes_on(loop):
    """Return, after an iteration, whether the call runs another one."""
    if loop.more[0] == 0 or loop.stop[0] != 0:
        return False
    loop.more[0] -= 1
    return True


def compile_iterations(name: str, infer: Any, learn: Any) -> Any:
    """Compile `loop.more` + 1 iterations of an algorithm into one function.

    Args:
        name: Name of the function in the cache, other than that of every other algorithm.
        infer: Compiled function that acts.
        learn: Compiled function that samples and takes the gradient steps of one iteration.

    Returns:
        A function of a `Repetition` and of one tuple of arguments for each part, in program order.
    """

    def iterate(loop, inference, env_step, insertion, learning, sync):
        more = True
        while more:
            learning_now = is_learning(loop)
            for _ in range(steps_to_act(loop)):
                infer(*inference)
                step_env(loop.env, env_step)
                insert(*insertion)
            if learning_now:
                learn(*learning)
                if is_under_way(loop.stop):
                    return
                copy(*sync)
            more = goes_on(loop)

    return fast(rename(name, iterate))


def bind(iterate: Any, kernel: Kernel, buffers: Buffers, inference: Any, learn: Any) -> Call:
    """Bind iteration.*: whole iterations of `iterate` (`compile_iterations`).

    inference, learn: the functions that bind these two parts.
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
        environment_mark(str(kernel.program)),
    )
    return bind_call(iterate, loop, *(call.args for call in calls))
