"""Compiled moves of tabu search, by heads and tails of the firings; see `tabu`."""

from __future__ import annotations

import numpy as np

from pearl.solvers.orders.modulo import random_below
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")


@_native
def _order(out, target, into, behind, ahead, order, waits):
    """Write a topological order of the firings; return how many could be ordered."""
    n = len(order)
    done = 0
    for v in range(n):
        waits[v] = into[v + 1] - into[v] + (1 if ahead[v] >= 0 else 0)
        if waits[v] == 0:
            order[done] = v
            done += 1
    i = 0
    while i < done:
        v = order[i]
        i += 1
        for k in range(out[v], out[v + 1]):
            w = target[k]
            waits[w] -= 1
            if waits[w] == 0:
                order[done] = w
                done += 1
        w = behind[v]
        if w >= 0:
            waits[w] -= 1
            if waits[w] == 0:
                order[done] = w
                done += 1
    return done


@_native
def _sent(c, v, d, device, way, size, payer, extra, charge):
    """Return the seconds of the copies for which the lane of firing v on device d pays as their
    sender; charge: add those that its readers pay to `extra`.

    c: `tabu.PaidCopies`. size, payer: scratch, one cell per device, -1 in `size`.
    """
    own = 0.0
    for p in range(c.sender_first[v], c.sender_first[v + 1]):
        upload = -1.0
        for k in range(c.read_first[p], c.read_first[p + 1]):
            w = c.reader[k]
            b = device[way[w]]
            if b == d:
                continue
            if b == c.host or c.second[d, b] >= 0:
                upload = max(upload, c.read_bytes[k])
            payer[b] = w if size[b] < 0.0 else min(payer[b], w)
            size[b] = max(size[b], c.read_bytes[k])
        if upload >= 0.0 and c.paid[c.up[d]]:
            own += c.per_message[c.up[d]] + upload * c.per_byte[c.up[d]]
        for b in range(len(size)):
            if size[b] < 0.0:
                continue
            two = c.second[d, b] >= 0
            link = c.second[d, b] if two else c.hop[d, b]
            if c.paid[link] and (b != c.host or d == c.host):
                seconds = c.per_message[link] + size[b] * c.per_byte[link]
                if not two and d != c.host:
                    own += seconds
                elif charge:
                    extra[payer[b]] += seconds
            size[b] = -1.0
    return own


@_native
def _received(c, v, d, device, way, into, source, source_bytes):
    """Return the seconds of the copies for which the lane of firing v on device d pays at most as
    their reader."""
    own = 0.0
    for k in range(into[v], into[v + 1]):
        a = device[way[source[k]]]
        if a != d and (c.second[a, d] >= 0 or a == c.host):
            link = c.second[a, d] if c.second[a, d] >= 0 else c.hop[a, d]
            if c.paid[link]:
                own += c.per_message[link] + source_bytes[k] * c.per_byte[link]
    return own


@_native
def _heads(
    order, into, source, size, device, latency, occupancy, fixed, per_byte, way, extra, ahead, head
):
    for i in range(len(order)):
        v = order[i]
        d = device[way[v]]
        ready = 0.0
        for k in range(into[v], into[v + 1]):
            s = source[k]
            c = device[way[s]]
            t = head[s] + latency[way[s]]
            if c != d:
                t += fixed[c, d] + size[k] * per_byte[c, d]
            if t > ready:
                ready = t
        a = ahead[v]
        if a >= 0 and head[a] + occupancy[way[a]] + extra[a] > ready:
            ready = head[a] + occupancy[way[a]] + extra[a]
        head[v] = ready


@_native
def _tails(
    order, out, target, size, device, latency, occupancy, fixed, per_byte, way, extra, behind, tail
):
    """Write the longest time from each firing's start to the end of the iteration."""
    for i in range(len(order) - 1, -1, -1):
        v = order[i]
        d = device[way[v]]
        lasts = latency[way[v]]
        longest = lasts
        for k in range(out[v], out[v + 1]):
            s = target[k]
            c = device[way[s]]
            t = lasts + tail[s]
            if c != d:
                t += fixed[d, c] + size[k] * per_byte[d, c]
            if t > longest:
                longest = t
        b = behind[v]
        if b >= 0 and occupancy[way[v]] + extra[v] + tail[b] > longest:
            longest = occupancy[way[v]] + extra[v] + tail[b]
        tail[v] = longest


