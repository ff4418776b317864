"""A gradient step on two cores: the calling thread, and a helper thread that lives as long as the
call.

Both run the same compiled function over the same arrays, as side 0 and side 1, each with its own
scratch. If one side needs a result of the other, they meet at a barrier: each counts its progress
and waits until the other has the same count. A number to which both add (a gradient of two halves
of a batch) is the sum of two numbers, the same in either order. So results depend on no timing.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np
from numba import types

from pearl_devices.base import Buffers, Call
from pearl_devices.kernel import Kernel
from pearl_devices.primitives import HELPER
from pearl_devices.primitives.code_cache import compiled
from pearl_devices.primitives.math.atomics import CELL, fence, give_way, load, store
from pearl_devices.primitives.math.nets import CLIP_EPS, adam, rate, update_target
from pearl_devices.primitives.math.products import total_squares
from pearl_devices.primitives.native import bind_call, fast
from pearl_devices.primitives.updates import critics
from pearl_devices.system import WakeEvent, host_system

# Cells of a team, in bytes from its address.
OTHER, ASLEEP, STOP, BELL, POLL, RANG, HEAR = (CELL * n for n in range(1, 8))
CELLS = 8

LOOKS = 64
"""Polls of a side before it yields the core to other threads (below 1 us; assumed)."""
PATIENCE = 1_000
"""Yields of the helper before it sleeps: about 0.3 ms of an idle core (assumed)."""
SLEEP_MS = 200
"""Longest sleep of the helper before it checks whether the call still exists."""
LOST = 500_000_000
"""Yields of a side before it gives the other side up: minutes (assumed)."""

# Functions of libc; pointers are addresses.
_poll: Any = types.ExternalFunction("poll", types.int32(types.int64, types.int64, types.int32))
_read: Any = types.ExternalFunction("read", types.int64(types.int32, types.int64, types.int64))
_write: Any = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))


class Team(NamedTuple):
    """One side's view of both sides.

    address: of the shared cells. side: 0 for the caller's thread, 1 for the helper's.
    sums: (2, 8), a number of each side in a separate cache line.
    """

    address: int
    side: int
    sums: Any


@fast
def _wait(address, least):
    looks = 0
    while load(address) < least:
        looks += 1
        if looks > LOOKS:
            give_way()
            if looks > LOST:
                raise RuntimeError("two cores: the other side does not answer")


@fast
def barrier(team):
    """Wait until the other side has reached this point too."""
    mine = team.address + OTHER * team.side
    come = load(mine) + np.int64(1)
    store(mine, come)
    _wait(team.address + OTHER * (1 - team.side), come)


@fast
def wait_for_work(team):
    """Side 0: let the helper begin. Side 1: sleep until there is work; False if there will be no
    more work."""
    come = load(team.address + OTHER * team.side) + np.int64(1)
    store_at = team.address + OTHER * team.side
    if team.side == 0:
        store(store_at, come)
        fence()
        if load(team.address + ASLEEP) != 0:
            store(team.address + RANG, np.int64(1))
            _write(np.int32(load(team.address + BELL)), team.address + RANG, np.int64(8))
        return True
    patience = 0
    while load(team.address) < come:
        if load(team.address + STOP) != 0:
            return False
        patience += 1
        if patience <= PATIENCE:
            give_way()
            continue
        store(team.address + ASLEEP, np.int64(1))
        fence()
        if load(team.address) < come:
            ready = _poll(team.address + POLL, np.int64(1), np.int32(SLEEP_MS))
            if ready > 0:
                # The bytes read go to memory that is never used.
                _read(np.int32(load(team.address + HEAR)), team.address + POLL + 8, np.int64(8))
        store(team.address + ASLEEP, np.int64(0))
    store(store_at, come)
    return True


@fast
def split_items(size, side, grain):
    """Return (first, end) of a side's part of `size` items, split at a multiple of `grain`."""
    middle = size // 2 - (size // 2) % grain
    return (0, middle) if side == 0 else (middle, size)


@fast
def add_gradients(team, net, other, clip_norm):
    """Sum both sides' gradients in net.grad over this side's part, and scale them so that the norm
    of the whole is at most clip_norm (0: no limit). Call `barrier` before."""
    first, end = split_items(net.grad.size, team.side, 16)
    for j in range(first, end):
        net.grad[j] += other.grad[j]
    if clip_norm > 0.0:
        team.sums[team.side, 0] = total_squares(net.grad[first:end])
        barrier(team)
        norm = math.sqrt(team.sums[0, 0] + team.sums[1, 0])
        factor = np.float32(min(1.0, clip_norm / (norm + CLIP_EPS)))
        for j in range(first, end):
            net.grad[j] *= factor


@fast
def descend_together(team, net, other, rules):
    """One step of Adam along the sum of both sides' gradients, each side on its part of the
    parameters. It may return before the other side has done its part."""
    number = net.steps[0] + 1
    barrier(team)
    if team.side == 0:
        net.steps[0] = number
    add_gradients(team, net, other, rules.clip_norm[0])
    first, end = split_items(net.grad.size, team.side, 16)
    adam(
        net.params[first:end], net.grad[first:end], net.m[first:end], net.v[first:end],
        number, rate(net.lr, number - 1), rules.adam, 0.0,
    )  # fmt: skip


@fast
def follow_together(team, net, rules):
    """Move this side's part of a target."""
    first, end = split_items(net.params.size, team.side, 16)
    update_target(
        net.target[first:end], net.params[first:end], rules.count[0], rules.tau[0], rules.every[0]
    )


@fast
def leave_number(team, value):
    """Store a number of this side for `sum_of_numbers`, which may follow the next barrier."""
    team.sums[team.side, 1] = value


@fast
def sum_of_numbers(team):
    return team.sums[0, 1] + team.sums[1, 1]


def nets(names: tuple[str, ...], kernel: Kernel, buffers: Buffers) -> tuple[critics.Net, ...]:
    """Return the networks `names` with one side's scratch and gradients."""
    return tuple(critics.net_of(name, kernel, buffers) for name in names)


def bind_pair(function: Any, sides: tuple[tuple[Any, ...], tuple[Any, ...]]) -> Call:
    """Return a call of the compiled `function(team, *arguments)` on two threads.

    sides: arguments of side 0 and of side 1, of the same types. As side 1, the function returns
    when `wait_for_work` says that there is no more work. The helper thread ends with the call
    object, or with the process.
    """
    raw = np.zeros((CELLS + 1) * CELL // 8, np.int64)
    skip = -raw.ctypes.data % CELL
    cells = raw[skip // 8 :]
    address = int(cells.ctypes.data)
    bell = host_system.new_wake_event()
    cells[BELL // 8], cells[HEAR // 8] = bell.handles[-1], bell.handles[0]
    cells[POLL // 8] = bell.handles[0] | 1 << 32  # struct pollfd: handle, POLLIN, nothing yet
    sums = np.zeros((2, 8))
    call = bind_call(function, Team(address, 0, sums), *sides[0])

    def run_side_1() -> None:
        host_system.work_for_user()
        function(Team(address, 1, sums), *sides[1])

    helper = threading.Thread(target=run_side_1, daemon=True, name=HELPER)
    helper.start()
    weakref.finalize(call, _end, helper, cells, bell)
    return call


def _end(helper: threading.Thread, cells: Any, bell: WakeEvent) -> None:
    _tell(int(cells.ctypes.data) + STOP)
    bell.set()
    helper.join(timeout=10.0)
    if not helper.is_alive():
        bell.close()


@compiled(nogil=True)
def _tell(address: int) -> None:
    store(address, np.int64(1))
