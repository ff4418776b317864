"""Simulated annealing of loads (Kirkpatrick, Gelatt and Vecchi 1983), compiled; imported on use.

The annealing minimises Σ (load / target)^power over lanes and links. A low power favours few copies
and fast modes, a high power a small largest load. Moves: one item to another lane, a cluster of
neighbours to another lane, an exchange of two items.
"""

from __future__ import annotations

import numba
import numpy as np

from pearl.solvers.model.tables import LINK, NOBODY
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")
_called = numba.njit(nogil=True, error_model="numpy")

_CLUSTER = 0.35
"""Share of the moves of single items that also move neighbours (assumed: this share and the sizes
below are the best of a few tried)."""

_SMALL, _LARGE = 12, 60
"""Largest number of items of a cluster: in three of four moves, and in the fourth."""


@_called
def _power(x, power):
    """Return x to the power of 2, 4, 8, …"""
    while power > 1:
        x *= x
        power >>= 1
    return x


@_native
def _charge(t, q, sign, place, ticks, largest, payer, reached, change, stamp, touched, count, tick):
    """Add the cost of the copies of producer q, times sign, to `change`; return the number of
    touched lanes and links."""
    home = place[t.item[t.task_unit[q]]]
    a, host = t.device[home], t.host
    number, upload = 0, -1.0
    for k in range(t.task_first[q], t.task_first[q + 1]):
        e = t.task_edges[k]
        there = place[t.item[t.edge_unit[e]]]
        b = t.device[there]
        if b == a:
            continue
        if b == host or t.second[a, b] >= 0:
            upload = max(upload, t.edge_bytes[e])
        if b == host and a != host:
            continue
        if ticks[b] != tick:
            ticks[b] = tick
            largest[b], payer[b] = t.edge_bytes[e], there
            reached[number] = b
            number += 1
        else:
            largest[b] = max(largest[b], t.edge_bytes[e])
    for k in range(number + 1):
        if k == number:
            if upload < 0.0:
                break
            link, volume, lane = t.up[a], upload, home
        else:
            b = reached[k]
            volume, lane = largest[b], payer[b]
            link = t.second[a, b]
            if link < 0:
                link = t.hop[a, b]
                if a != host:
                    lane = home
        if t.paid[link] == NOBODY:
            continue
        r = len(t.device) + link if t.paid[link] == LINK else lane
        if stamp[r] == 0:
            stamp[r] = 1
            change[r] = 0.0
            touched[count] = r
            count += 1
        change[r] += sign * t.task_messages[q] * (t.per_message[link] + volume * t.per_byte[link])
    return count


@_called
def _random(state):
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return x >> np.uint64(11)


