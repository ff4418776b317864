"""Compiled moves of classes between lanes, for graphs with cycles. Imported on use."""

from __future__ import annotations

import math

import numpy as np

from pearl.solvers.large.timed_native import bound_of, clashes, cost_of, crowding, excess
from pearl.solvers.orders.modulo import random_below
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")

POWER = 16
"""Power of the loads and of the cycle ratio in their sum: the largest counts most, and the others
still count (assumed)."""

CLUSTER = 12
"""Largest number of neighbours that one move also moves (assumed)."""

RESIZED = 40
"""Of 100 moves, those of all classes of a lane, if a device has lanes of several widths
(assumed)."""

ROWS = 70
"""Of 100 of those moves, the first of those that take a row of a lane's classes to one lane and its
other classes to another. No other move leads from a group as wide as its pool to two (assumed)."""

CLASH = 0.01
"""Share by which a pair of classes that must not share a lane raises the value at first; at the end
it doubles the value (assumed)."""

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
def _move(t, place, random, moved, before):
    """Make one random move and return the number of changes.

    A move puts a class on the lane of a neighbour or on any lane, moves a row of neighbours of one
    lane to another lane, or exchanges two classes. If a device has lanes of several widths, all
    classes of one or two lanes also change to other lanes.
    """
    items, lanes = len(place), len(t.device)
    c = random_below(random, items)
    kind = random_below(random, 100)
    if t.pooled and random_below(random, 100) < RESIZED:
        home, first, last = place[c], 0, items - 1
        if kind >= ROWS:
            other = random_below(random, items)
            first, last = min(c, other), max(c, other)
        count = _resize(t, place, home, first, last, random, moved, before, 0)
        if kind < 50:
            home = place[random_below(random, items)]
        if kind < 50 or kind >= ROWS:
            count = _resize(t, place, home, 0, items - 1, random, moved, before, count)
        return count
    lane = random_below(random, lanes)
    degree = t.near_first[c + 1] - t.near_first[c]
    if degree > 0 and (kind < 35 or kind >= 75):
        to = place[t.near[t.near_first[c] + random_below(random, degree)]]
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
        degree = t.near_first[at + 1] - t.near_first[at]
        found = -1
        offset = random_below(random, degree) if degree > 0 else 0
        for k in range(degree):
            v = t.near[t.near_first[at] + (k + offset) % degree]
            if place[v] == home and v != c:
                found = v
                break
        if found < 0:
            break
        count = _put(place, found, lane, moved, before, count)
        at = found
    return count


@_native
def _resize(t, place, home, first, last, random, moved, before, count):
    """Move the classes from `first` to `last` of a lane to a lane of its width or the next, or to
    any lane."""
    lanes = len(t.device)
    lane = random_below(random, lanes)
    if random_below(random, 3) > 0:
        low, step = home, random_below(random, 3) - 1
        for _ in range(lanes if step != 0 else 0):
            if t.width[low] != t.width[home]:
                break
            low = (low + lanes + step) % lanes
        high = low
        while low > 0 and t.width[low - 1] == t.width[high]:
            low -= 1
        while high < lanes - 1 and t.width[high + 1] == t.width[low]:
            high += 1
        lane = low + random_below(random, high - low + 1)
    for c in range(first, last + 1):
        if place[c] == home:
            count = _put(place, c, lane, moved, before, count)
    return count


@_native
def _may(t, place, moved, count):
    """Return whether the moved classes may be on their lanes."""
    allowed = True
    for i in range(count):
        allowed = allowed and t.seconds[moved[i], place[moved[i]]] < np.inf
    return allowed


@_native
def _undo(place, moved, before, count):
    for i in range(count - 1, -1, -1):
        place[moved[i]] = before[i]


@_native
def cost_below(t, place, s):
    """Return a lower bound on the cost of an assignment under all orders, and its cycle ratio."""
    bound, ratio = bound_of(t, place, s)
    return cost_of(t, place, bound), ratio


@_native
def propose(t, place, trial, s, random, below, tries, most):
    """Write an assignment at most `most` random moves from `place` to `trial`, whose loads and
    cycles allow a cost below `below`. Return the remaining tries, -1 if none was found."""
    moved = np.empty(MOVED, np.int64)
    before = np.empty(MOVED, np.int64)
    while tries > 0:
        tries -= 1
        trial[:] = place
        changed = 0
        for _ in range(1 + random_below(random, most)):
            count = _move(t, trial, random, moved, before)
            if count > 0 and (not _may(t, trial, moved, count) or excess(t, trial, s) > 0.0):
                _undo(trial, moved, before, count)
                count = 0
            changed += count
        if changed > 0 and cost_below(t, trial, s)[0] < below:
            return tries
    return -1


@_native
def all_bounds(t, able, s, bounds):
    """Write the least cost of every assignment to the lanes `able` to `bounds`. The bound of a
    forbidden assignment is infinite. The digits of an assignment's number are the places in `able`
    of its classes, starting with the first class."""
    items = len(t.seconds)
    digits, place = np.zeros(items, np.int64), np.full(items, able[0])
    every = np.arange(items)
    for k in range(len(bounds)):
        bounds[k] = np.inf
        if _may(t, place, every, items) and excess(t, place, s) == 0.0:
            bounds[k] = cost_below(t, place, s)[0]
        for i in range(items):
            digits[i] = (digits[i] + 1) % len(able)
            place[i] = able[digits[i]]
            if digits[i] > 0:
                break


@_native
def _smooth(s, ratio, unit):
    total = (ratio / unit) ** POWER
    for k in range(len(s.load)):
        if s.load[k] > 0.0:
            total += (s.load[k] / unit) ** POWER
    return unit * total ** (1.0 / POWER)


@_native
def anneal(t, place, best, s, random, steps, hot, cold):
    """Run simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983) of loads and cycle ratio from
    `place`. No move breaks rules more than before, but classes that must not share a lane may share
    one for a while. Write the assignment of least excess, and then of least cost, to `best`; return
    its excess.

    hot, cold: temperatures, as shares of the value.
    """
    moved = np.empty(MOVED, np.int64)
    before = np.empty(MOVED, np.int64)
    best[:] = place
    over, pairs = crowding(t, place, s), clashes(t, place)
    fewest = over + pairs
    unit, ratio = bound_of(t, place, s)
    least = cost_of(t, place, unit)
    if unit <= 0.0:
        return fewest
    value = cost_of(t, place, _smooth(s, ratio, unit))
    scale = least if least < np.inf else unit
    for step in range(steps):
        count = _move(t, place, random, moved, before)
        if count == 0:
            continue
        accepted = _may(t, place, moved, count)
        if accepted:
            wrong = crowding(t, place, s)
            accepted = wrong <= over
        if accepted:
            bound, ratio = bound_of(t, place, s)
            changed = cost_of(t, place, _smooth(s, ratio, unit))
            clashing, clash = clashes(t, place), CLASH ** (1 - step / steps)
            worse = changed * (1.0 + clash * clashing) - value * (1.0 + clash * pairs)
            heat = scale * hot * (cold / hot) ** (step / steps)
            chance = random_below(random, 1 << 30) / (1 << 30)
            accepted = worse <= 0.0 or wrong < over or chance < math.exp(-worse / heat)
            if accepted:
                value, over, pairs = changed, wrong, clashing
                cost = cost_of(t, place, bound)
                if over + pairs < fewest or (over + pairs == fewest and cost < least):
                    fewest, least = over + pairs, cost
                    best[:] = place
        if not accepted:
            _undo(place, moved, before, count)
    return fewest


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
