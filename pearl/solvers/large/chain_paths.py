"""Compiled dynamic program over a chain or ring of classes (Viterbi 1967). Imported on use."""

from __future__ import annotations

import numpy as np

from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")


@_native
def _extend(alone, same, cross, i, after, values, new, kept):
    """Write the values of the states of class `after`, from those of class i before it."""
    devices = alone.shape[1]
    for e in range(devices):
        stay = 0
        if values[e, 1] + same[i, e, 1] < values[e, 0] + same[i, e, 0]:
            stay = 1
        new[e, 0] = values[e, stay] + same[i, e, stay] + alone[after, e]
        kept[e, 0] = 2 * e + stay
        least = np.inf
        origin = 0
        for d in range(devices):
            if d == e:
                continue
            state = 0
            if values[d, 1] < values[d, 0]:
                state = 1
            through = values[d, state] + cross[i, d, e]
            if through < least:
                least = through
                origin = 2 * d + state
        new[e, 1] = least + alone[after, e]
        kept[e, 1] = origin


@_native
def cheapest(alone, same, cross, ring, place):
    """Write the devices of least cost to `place`, one for each class; return the cost.

    alone: (classes, devices), the cost of a class on a device, infinite if not allowed.
    same: (classes, devices, 2), the cost of two neighbours on one device; the last axis tells
        whether the class before them is on another device.
    cross: (classes, devices, devices), the cost of two neighbours on different devices.
    ring: whether the first class is a neighbour of the last one.
    """
    count, devices = alone.shape
    kept = np.zeros((count, devices, 2), np.int64)
    values = np.empty((devices, 2))
    new = np.empty((devices, 2))
    best = np.inf
    starts = 2 * devices if ring else 1
    for start in range(starts):
        at, entered = start // 2, start % 2
        for d in range(devices):
            values[d, 0] = np.inf if ring else alone[0, d]
            values[d, 1] = np.inf
        if ring:
            if alone[0, at] == np.inf:
                continue
            values[at, entered] = alone[0, at]
        for i in range(count - 1):
            _extend(alone, same, cross, i, i + 1, values, new, kept[i + 1])
            values, new = new, values
        last = -1
        cost = np.inf
        for d in range(devices):
            for s in range(2):
                total = values[d, s]
                if ring and d == at and entered == 0:
                    total += same[count - 1, d, s]
                elif ring and d != at and entered == 1:
                    total += cross[count - 1, d, at]
                elif ring:
                    continue
                if total < cost:
                    cost = total
                    last = 2 * d + s
        if cost < best:
            best = cost
            state = last
            for i in range(count - 1, -1, -1):
                place[i] = state // 2
                state = kept[i, state // 2, state % 2]
    return best
