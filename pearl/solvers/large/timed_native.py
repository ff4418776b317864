"""Timed graphs of assignments as arrays, compiled: `pearl.planning.timing` without pair terms.

An assignment is `place`: item (class) → lane. Its links are lanes with numbers after those of
devices. Imported on use.
"""

from __future__ import annotations

import numpy as np

from pearl.graph.compiled_policy import improve_policy, start_policy
from pearl.solvers.model.tables import LANE, LINK
from pearl.solvers.orders.rings import TimedArrays
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")

LATE = 20.0
"""Cost of a period of twice the longest one, as a multiple of its energy (assumed)."""


@_native
def copies(t, place, latency, occupancy, load, size, payer, reached, sent_bytes):
    """Write the seconds of each firing of each unit until its result and on its lane, with lane
    terms and the copies that its lane pays for, and the load of each lane and link in seconds.

    size, payer, reached: scratch, one cell per device. sent_bytes: scratch, one cell per producer
        and
    device: the largest message to that device, -1 for none.
    """
    lanes = len(t.device)
    load[:] = 0.0
    for u in range(len(occupancy)):
        latency[u] = t.latency[u, place[t.item[u]]]
        occupancy[u] = t.occupancy[u, place[t.item[u]]]
    for k in range(len(t.term_s)):
        u = t.term_unit[k]
        if (place[t.item[u]] == place[t.item[t.term_other[k]]]) == t.term_shared[k]:
            latency[u] += t.term_s[k]
            occupancy[u] += t.term_s[k]
    if len(t.term_s) > 0:
        for u in range(len(occupancy)):
            latency[u], occupancy[u] = max(0.0, latency[u]), max(0.0, occupancy[u])
    for p in range(len(t.task_unit)):
        sent_bytes[p, :] = -1.0
        u = t.task_unit[p]
        a = t.device[place[t.item[u]]]
        count = 0
        for k in range(t.task_first[p], t.task_first[p + 1]):
            e = t.task_edges[k]
            v = t.edge_unit[e]
            b = t.device[place[t.item[v]]]
            if b == a:
                continue
            if sent_bytes[p, b] < 0.0:
                size[b], payer[b] = t.edge_bytes[e], v
                reached[count] = b
                count += 1
            size[b] = max(size[b], t.edge_bytes[e])
            payer[b] = min(payer[b], v)
            sent_bytes[p, b] = size[b]
        upload = -1.0
        for k in range(count):
            b = reached[k]
            if t.second[a, b] >= 0 or b == t.host:
                upload = max(upload, size[b])
        messages = t.task_messages[p]
        if upload >= 0.0:
            sent_bytes[p, t.host] = upload
            link = t.up[a]
            busy = messages * (t.per_message[link] + upload * t.per_byte[link])
            if t.paid[link] == LINK:
                load[lanes + link] += busy
            elif t.paid[link] == LANE:
                occupancy[u] += busy / t.firings[u]
        for k in range(count):
            b = reached[k]
            if b == t.host and a != t.host:
                continue
            link = t.second[a, b] if t.second[a, b] >= 0 else t.hop[a, b]
            busy = messages * (t.per_message[link] + size[b] * t.per_byte[link])
            if t.paid[link] == LINK:
                load[lanes + link] += busy
            elif t.paid[link] == LANE:
                if t.second[a, b] >= 0 or a == t.host:
                    occupancy[payer[b]] += busy / t.firings[payer[b]]
                else:
                    occupancy[u] += busy / t.firings[u]
    for u in range(len(occupancy)):
        load[place[t.item[u]]] += t.firings[u] * occupancy[u]


@_native
def weigh(t, place, latency, occupancy, seconds):
    """Write the seconds of the arcs of the expansion, of the order of a task's firings, and of each
    node to itself. An arc between nodes of a lane takes at least the occupancy of the first."""
    for k in range(len(t.arc_edge)):
        u = t.node_unit[t.arc_tail[k]]
        e = t.arc_edge[k]
        if e < 0:
            seconds[k] = occupancy[u]
            continue
        v = t.edge_unit[e]
        lane, there = place[t.item[u]], place[t.item[v]]
        a, b = t.device[lane], t.device[there]
        w = latency[u]
        if a != b:
            w += t.wait[a, b] + t.edge_bytes[e] * t.byte_wait[a, b]
        elif lane == there and w > 0.0:
            w = max(w, occupancy[u])
        seconds[k] = w


@_native
def bound_of(t, place, s):
    """Return a lower bound on the period of an assignment under all orders: the larger of its
    largest load and its maximum cycle ratio, by policy iteration from the last policy.

    s: `tables.Scratch`.
    """
    copies(t, place, s.latency, s.occupancy, s.load, s.size, s.payer, s.reached, s.sent)
    most = 0.0
    for k in range(len(s.load)):
        most = max(most, s.load[k])
    weigh(t, place, s.latency, s.occupancy, s.seconds)
    start_policy(t.arc_first, s.seconds, t.arc_tokens, s.policy)
    ratio, length = improve_policy(
        t.arc_first, t.arc_head, s.seconds, t.arc_tokens, s.policy, s.ratio, s.value, s.state,
        s.path, s.cycle,
    )  # fmt: skip
    s.length[0] = length
    return max(most, ratio), ratio


