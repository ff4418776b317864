"""Replays and rollouts of observations that are uint8: they are stored as such (`observations`)."""

from __future__ import annotations

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.native import bind_call, fast
from pearl_devices.primitives.replay import ring, rollouts
from pearl_devices.primitives.replay.observations import pack


@fast
def insert(
    units, bytes_obs, bytes_next,
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated,
    obs, action, reward, next_obs, terminated, truncated, cursor, tree, levels, fanout, priority,
):  # fmt: skip
    pack(s_obs, units, bytes_obs)
    pack(s_next, units, bytes_next)
    ring.insert(
        bytes_obs, s_action, s_reward, bytes_next, s_terminated, s_truncated,
        obs, action, reward, next_obs, terminated, truncated, cursor, tree, levels, fanout,
        priority,
    )  # fmt: skip


@fast
def insert_step(units, obs, next_obs, step, rollout):
    """Store one vector step, whose observations are packed first: step.obs and step.next_obs are
    scratch of uint8."""
    pack(obs, units, step.obs)
    pack(next_obs, units, step.next_obs)
    rollouts.insert(step, rollout)


def _scratch(buffers: Buffers) -> tuple[np.ndarray, np.ndarray]:
    shape = buffers["step.obs"].shape
    return np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)


def bind_insert(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind replay_insert: write step.* at the cursor, observations as uint8."""
    units = np.float32(kernel.dim("units"))
    return bind_call(insert, units, *_scratch(buffers), *ring.insert_arguments(kernel, buffers))


def bind_insert_step(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind rollout_insert: rollout.* at rollout.at ← step.*, observations as uint8."""
    step, units = rollouts.step_of(buffers), np.float32(kernel.dim("units"))
    obs, next_obs = _scratch(buffers)
    packed = step._replace(obs=obs, next_obs=next_obs)
    into = rollouts.rollout_of(buffers)
    return bind_call(insert_step, units, step.obs, step.next_obs, packed, into)
