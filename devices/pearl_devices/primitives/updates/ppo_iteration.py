"""Fused modes of PPO and A2C: a rollout in one call, and whole iterations. Native, for the
environments of `envs`. They call the same functions on the same arrays as the separate tasks, so
the results agree bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import parts
from pearl_devices.primitives.envs.native_envs import bind_step, environment_mark
from pearl_devices.primitives.envs.native_envs import step as step_env
from pearl_devices.primitives.math.nets import bind_sync, copy_both
from pearl_devices.primitives.native import bind_call, fast, parts_only
from pearl_devices.primitives.replay import rollouts
from pearl_devices.primitives.replay.rollouts import advantages, insert
from pearl_devices.primitives.updates import policies, ppo
from pearl_devices.primitives.updates.iterations import goes_on
from pearl_devices.primitives.updates.policies import infer
from pearl_devices.primitives.updates.ppo import update
from pearl_devices.primitives.updates.stop_word import is_under_way


class Turns(NamedTuple):
    """more, stop: as in `iterations.Repetition`."""

    more: Any
    stop: Any


@fast
def act_and_step(policy, env, world, step, rollout):
    """Do the vector steps of one rollout in the environment of mark `env`. The other arguments are
    those of the called functions."""
    for _ in range(rollout.reward.shape[0]):
        infer(*policy)
        step_env(env, world)
        insert(step, rollout)


@fast
def iterate(loop, policy, env, world, step, rollout, gae, learning, networks):
    """Run loop.more + 1 iterations: rollout, advantages, gradient steps, copies to the acting
    side."""
    more = True
    while more:
        if not is_under_way(loop.stop):
            act_and_step(policy, env, world, step, rollout)
            advantages(*gae)
        update(*learning)
        if is_under_way(loop.stop):
            return
        copy_both(*networks)
        more = goes_on(loop)


def _arguments(kernel: Kernel, buffers: Buffers) -> tuple[Mapping[str, Any], tuple[Any, ...]]:
    """The arguments of each part, by family, and the arguments of `act_and_step`."""
    binders = {
        "inference": policies.bind_inference,
        "env_step": bind_step,
        "rollout_insert": rollouts.bind_insert,
        "gae": rollouts.bind_advantages,
        "update": ppo.bind_update,
        "param_sync": bind_sync,
    }
    found: dict[str, Any] = {}
    with parts_only():
        for part, _ in parts(kernel):
            family = part.kind.partition(".")[0]
            call: Any = binders[family](part, buffers)
            found[family] = call.args
    env = environment_mark(str(kernel.program))
    acting = (found["inference"], env, found["env_step"], *found["rollout_insert"])
    return found, acting


def bind_rollout(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind rollout.ppo: `horizon` times inference, env_step and rollout_insert, in one call."""
    _, acting = _arguments(kernel, buffers)
    return bind_call(act_and_step, *acting)


def bind_iteration(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind iteration.*: `loop.more` + 1 times a rollout, gae, update and param_sync."""
    found, acting = _arguments(kernel, buffers)
    rest = (found["gae"], found["update"], found["param_sync"])
    loop = Turns(buffers["loop.more"], buffers["loop.stop"])
    return bind_call(iterate, loop, *acting, *rest)
