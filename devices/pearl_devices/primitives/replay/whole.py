"""Replay of observations that are uint8: they are stored as such; `ring` gives float32 again.

An observation reaches the replay as float32: the environment's numbers, divided by `units` (255 for
images, else 1). All bits come back, because the same product made them.
"""

from __future__ import annotations

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives.native import bind_call, exact
from pearl_devices.primitives.replay import ring

MOST, CLOSE = np.float32(255.5), np.float32(1e-3)
"""The end of the range before it is rounded down, and the largest error of a whole number."""


@exact
def pack(obs, units, out):
    """out (uint8) ← the numbers of which obs (rows, O) are 1/units.

    Raises:
        ValueError: A number is no such one: the space says uint8, and the environment gives others.
    """
    far = np.float32(0.0)
    for n in range(obs.shape[0]):
        for c in range(obs.shape[1]):
            number = min(max(obs[n, c] * units + np.float32(0.5), np.float32(0.0)), MOST)
            out[n, c] = np.uint8(number)
            far = max(far, abs(np.float32(out[n, c]) - obs[n, c] * units))
    if far > CLOSE:
        raise ValueError(
            "replay: the environment's observation space is a Box of uint8, and it observes "
            "numbers that are not whole or not from 0 to 255; give its space the type it observes"
        )


@exact
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


def bind_insert(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind replay_insert: write step.* at the cursor, observations as uint8."""
    shape = buffers["step.obs"].shape
    scratch = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    units = np.float32(kernel.dim("units"))
    return bind_call(insert, units, *scratch, *ring.insert_arguments(kernel, buffers))
