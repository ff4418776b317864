"""Compiled iterative modulo scheduling (Rau, Iterative modulo scheduling, MICRO 1994).

A modulo schedule of period T starts firing k of node i at start[i] + k·T. It is valid if every arc
(tail, head, seconds, tokens) has start[head] ≥ start[tail] + seconds − tokens·T, and no two nodes
of a lane overlap modulo T. Time is continuous here: a lane is a circle of length T with intervals.
"""

from __future__ import annotations

import numpy as np

from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")

SMALL = 1e-10
"""Share of the period below which two times count as equal."""

NONE = -1e300
"""Start of a node without a start."""


@_native
def random_below(state, below):
    """Return an integer from 0 to below − 1 (SplitMix64; Steele, Lea and Flood 2014)."""
    x = state[0] + np.uint64(0x9E3779B97F4A7C15)
    state[0] = x
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return np.int64(x % np.uint64(below))


@_native
def longest_paths(
    first, arcs, ends, seconds, tokens, period, last_first, distance, queue, waiting, passes
):
    """Write the longest distances from 0 along arcs of length seconds − tokens · period. Return
    False if a cycle has a positive length, because the period is too short.

    first, arcs: node → the numbers of its arcs. ends: arc → the node that it leads to. last_first:
    process the last node first, which suits arcs that lead to earlier nodes.
    """
    n = len(distance)
    for u in range(n):
        distance[u] = 0.0
        queue[u] = n - 1 - u if last_first else u
        waiting[u] = True
        passes[u] = 0
    small = SMALL * period
    head = 0
    size = n
    while size > 0:
        u = queue[head]
        head = (head + 1) % n
        size -= 1
        waiting[u] = False
        for k in range(first[u], first[u + 1]):
            a = arcs[k]
            v = ends[a]
            far = distance[u] + seconds[a] - tokens[a] * period
            if far > distance[v] + small:
                distance[v] = far
                if not waiting[v]:
                    passes[v] += 1
                    if passes[v] > n:
                        return False
                    waiting[v] = True
                    queue[(head + size) % n] = v
                    size += 1
    return True


@_native
def _place_in(members, count, phase, u, at):
    """Insert a node into the members of its lane, sorted by phase; return their number."""
    k = count
    while k > 0 and phase[members[k - 1]] > at:
        members[k] = members[k - 1]
        k -= 1
    members[k] = u
    return count + 1


@_native
def _take_out(members, count, u):
    k = 0
    while members[k] != u:
        k += 1
    for i in range(k, count - 1):
        members[i] = members[i + 1]
    return count - 1