@_native
def anneal(t, place, best_place, state, steps, hot, cold, target, power):
    """Make `steps` moves from temperature `hot` to `cold`; return the largest load of `best_place`.

    place: lane of each item, changed by the call. state: (1,) uint64, random, not 0.
    """
    seconds, memory, capacity, device = t.seconds, t.memory, t.capacity, t.device
    near_first, near = t.near_first, t.near
    items, places = seconds.shape
    makers = len(t.task_unit)
    total = places + len(t.paid)
    load, change = np.zeros(total), np.zeros(total)
    stamp = np.zeros(total, np.int64)
    touched = np.zeros(total, np.int64)
    devices = capacity.shape[0]
    used = np.zeros(devices)
    ticks = np.zeros(devices, np.int64)
    largest = np.zeros(devices)
    payer = np.zeros(devices, np.int64)
    reached = np.zeros(devices, np.int64)
    mark = np.zeros(makers, np.int64)
    affected = np.zeros(makers + 1, np.int64)
    inside = np.zeros(items, np.int64)
    moved = np.zeros(items + 1, np.int64)
    tick, turn = 0, 0
    for i in range(items):
        load[place[i]] += seconds[i, place[i]]
        used[device[place[i]]] += memory[i]
    for q in range(makers):
        tick += 1
        count = _charge(
            t, q, 1.0, place, ticks, largest, payer, reached, change, stamp, touched, 0, tick
        )
        for k in range(count):
            load[touched[k]] += change[touched[k]]
            stamp[touched[k]] = 0
    most = load.max()
    best = most
    best_place[:] = place
    cooling = (cold / hot) ** (1.0 / max(steps, 1))
    temperature = hot
    for _ in range(steps):
        temperature *= cooling
        r = _random(state)
        i = np.int64(r % np.uint64(items))
        r //= np.uint64(items)
        kind = r & np.uint64(3)
        r >>= np.uint64(2)
        a = place[i]
        other = -1
        if kind == 0:
            b = np.int64(r % np.uint64(places))
        elif kind == 3:
            other = np.int64(r % np.uint64(items))
            b = place[other]
        else:
            degree = near_first[i + 1] - near_first[i]
            if degree:
                b = place[near[near_first[i] + np.int64(r % np.uint64(degree))]]
            else:
                b = np.int64(r % np.uint64(places))
        if a == b or seconds[i, b] == np.inf:
            continue
        turn += 1
        moved[0], members, bytes_moved = i, 1, memory[i]
        inside[i] = turn
        if other >= 0:
            if seconds[other, a] == np.inf:
                continue
            bytes_moved -= memory[other]
        else:
            r = _random(state)
            if np.float64(r) * (1.0 / 9007199254740992.0) < _CLUSTER:
                limit = _SMALL if r & np.uint64(3) else _LARGE
                limit = 2 + np.int64((r >> np.uint64(2)) % np.uint64(limit))
                head = 0
                while head < members and members < limit:
                    v = moved[head]
                    head += 1
                    for e in range(near_first[v], near_first[v + 1]):
                        w = near[e]
                        if place[w] == a and inside[w] != turn and members < limit:
                            if seconds[w, b] == np.inf:
                                continue
                            inside[w] = turn
                            moved[members] = w
                            members += 1
                            bytes_moved += memory[w]
        if device[a] != device[b]:
            if used[device[b]] + bytes_moved > capacity[device[b]]:
                continue
            if used[device[a]] - bytes_moved > capacity[device[a]]:
                continue
        moved[members] = other
        concerned = 0
        for k in range(members + (other >= 0)):
            v = moved[k]
            for e in range(t.make_first[v], t.make_first[v + 1]):
                q = t.make[e]
                if mark[q] != turn:
                    mark[q] = turn
                    affected[concerned] = q
                    concerned += 1
        stamp[a] = stamp[b] = 1
        change[a] = change[b] = 0.0
        touched[0], touched[1], count = a, b, 2
        for k in range(concerned):
            tick += 1
            count = _charge(
                t, affected[k], -1.0, place, ticks, largest, payer, reached, change, stamp,
                touched, count, tick,
            )  # fmt: skip
        for k in range(members):
            v = moved[k]
            place[v] = b
            change[a] -= seconds[v, a]
            change[b] += seconds[v, b]
        if other >= 0:
            place[other] = a
            change[b] -= seconds[other, b]
            change[a] += seconds[other, a]
        for k in range(concerned):
            tick += 1
            count = _charge(
                t, affected[k], 1.0, place, ticks, largest, payer, reached, change, stamp,
                touched, count, tick,
            )  # fmt: skip
        worse = 0.0
        for k in range(count):
            d = touched[k]
            stamp[d] = 0
            worse += _power((load[d] + change[d]) / target, power) - _power(load[d] / target, power)
        accept = worse <= 0.0
        if not accept:
            u = np.float64(_random(state)) * (1.0 / 9007199254740992.0)
            accept = u < np.exp(-worse / temperature)
        if not accept:
            for k in range(members):
                place[moved[k]] = a
            if other >= 0:
                place[other] = b
            continue
        used[device[a]] -= bytes_moved
        used[device[b]] += bytes_moved
        for k in range(count):
            load[touched[k]] += change[touched[k]]
        most = load.max()
        if most < best:
            best = most
            best_place[:] = place
    return best