@_native
def excess(t, place, s):
    """Return by how much an assignment breaks the rules that couple classes; 0 if it keeps them."""
    return crowding(t, place, s) + clashes(t, place)


@_native
def clashes(t, place):
    """Return the number of pairs of classes that share a lane and must not."""
    ends = 0
    for c in range(len(place)):
        for e in range(t.apart_first[c], t.apart_first[c + 1]):
            ends += place[t.apart[e]] == place[c]
    return ends / 2


@_native
def crowding(t, place, s):
    """Return by how much an assignment exceeds memory of devices and of units, width, and numbers
    of lanes."""
    over, squares, lanes = 0.0, 0.0, 0
    s.used[:] = 0.0
    s.kept[:] = 0.0
    s.held[:] = 0
    for c in range(len(place)):
        k = place[c]
        s.used[t.device[k]] += t.memory[c]
        s.kept[k] += t.unit_bytes[c, k]
        s.held[k] += 1
    for d in range(len(s.used)):
        if s.used[d] > 0.0 and s.used[d] > t.capacity[d]:
            over += 1e-6 + (s.used[d] - t.capacity[d]) / s.used[d]
        s.used[d] = 0.0
        s.number[d] = 0
    for k in range(len(s.held)):
        if s.held[k] > 0:
            d = t.device[k]
            lanes += 1
            squares += (s.held[k] / len(place)) ** 2
            s.used[d] += t.width[k]
            s.number[d] += 1
            if s.kept[k] > t.unit_capacity[d]:
                over += 1e-6 + (s.kept[k] - t.unit_capacity[d]) / s.kept[k]
    surplus = max(0.0, lanes - t.most_lanes)
    for d in range(len(s.used)):
        over += max(0.0, s.used[d] / t.room[d] - 1.0)
        surplus += max(0, s.number[d] - t.most[d])
    # With too many lanes, classes gathered on some of them are better.
    return over + surplus * (2.0 - squares)


@_native
def cost_of(t, place, period):
    """Return the cost of a period in seconds, or in joules of an iteration: the period at which
    the power is within its limit, and its energy. Copies take no energy here. A period beyond the
    longest one costs more energy than it takes."""
    if t.power_w == np.inf and not t.frugal:
        return period
    joules, idle = _energy(t, place)
    if t.power_w < np.inf and joules + idle * period > t.power_w * period:
        period = joules / (t.power_w - idle) if t.power_w > idle else np.inf
    if not t.frugal:
        return period
    late = _late_w(t, joules) * (period - t.longest_s) if period > t.longest_s else 0.0
    return joules + idle * period + late


@_native
def period_at(t, place, cost):
    """Return the longest period at which an assignment costs at most `cost`."""
    if not t.frugal:
        return cost
    joules, idle = _energy(t, place)
    intime = joules + idle * t.longest_s
    if cost > intime:
        return t.longest_s + (cost - intime) / (idle + _late_w(t, joules))
    return (cost - joules) / idle if idle > 0.0 else t.longest_s


@_native
def _late_w(t, joules):
    """Return the joules that each second beyond the longest period costs."""
    return LATE * joules / t.longest_s


@_native
def _energy(t, place):
    """Return the joules of an iteration above idling, and the power of idling."""
    joules, idle = 0.0, t.always_w
    on = np.zeros(len(t.idle_w), np.bool_)
    for c in range(len(place)):
        joules += t.joules[c, place[c]]
        d = t.device[place[c]]
        if not on[d]:
            on[d] = True
            idle += t.idle_w[d]
    return joules, idle