@_native
def _after(members, count, phase, at):
    """Return the position of the first member with a phase of at least `at`."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if phase[members[middle]] < at:
            low = middle + 1
        else:
            high = middle
    return low


@_native
def _forward_gap(members, count, phase, occupancy, need, earliest, period):
    """Return the earliest start from `earliest` on, less than a period later, at which a lane is
    free for `need` seconds; NONE if there is none."""
    if count == 0:
        return earliest
    small = SMALL * period
    at = earliest % period
    k = _after(members, count, phase, at + small)
    before = members[(k - 1) % count]
    since = (at - phase[before]) % period
    if since > period - small:
        since = 0.0
    moved = 0.0
    if since < occupancy[before] - small:
        moved = occupancy[before] - since
    for _ in range(count + 1):
        if moved >= period - small:
            return NONE
        member = members[k % count]
        gap = (phase[member] - at) % period - moved
        if gap < -small:
            gap += period
        if gap >= need - small:
            return earliest + moved
        moved += gap + occupancy[member]
        k += 1
    return NONE


@_native
def _backward_gap(members, count, phase, occupancy, need, latest, period):
    """Return the latest start up to `latest`, less than a period earlier, at which a lane is free
    for `need` seconds; NONE if there is none."""
    if count == 0:
        return latest
    small = SMALL * period
    at = latest % period
    k = _after(members, count, phase, at - small)
    after = members[k % count]
    until = (phase[after] - at) % period
    if until > period - small:
        until = 0.0
    moved = 0.0
    if until < need - small:
        moved = need - until
    k -= 1
    for _ in range(count + 1):
        if moved >= period - small:
            return NONE
        member = members[k % count]
        since = (at - phase[member]) % period - moved
        if since < -small:
            since += period
        if since >= occupancy[member] - small:
            return latest - moved
        moved += since + need
        k -= 1
    return NONE


@_native
def fit(period, arrays, noise, random, budget, start):
    """Search for a modulo schedule of this period; write the start times to `start`. Return whether
    one was found with at most `budget` placements.

    arrays: `rings.TimedArrays`. noise: share of the period by which priorities change at random.
    """
    tails, heads, seconds, tokens = arrays.tails, arrays.heads, arrays.seconds, arrays.tokens
    out_first, out_arcs = arrays.out_first, arrays.out_arcs
    in_first, in_arcs = arrays.in_first, arrays.in_arcs
    lane, lane_first, occupancy = arrays.lane, arrays.lane_first, arrays.occupancy
    n = len(lane)
    small = SMALL * period
    early = np.empty(n)
    height = np.empty(n)
    queue = np.empty(n, np.int64)
    waiting = np.empty(n, np.bool_)
    passes = np.empty(n, np.int64)
    scratch = (queue, waiting, passes)
    if not longest_paths(
        out_first, out_arcs, heads, seconds, tokens, period, False, early, *scratch
    ):
        return False
    longest_paths(in_first, in_arcs, tails, seconds, tokens, period, True, height, *scratch)
    rank = np.empty(n)
    for u in range(n):
        rank[u] = height[u]
        if noise > 0.0:
            rank[u] += noise * period * random_below(random, 1 << 20) / (1 << 20)
        start[u] = NONE
    falling = np.argsort(-rank)
    place = np.empty(n, np.int64)
    for k in range(n):
        place[falling[k]] = k
    top = 0  # all nodes before this position in `falling` have a start
    members = np.empty(n, np.int64)
    count = np.zeros(len(lane_first) - 1, np.int64)
    phase = np.zeros(n)
    left = n
    while left > 0:
        if budget <= 0:
            return False
        budget -= 1
        while start[falling[top]] != NONE:
            top += 1
        u = falling[top]
        earliest = NONE
        for k in range(in_first[u], in_first[u + 1]):
            a = in_arcs[k]
            if tails[a] != u and start[tails[a]] != NONE:
                earliest = max(earliest, start[tails[a]] + seconds[a] - tokens[a] * period)
        latest = -NONE
        for k in range(out_first[u], out_first[u + 1]):
            a = out_arcs[k]
            if heads[a] != u and start[heads[a]] != NONE:
                latest = min(latest, start[heads[a]] - seconds[a] + tokens[a] * period)
        on = lane[u]
        row = members[lane_first[on] : lane_first[on + 1]]
        if earliest == NONE and latest != -NONE:
            earliest = latest - period + small
            at = _backward_gap(row, count[on], phase, occupancy, occupancy[u], latest, period)
        else:
            if earliest == NONE:
                earliest = early[u]
            at = _forward_gap(row, count[on], phase, occupancy, occupancy[u], earliest, period)
        if at == NONE:
            at = earliest
            point = at % period
            k = 0
            while k < count[on]:
                v = row[k]
                ahead = (phase[v] - point) % period
                inside = ahead < occupancy[u] - small or period - ahead < occupancy[v] - small
                if inside:
                    count[on] = _take_out(row, count[on], v)
                    start[v] = NONE
                    top = min(top, place[v])
                    left += 1
                else:
                    k += 1
        start[u] = at
        phase[u] = at % period
        count[on] = _place_in(row, count[on], phase, u, phase[u])
        left -= 1
        for k in range(out_first[u], out_first[u + 1]):
            a = out_arcs[k]
            v = heads[a]
            if v == u or start[v] == NONE:
                continue
            if start[v] < at + seconds[a] - tokens[a] * period - small:
                other = members[lane_first[lane[v]] : lane_first[lane[v] + 1]]
                count[lane[v]] = _take_out(other, count[lane[v]], v)
                start[v] = NONE
                top = min(top, place[v])
                left += 1
        for k in range(in_first[u], in_first[u + 1]):
            a = in_arcs[k]
            v = tails[a]
            if v == u or start[v] == NONE:
                continue
            if at < start[v] + seconds[a] - tokens[a] * period - small:
                other = members[lane_first[lane[v]] : lane_first[lane[v] + 1]]
                count[lane[v]] = _take_out(other, count[lane[v]], v)
                start[v] = NONE
                top = min(top, place[v])
                left += 1
    return True
