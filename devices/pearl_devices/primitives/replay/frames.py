"""Replay of stacked uint8 frames: each frame is stored once, and sampling builds the stacks again.

An observation is a stack of `stack` frames, oldest first, as in gymnasium's FrameStackObservation:
at the start of an episode its first frame fills the places of missing frames. Transition row g
(counted from the first ever) keeps the newest frame of its observation, and the number of earlier
frames of its episode. The newest frame of its successor is that of the environment's next row. So
the ring of frames is `stack` - 1 vector steps longer than the ring of transitions.

Three successors are no such frame. The successor of an environment's newest row is stored outside
the ring. The successor of a truncated row, or of a row before a restart of its environment, moves
to a second ring with the next row; if that ring is too small, a ValueError is raised. The successor
of a terminated row is not stored: its discount is 0, and the row's own stack replaces it.

Rows, samples, weights, n-step returns and priorities are as in `replay`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.primitives.native import bind_call, fast
from pearl_devices.primitives.replay.ring import (
    BATCH,
    ROW,
    append_rows,
    draw,
    n_step_return,
    rows,
    tree_arguments,
)

FRAMES = "frame depth ahead last last_row clock"
"""replay.X of these: frames; number of earlier frames in each stack; successors of the newest rows;
successors of cut rows, and their row numbers; total counts of rows and of such successors."""


@fast
def insert(
    s_obs, s_action, s_reward, s_next, s_terminated, s_truncated,
    action, reward, terminated, truncated, frame, depth, ahead, last, last_row, clock, envs,
    cursor, tree, levels, fanout, priority,
):  # fmt: skip
    n, row, size = s_obs.shape[0], cursor[0], frame.shape[1]
    newest, most = s_obs.shape[1] - size, s_obs.shape[1] // size - 1
    for e in range(n):
        number = clock[0] + e
        here, env, place = row + e, number % envs, number % frame.shape[0]
        goes_on = False
        if number >= envs:
            before = (here - envs) % reward.size
            anew = s_truncated[e] & ANEW != 0
            ended = terminated[before] != 0
            if not ended and (anew or truncated[before] & 1 != 0):
                slot = clock[1] % last.shape[0]
                if clock[1] >= last.shape[0] and last_row[slot] > number - reward.size:
                    raise ValueError(
                        "replay: more episodes were cut than it has last frames for; cut them "
                        "later, or store whole observations (frame_stack: 0)"
                    )
                for c in range(size):
                    last[slot, c] = ahead[env, c]
                last_row[slot] = number - envs
                clock[1] += 1
                ended = True
            goes_on = not ended
        depth[place] = 0
        if goes_on:
            depth[place] = min(depth[(number - envs) % frame.shape[0]] + 1, most)
        for c in range(size):
            frame[place, c] = np.uint8(s_obs[e, newest + c])
            ahead[env, c] = np.uint8(s_next[e, newest + c])
        for c in range(s_action.shape[1]):
            action[here, c] = s_action[e, c]
        reward[here] = s_reward[e]
        terminated[here] = s_terminated[e]
        truncated[here] = s_truncated[e]
    clock[0] += n
    append_rows(n, reward.size, cursor, tree, levels, fanout, priority)


@fast
def find(last_row, count, number):
    """Return the slot of row `number`; row numbers rise with slots, from the oldest slot."""
    slots = last_row.size
    low, high = max(count - slots, 0), count - 1
    while low < high:
        middle = (low + high) // 2
        if last_row[middle % slots] < number:
            low = middle + 1
        else:
            high = middle
    return low % slots


@fast
def stack(frame, depth, envs, number, frames, out):
    """Write to the beginning of out `frames` frames up to that of row `number`, oldest first; the
    first frame of an episode fills missing places."""
    rows, size = frame.shape
    held = np.int64(depth[number % rows])
    for j in range(frames):
        place = (number - min(frames - 1 - j, held) * envs) % rows
        for c in range(size):
            out[j * size + c] = frame[place, c]


@fast
def gather(
    action, reward, terminated, truncated, frame, depth, ahead, last, last_row, clock, envs,
    cursor, n_step, gamma, index, b_obs, b_action, b_reward, b_next, b_discount,
):  # fmt: skip
    """Copy the rows `index` with their n-step returns, like `replay.gather`."""
    size, capacity = frame.shape[1], reward.size
    frames, newest = b_obs.shape[1] // size, b_obs.shape[1] - size
    for b in range(index.size):
        row = index[b]
        number = clock[0] - 1 - (cursor[0] - 1 - row) % capacity
        stack(frame, depth, envs, number, frames, b_obs[b])
        for c in range(action.shape[1]):
            b_action[b, c] = action[row, c]
        row, b_reward[b], b_discount[b] = n_step_return(
            reward, terminated, truncated, cursor, envs, n_step, gamma, row
        )
        number = clock[0] - 1 - (cursor[0] - 1 - row) % capacity
        if terminated[row] != 0:
            stack(frame, depth, envs, number, frames, b_next[b])
            continue
        stack(frame, depth, envs, number, frames - 1, b_next[b])
        if number >= clock[0] - envs:
            source, place = ahead, number % envs
        elif truncated[row] & 1 != 0 or truncated[(row + envs) % capacity] & ANEW != 0:
            source, place = last, find(last_row, clock[1], number)
        else:
            source, place = frame, (number + envs) % frame.shape[0]
        for c in range(size):
            b_next[b, newest + c] = source[place, c]


@fast
def sample_steps(
    rng, action, reward, terminated, truncated, frame, depth, ahead, last, last_row, clock, envs,
    cursor, tree, levels, fanout, beta, n_step, discount,
    index, weight, b_obs, b_action, b_reward, b_next, b_discount,
):  # fmt: skip
    for s in range(index.shape[0]):
        draw(rng, cursor, tree, levels, fanout, beta, index[s], weight[s])
        gather(
            action, reward, terminated, truncated, frame, depth, ahead, last, last_row, clock, envs,
            cursor, n_step, discount[0], index[s], b_obs[s], b_action[s], b_reward[s], b_next[s],
            b_discount[s],
        )  # fmt: skip


def _stored(kernel: Kernel, buffers: Buffers) -> tuple[Any, ...]:
    """Return the replay's arrays and the number of environments, as `insert` and `gather` take
    them.

    Row numbers run through all groups of environments; a firing inserts the rows of one group.
    """
    return (
        *rows(buffers, "replay", "action reward terminated truncated"),
        *rows(buffers, "replay", FRAMES),
        kernel.dim("apart"),
        buffers["replay.cursor"],
    )


def bind_insert(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind replay_insert: write the newest frames of step.* at the cursor."""
    return bind_call(
        insert,
        *rows(buffers, "step", ROW),
        *_stored(kernel, buffers),
        *tree_arguments(kernel, buffers),
        buffers["replay.priority"] if kernel.dim("prioritised") else np.zeros(3),
    )


def bind_sample(kernel: Kernel, buffers: Buffers) -> Call:
    """Bind replay_sample: fill batch.* with `steps` batches; observations are float32, 0 … 255."""
    return bind_call(
        sample_steps,
        buffers["rng.replay_sample"],
        *_stored(kernel, buffers),
        *tree_arguments(kernel, buffers),
        buffers["replay.beta"] if kernel.dim("prioritised") else np.zeros(3),
        kernel.dim("n_step"),
        buffers["hyper.discount"],
        buffers["batch.index"],
        buffers["batch.weight"],
        *rows(buffers, "batch", BATCH, lead=2),
    )