@_native
def timed_arrays(t, place, s):
    """Return the timed graph of an assignment as `rings.TimedArrays`, with transfers as nodes after
    those of the expansion, and for each transfer its producer and the device that it reaches."""
    copies(t, place, s.latency, s.occupancy, s.load, s.size, s.payer, s.reached, s.sent)
    weigh(t, place, s.latency, s.occupancy, s.seconds)
    lanes, devices, base = len(t.device), len(t.up), len(t.node_unit)
    producers = len(t.task_unit)
    extra, more = 0, 0
    for p in range(producers):
        for b in range(devices):
            if s.sent[p, b] >= 0.0:
                extra += t.task_messages[p]
                more += 3 * t.task_messages[p]
    most = len(t.arc_edge) + more
    for k in range(len(t.arc_edge)):
        if t.arc_edge[k] >= 0:
            most += 1
    tails = np.empty(most, np.int64)
    heads = np.empty(most, np.int64)
    seconds = np.empty(most)
    tokens = np.empty(most, np.int64)
    lane = np.empty(base + extra, np.int64)
    occupancy = np.empty(base + extra)
    unit = np.empty(base + extra, np.int64)
    transfer = np.empty((extra, 2), np.int64)
    for i in range(base):
        unit[i] = t.node_unit[i]
        lane[i] = place[t.item[unit[i]]]
        occupancy[i] = s.occupancy[unit[i]]
    n, count = base, 0
    node = np.empty(devices, np.int64)  # start node of a copy to a device, and seconds from there
    delay = np.empty(devices)
    for p in range(producers):
        u = t.task_unit[p]
        a = t.device[place[t.item[u]]]
        first = t.task_node[p]
        messages = t.task_messages[p]
        least_up = np.inf
        for k in range(t.task_first[p], t.task_first[p + 1]):
            e = t.task_edges[k]
            b = t.device[place[t.item[t.edge_unit[e]]]]
            if b != a and (t.second[a, b] >= 0 or b == t.host):
                least_up = min(least_up, t.edge_bytes[e])
        for turn in range(2):
            for b in range(devices):
                if s.sent[p, b] < 0.0:
                    continue
                two = t.second[a, b] >= 0
                if two != (turn == 1):
                    continue
                link = t.second[a, b] if two else t.hop[a, b]
                begin, wait = first, s.latency[u]
                if two:
                    up = t.hop[a, b]
                    begin = node[t.host]
                    wait = delay[t.host] + t.link_wait[up] + least_up * t.per_byte[up]
                if t.paid[link] != LINK:
                    node[b], delay[b] = begin, wait
                    continue
                node[b], delay[b] = n, 0.0
                busy = t.per_message[link] + s.sent[p, b] * t.per_byte[link]
                for f in range(messages):
                    i = n + f
                    lane[i], occupancy[i] = lanes + link, busy
                    unit[i] = len(t.item) + p * devices + b
                    transfer[i - base, 0], transfer[i - base, 1] = p, b
                    tails[count], heads[count] = begin + f, i
                    seconds[count], tokens[count] = wait, 0
                    count += 1
                    tails[count], heads[count] = i, n + (f + 1) % messages
                    seconds[count], tokens[count] = busy, int(f + 1 == messages)
                    count += 1
                n += messages
        for k in range(t.sent_first[p], t.sent_first[p + 1]):
            arc = t.sent_arcs[k]
            e = t.arc_edge[arc]
            v = t.edge_unit[e]
            b = t.device[place[t.item[v]]]
            if b == a:
                continue
            f = t.arc_tail[arc] - first
            link = t.second[a, b] if t.second[a, b] >= 0 else t.hop[a, b]
            tails[count], heads[count] = node[b] + f, t.arc_head[arc]
            seconds[count] = delay[b] + t.link_wait[link] + t.edge_bytes[e] * t.per_byte[link]
            tokens[count] = t.arc_tokens[arc]
            count += 1
            if t.second[a, b] >= 0 and t.edge_bytes[e] > least_up:
                tails[count], heads[count] = node[t.host] + f, t.arc_head[arc]
                whole = t.wait[a, b] + t.edge_bytes[e] * t.byte_wait[a, b]
                seconds[count], tokens[count] = delay[t.host] + whole, t.arc_tokens[arc]
                count += 1
    for k in range(len(t.arc_edge)):
        e = t.arc_edge[k]
        i = t.arc_tail[k]
        if e >= 0:
            v = t.edge_unit[e]
            if t.device[place[t.item[unit[i]]]] != t.device[place[t.item[v]]]:
                continue
        elif t.arc_head[k] == i and t.firings[unit[i]] > 1:
            continue  # separate arcs order the firings of a task
        tails[count], heads[count] = i, t.arc_head[k]
        seconds[count], tokens[count] = s.seconds[k], t.arc_tokens[k]
        count += 1
    tails, heads = tails[:count], heads[:count]
    out_first, out_arcs = _sorted_by(tails, n)
    in_first, in_arcs = _sorted_by(heads, n)
    lane_first = np.zeros(lanes + len(t.paid) + 1, np.int64)
    for i in range(n):
        lane_first[lane[i] + 1] += 1
    for k in range(len(lane_first) - 1):
        lane_first[k + 1] += lane_first[k]
    return TimedArrays(
        tails, heads, seconds[:count], tokens[:count], out_first, out_arcs, in_first, in_arcs,
        lane[:n], lane_first, occupancy[:n], unit[:n],
    ), transfer[: n - base]  # fmt: skip


@_native
def _sorted_by(keys, n):
    first = np.zeros(n + 1, np.int64)
    for k in keys:
        first[k + 1] += 1
    for u in range(n):
        first[u + 1] += first[u]
    place = first[:-1].copy()
    arcs = np.empty(len(keys), np.int64)
    for number in range(len(keys)):
        k = keys[number]
        arcs[place[k]] = number
        place[k] += 1
    return first, arcs
