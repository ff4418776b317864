"""A gradient step on two cores: this thread and one that helps it, for as long as the call lives.

Both run the same compiled function, as side 0 and side 1, each with scratch of its own, over the
same arrays. Where one needs what the other made they meet: each counts what it has come to and
waits until the other has come as far. What both add to (a gradient of two halves of a batch) is
the sum of two numbers, the same in either order; so results depend on no timing.
"""

from __future__ import annotations

import math
import os
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
from pearl_devices.primitives.native import bound, exact, fast
from pearl_devices.primitives.updates import critics

# Cells of a team, in bytes from its address.
OTHER, ASLEEP, STOP, BELL, POLL, RANG = (CELL * n for n in range(1, 7))
CELLS = 7

LOOKS = 64
"""Times a side looks before it gives way to whoever wants the core (below 1 us; assumed)."""
PATIENCE = 1_000
"""Times the helper gives way before it sleeps: about 0.3 ms of an idle core (assumed)."""
SLEEP_MS = 200
"""The helper sleeps at most so long before it looks whether it is still wanted."""
LOST = 500_000_000
"""Times a side gives way before it takes the other for lost: minutes (assumed)."""

# Of libc; pointers are addresses.
_poll: Any = types.ExternalFunction("poll", types.int32(types.int64, types.int64, types.int32))
_read: Any = types.ExternalFunction("read", types.int64(types.int32, types.int64, types.int64))
_write: Any = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))


class Team(NamedTuple):
    """One side's view of the two. address: of the cells. side: 0 the caller's thread, 1 the
    helper's. sums: (2, 8), a number of each side in a cache line of its own."""

    address: int
    side: int
    sums: Any


@exact
def _wait(address, least):
    looks = 0
    while load(address) < least:
        looks += 1
        if looks > LOOKS:
            give_way()
            if looks > LOST:
                raise RuntimeError("two cores: the other side does not answer")


@exact
def barrier(team):
    """Waits until the other side has come to this point too."""
    mine = team.address + OTHER * team.side
    come = load(mine) + np.int64(1)
    store(mine, come)
    _wait(team.address + OTHER * (1 - team.side), come)


@exact
def attends(team):
    """Side 0: lets the helper begin. Side 1: sleeps until there is something to begin; False when
    there will be nothing more."""
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
                # What it reads goes where nobody looks.
                _read(np.int32(load(team.address + BELL)), team.address + POLL + 8, np.int64(8))
        store(team.address + ASLEEP, np.int64(0))
    store(store_at, come)
    return True


@exact
def part(size, side, grain):
    """(first, end) of a side's share of `size` items, split at a multiple of `grain`."""
    middle = size // 2 - (size // 2) % grain
    return (0, middle) if side == 0 else (middle, size)


@fast
def add_gradients(team, net, other, clip_norm):
    """Both sides' gradients summed in net.grad over this side's share, and scaled so that the norm
    of the whole is at most clip_norm (0: no limit). Both sides have met before."""
    first, end = part(net.grad.size, team.side, 16)
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
    """One step of Adam along the sum of both sides' gradients, each side on its share of the
    parameters. It ends before the other side has done its share."""
    number = net.steps[0] + 1
    barrier(team)
    if team.side == 0:
        net.steps[0] = number
    add_gradients(team, net, other, rules.clip_norm[0])
    first, end = part(net.grad.size, team.side, 16)
    adam(
        net.params[first:end], net.grad[first:end], net.m[first:end], net.v[first:end],
        number, rate(net.lr, number - 1), rules.adam, 0.0,
    )  # fmt: skip


@fast
def follow_together(team, net, rules):
    """Moves this side's share of a target."""
    first, end = part(net.params.size, team.side, 16)
    update_target(
        net.target[first:end], net.params[first:end], rules.count[0], rules.tau[0], rules.every[0]
    )


@fast
def leave_number(team, value):
    """Leaves a number of this side where `sum_of_numbers` finds it once both have met."""
    team.sums[team.side, 1] = value


@exact
def sum_of_numbers(team):
    return team.sums[0, 1] + team.sums[1, 1]


def nets(names: tuple[str, ...], kernel: Kernel, buffers: Buffers) -> tuple[critics.Net, ...]:
    """The networks `names` with one side's scratch and gradients."""
    return tuple(critics.net(name, kernel, buffers) for name in names)


def paired(function: Any, sides: tuple[tuple[Any, ...], tuple[Any, ...]]) -> Call:
    """A call of the compiled `function(team, *arguments)` on two threads.

    sides: the arguments of side 0 and of side 1, of the same types. As side 1 the function returns
    when `attends` says that there is nothing more. The helping thread ends with the call, or with
    the process.
    """
    raw = np.zeros((CELLS + 1) * CELL // 8, np.int64)
    skip = -raw.ctypes.data % CELL
    cells = raw[skip // 8 :]
    address = int(cells.ctypes.data)
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    cells[BELL // 8] = bell
    cells[POLL // 8] = bell | 1 << 32  # struct pollfd: handle, POLLIN, nothing yet
    sums = np.zeros((2, 8))
    call = bound(function, Team(address, 0, sums), *sides[0])
    helper = threading.Thread(
        target=function, args=(Team(address, 1, sums), *sides[1]), daemon=True, name=HELPER
    )
    helper.start()
    weakref.finalize(call, _end, helper, cells, bell)
    return call


def _end(helper: threading.Thread, cells: Any, bell: int) -> None:
    _tell(int(cells.ctypes.data) + STOP)
    os.eventfd_write(bell, 1)
    helper.join(timeout=10.0)
    if not helper.is_alive():
        os.close(bell)


@compiled(nogil=True)
def _tell(address: int) -> None:
    store(address, np.int64(1))
