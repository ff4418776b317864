"""Compiled moves of classes between lanes, for graphs with cycles. Imported on use."""

from __future__ import annotations

import math

import numpy as np

from pearl.solvers.large.timed_native import bound_of
from pearl.solvers.orders.modulo import random_below
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")

POWER = 16
"""Power of the loads and of the cycle ratio in their sum: the largest counts most, and the others
still count (assumed)."""

CLUSTER = 12
"""Largest number of neighbours that one move also moves (assumed)."""

MOVED = 64
"""Largest number of classes that one move changes."""


@_native
def _put(place, c, lane, moved, before, count):
    """Put a class on a lane and record its lane before; return the number of records."""
    if place[c] == lane or count == len(moved):
        return count
    moved[count], before[count] = c, place[c]
    place[c] = lane
    return count + 1


@_native
def _move(near_first, near, place, lanes, random, moved, before):
    """Make one random move and return the number of changes.

    A move puts a class on the lane of a neighbour or on any lane, moves a row of neighbours of one
    lane to another lane, or exchanges two classes.
    """
    items = len(place)
    c = random_below(random, items)
    kind = random_below(random, 100)
    lane = random_below(random, lanes)
    degree = near_first[c + 1] - near_first[c]
    if degree > 0 and (kind < 35 or kind >= 75):
        to = place[near[near_first[c] + random_below(random, degree)]]
        if to != place[c]:
            lane = to
    if kind < 45:
        return _put(place, c, lane, moved, before, 0)
    if kind < 65:
        other = random_below(random, items)
        lane = place[other]
        count = _put(place, other, place[c], moved, before, 0)
        return _put(place, c, lane, moved, before, count)
    home = place[c]
    size = 2 + random_below(random, CLUSTER)
    count = _put(place, c, lane, moved, before, 0)
    at = c
    for _ in range(size - 1):
        degree = near_first[at + 1] - near_first[at]
        found = -1
        offset = random_below(random, degree) if degree > 0 else 0
        for k in range(degree):
            v = near[near_first[at] + (k + offset) % degree]
            if place[v] == home and v != c:
                found = v
                break
        if found < 0:
            break
        count = _put(place, found, lane, moved, before, count)
        at = found
    return count


@_native
def _fits(t, seconds, place, used, moved, count):
    """Return whether the moved classes may be on their lanes, within the memory of the devices.

    used: scratch, one cell per device.
    """
    for i in range(count):
        if seconds[moved[i], place[moved[i]]] == np.inf:
            return False
    used[:] = 0.0
    for c in range(len(place)):
        used[t.device[place[c]]] += t.memory[c]
    return not (used > t.capacity).any()


@_native
def propose(t, seconds, near_first, near, place, trial, s, random, below, tries, most):
    """Write an assignment at most `most` random moves from `place` to `trial`, whose loads and
    cycles allow a period below `below`. Return the remaining tries, -1 if none was found."""
    moved = np.empty(MOVED, np.int64)
    before = np.empty(MOVED, np.int64)
    used = np.empty(len(t.capacity))
    lanes = len(t.device)
    while tries > 0:
        tries -= 1
        trial[:] = place
        changed = 0
        for _ in range(1 + random_below(random, most)):
            count = _move(near_first, near, trial, lanes, random, moved, before)
            if count > 0 and not _fits(t, seconds, trial, used, moved, count):
                for i in range(count - 1, -1, -1):
                    trial[moved[i]] = before[i]
                count = 0
            changed += count
        if changed > 0 and bound_of(t, trial, s)[0] < below:
            return tries
    return -1


@_native
def all_bounds(t, seconds, able, s, bounds):
    """Write the bound of every assignment to the lanes `able` to `bounds`. The bound of a forbidden
    assignment is infinite. The digits of an assignment's number are the places in `able` of its
    classes, starting with the first class."""
    items = len(seconds)
    digits, place = np.zeros(items, np.int64), np.full(items, able[0])
    used, every = np.empty(len(t.capacity)), np.arange(items)
    for k in range(len(bounds)):
        bounds[k] = np.inf
        if _fits(t, seconds, place, used, every, items):
            bounds[k] = bound_of(t, place, s)[0]
        for i in range(items):
            digits[i] = (digits[i] + 1) % len(able)
            place[i] = able[digits[i]]
            if digits[i] > 0:
                break


@_native
def _smooth(s, ratio, unit):
    total = (ratio / unit) ** POWER
    for k in range(len(s.load)):
        total += (s.load[k] / unit) ** POWER
    return unit * total ** (1.0 / POWER)


@_native
def anneal(t, seconds, near_first, near, place, best, s, random, steps, hot, cold):
    """Run simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983) of loads and cycle ratio from
    `place`. Write the assignment of least bound to `best`; return the bound.

    hot, cold: temperatures, as shares of the value.
    """
    moved = np.empty(MOVED, np.int64)
    before = np.empty(MOVED, np.int64)
    used = np.empty(len(t.capacity))
    lanes = len(t.device)
    least, ratio = bound_of(t, place, s)
    unit = least
    value = _smooth(s, ratio, unit)
    best[:] = place
    for step in range(steps):
        count = _move(near_first, near, place, lanes, random, moved, before)
        if count == 0:
            continue
        accepted = _fits(t, seconds, place, used, moved, count)
        if accepted:
            bound, ratio = bound_of(t, place, s)
            changed = _smooth(s, ratio, unit)
            heat = unit * hot * (cold / hot) ** (step / steps)
            chance = random_below(random, 1 << 30) / (1 << 30)
            accepted = changed <= value or chance < math.exp((value - changed) / heat)
            if accepted:
                value = changed
                if bound < least:
                    least = bound
                    best[:] = place
        if not accepted:
            for i in range(count - 1, -1, -1):
                place[moved[i]] = before[i]
    return least


@_native
def _reach(sums, room, begin, limit, space):
    """Return the end of the longest row of classes from `begin` on that takes at most `limit`
    seconds and `space` bytes. sums, room: seconds and bytes of all classes before each position."""
    low, high = begin, len(sums) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if sums[middle] - sums[begin] <= limit and room[middle] - room[begin] <= space:
            low = middle
        else:
            high = middle - 1
    return low


@_native
def cut(sums, room, capacity, enter, leave, limit, ends, last):
    """Return how many classes, from the first on, the lanes hold within `limit` seconds, each lane
    one contiguous row; the best of all orders of the lanes.

    sums: (lanes, classes + 1), cumulative seconds. room: (classes + 1,), cumulative bytes.
    capacity: lane → bytes. enter, leave: (lanes, classes + 1), seconds of the copies that a cut
    before a class costs the lane after it and the lane before it.
    ends: (2 ** lanes,), set of lanes → number of classes that they hold. last: (2 ** lanes,), the
    last lane of each set.
    """
    lanes = len(sums)
    whole = 1 << lanes
    ends[0] = 0
    for chosen in range(1, whole):
        ends[chosen] = -1
        for k in range(lanes):
            if not chosen >> k & 1:
                continue
            begin = ends[chosen ^ (1 << k)]
            end = _reach(sums[k], room, begin, limit - enter[k, begin], capacity[k])
            while (
                end > begin
                and end < len(room) - 1
                and (sums[k, end] - sums[k, begin] + enter[k, begin] + leave[k, end] > limit)
            ):
                end -= 1
            if end > ends[chosen]:
                ends[chosen] = end
                last[chosen] = k
    return ends[whole - 1]