@_native
def _take_out(v, ahead, behind):
    a, b = ahead[v], behind[v]
    if a >= 0:
        behind[a] = b
    if b >= 0:
        ahead[b] = a
    ahead[v] = behind[v] = -1


@_native
def _put_in(v, a, b, ahead, behind):
    ahead[v], behind[v] = a, b
    if a >= 0:
        behind[a] = v
    if b >= 0:
        ahead[b] = v


@_native
def search(
    shop, copies, way, ahead, behind, best_way, best_ahead, best_behind, best_start, value, tabu,
    state, moves, stale, enough,
):  # fmt: skip
    """Make `moves` moves from the places in `way`, `ahead` and `behind`, which are updated.

    shop: `tabu.JobShopArrays`. copies: `tabu.PaidCopies`. value: best makespan, moves since then.
    tabu: (firings, lanes), the move until which a firing must not return to a lane. state: (2,)
    uint64, random state and moves made.
    """
    (
        first, lane, device, latency, occupancy, into, source, source_bytes, out, target,
        target_bytes, fixed, per_byte, _,
    ) = shop  # fmt: skip
    n = len(way)
    order, waits = np.empty(n, np.int64), np.empty(n, np.int64)
    head, tail = np.zeros(n), np.zeros(n)
    bare_head, bare_tail = np.zeros(n), np.zeros(n)
    path = np.empty(n, np.int64)
    front = np.full(tabu.shape[1], -1, np.int64)
    extra, used = np.zeros(n), np.zeros(len(copies.capacity))
    size, payer = np.full(len(copies.capacity), -1.0), np.zeros(len(copies.capacity), np.int64)
    shaken = 0
    for _ in range(moves):
        if _order(out, target, into, behind, ahead, order, waits) < n:
            # rounding made a forbidden move look allowed, and it closed a cycle
            way[:], ahead[:], behind[:] = best_way, best_ahead, best_behind
            tabu[:] = 0
            continue
        extra[:] = 0.0
        used[:] = 0.0
        for v in range(n):
            used[device[way[v]]] += copies.memory[v]
            extra[v] += _sent(copies, v, device[way[v]], device, way, size, payer, extra, True)
        _heads(
            order, into, source, source_bytes, device, latency, occupancy, fixed, per_byte, way,
            extra, ahead, head,
        )  # fmt: skip
        _tails(
            order, out, target, target_bytes, device, latency, occupancy, fixed, per_byte, way,
            extra, behind, tail,
        )  # fmt: skip
        makespan = 0.0
        for v in range(n):
            makespan = max(makespan, head[v] + latency[way[v]])
        small = 1e-9 * makespan
        if makespan < value[0] - small:
            value[0], value[1] = makespan, 0.0
            best_way[:], best_ahead[:], best_behind[:] = way, ahead, behind
            best_start[:] = head
            if makespan <= enough:
                return
        else:
            value[1] += 1.0
            if value[1] >= stale:
                value[1] = 0.0
                way[:], ahead[:], behind[:] = best_way, best_ahead, best_behind
                tabu[:] = 0
                shaken = 3 + random_below(state, 10)
                continue
        state[1] += np.uint64(1)
        now = np.int64(state[1])
        # follow one critical path; ties are random
        front[:] = -1
        for v in range(n):
            if ahead[v] < 0:
                front[lane[way[v]]] = v
        length, here, seen = 0, -1, 0
        for v in range(n):
            if head[v] <= small and tail[v] >= makespan - small:
                seen += 1
                if random_below(state, seen) == 0:
                    here = v
        while here >= 0 and length < n:
            path[length] = here
            length += 1
            v, here, seen = here, -1, 0
            d = device[way[v]]
            for k in range(out[v], out[v + 1]):
                s = target[k]
                c = device[way[s]]
                t = head[v] + latency[way[v]]
                if c != d:
                    t += fixed[d, c] + target_bytes[k] * per_byte[d, c]
                if abs(t - head[s]) <= small and head[s] + tail[s] >= makespan - small:
                    seen += 1
                    if random_below(state, seen) == 0:
                        here = s
            b = behind[v]
            if (
                b >= 0
                and abs(head[v] + occupancy[way[v]] + extra[v] - head[b]) <= small
                and head[b] + tail[b] >= makespan - small
            ):
                seen += 1
                if random_below(state, seen) == 0:
                    here = b
        least = np.inf
        move_v, move_w, move_a, move_b, ties = -1, -1, -1, -1, 0
        old_v, old_w, old_a, old_b, old_ties = -1, -1, -1, -1, 0
        for i in range(length):
            v = path[i]
            if shaken > 0 and random_below(state, length) > 2:
                continue
            mine, a0, b0 = way[v], ahead[v], behind[v]
            if first[v + 1] - first[v] == 1 and a0 < 0 and b0 < 0:
                continue
            home = lane[mine]
            _take_out(v, ahead, behind)
            if a0 < 0:
                front[home] = b0
            # the old order is still valid without v's positions in its lane
            bare_head[:] = head
            bare_tail[:] = tail
            _heads(
                order, into, source, source_bytes, device, latency, occupancy, fixed, per_byte, way,
                extra, ahead, bare_head,
            )  # fmt: skip
            _tails(
                order, out, target, target_bytes, device, latency, occupancy, fixed, per_byte, way,
                extra, behind, bare_tail,
            )  # fmt: skip
            own_head, own_tail, own_latency = bare_head[v], bare_tail[v], latency[mine]
            for w in range(first[v], first[v + 1]):
                d, k = device[w], lane[w]
                if d != device[mine] and used[d] + copies.memory[v] > copies.capacity[d]:
                    continue
                busy = occupancy[w] + _sent(copies, v, d, device, way, size, payer, extra, False)
                busy += _received(copies, v, d, device, way, into, source, source_bytes)
                ready = 0.0
                for j in range(into[v], into[v + 1]):
                    s = source[j]
                    c = device[way[s]]
                    t = bare_head[s] + latency[way[s]]
                    if c != d:
                        t += fixed[c, d] + source_bytes[j] * per_byte[c, d]
                    ready = max(ready, t)
                rest = latency[w]
                for j in range(out[v], out[v + 1]):
                    s = target[j]
                    c = device[way[s]]
                    t = latency[w] + bare_tail[s]
                    if c != d:
                        t += fixed[d, c] + target_bytes[j] * per_byte[d, c]
                    rest = max(rest, t)
                a, b = -1, front[k]
                while True:
                    after = a < 0 or (
                        bare_head[a] < own_head + own_latency - small
                        or bare_tail[a] + own_latency > own_tail + small
                    )
                    if not after:
                        break
                    before = b < 0 or (
                        bare_head[b] + occupancy[way[b]] + extra[b] > own_head + small
                        or bare_tail[b] < occupancy[way[b]] + extra[b] + own_tail - small
                    )
                    same = w == mine and a == a0 and b == b0
                    if before and not same:
                        begin = ready
                        if a >= 0:
                            begin = max(begin, bare_head[a] + occupancy[way[a]] + extra[a])
                        left = rest
                        if b >= 0:
                            left = max(left, busy + bare_tail[b])
                        longest = begin + left
                        if tabu[v, k] <= now or longest < value[0] - small:
                            if longest < least - small:
                                least, ties = longest, 0
                            if longest <= least + small:
                                ties += 1
                                if random_below(state, ties) == 0:
                                    move_v, move_w, move_a, move_b = v, w, a, b
                        else:
                            old_ties += 1
                            if random_below(state, old_ties) == 0:
                                old_v, old_w, old_a, old_b = v, w, a, b
                    if b < 0:
                        break
                    a, b = b, behind[b]
            _put_in(v, a0, b0, ahead, behind)
            if a0 < 0:
                front[home] = v
        if move_v < 0:
            move_v, move_w, move_a, move_b = old_v, old_w, old_a, old_b
        if shaken > 0:
            shaken -= 1
        if move_v < 0:
            if length == 0:
                return
            value[1] += 50.0
            continue
        v = move_v
        ways = first[v + 1] - first[v]
        tabu[v, lane[way[v]]] = now + length // 2 + ways + random_below(state, 1 + length // 2)
        _take_out(v, ahead, behind)
        way[v] = move_w
        _put_in(v, move_a, move_b, ahead, behind)
