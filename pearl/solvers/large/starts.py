"""First assignments of a search of assignments."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pearl.solvers.model.tables import LANE, Floats, Ints, Places, Scratch, Tables, scratch_of
from pearl.solvers.model.traits import EVERY

SETS = 12
"""Largest number of lanes for which all orders of lanes are tried: 2 to this power sets."""

SAMPLES = 60
"""Number of orders that are tried for more lanes (assumed)."""

MENDING, MENDED = 4_000, 2e-4
"""Steps of annealing, besides 20 for each class, until an assignment breaks no rule, and their
temperature as a share of the value (assumed)."""

BISECTIONS = 30
"""Number of bisections of the range of the largest load."""


def contiguous(b: Places, random: np.random.Generator) -> Iterator[Ints]:
    """Yield assignments of contiguous rows of classes in program order, one row per lane, with the
    least largest load.

    Dynamic programming over sets of lanes finds them; with more than SETS lanes, it takes some
    subsets of SETS lanes. Nothing is yielded if no such rows fit into memory.
    """
    from pearl.solvers.large.loop_moves import cut

    t = b.t
    order = np.argsort([min(members) for members in b.space.classes], kind="stable")
    seconds = b.t.seconds[order]
    able = np.flatnonzero(np.isfinite(seconds).all(axis=0))
    if len(able) == 0:
        return
    enter, leave = _copies(t, order)
    rounds = 1 if len(able) <= SETS else SAMPLES // 10
    for _ in range(rounds):
        lanes = able if len(able) <= SETS else np.sort(random.permutation(able)[:SETS])
        sums = np.zeros((len(lanes), len(order) + 1))
        np.cumsum(seconds[:, lanes].T, axis=1, out=sums[:, 1:])
        room = np.concatenate([[0.0], np.cumsum(t.memory[order])])
        capacity = t.capacity[t.device[lanes]] / np.bincount(t.device[lanes])[t.device[lanes]]
        ends, last = (np.zeros(1 << len(lanes), np.int64) for _ in range(2))
        tables = sums, room, capacity, enter[lanes], leave[lanes]
        low, high = 0.0, float(sums[:, -1].max() + enter.max() + leave.max()) * 2
        if cut(*tables, high, ends, last) < len(order):
            continue
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if cut(*tables, middle, ends, last) == len(order):
                high = middle
            else:
                low = middle
        cut(*tables, high, ends, last)
        place = np.zeros(len(order), np.int64)
        chosen, end = (1 << len(lanes)) - 1, len(order)
        while chosen:
            k = int(last[chosen])
            chosen ^= 1 << k
            place[order[ends[chosen] : end]] = lanes[k]
            end = int(ends[chosen])
        yield place


def _copies(t: Tables, order: Ints) -> tuple[Floats, Floats]:
    """Return the seconds that a cut before each position of the order costs the lanes after and
    before it, if lanes pay for copies over the links to the host."""
    n, lanes = len(order), len(t.device)
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    crossing, messages = np.zeros(n + 1), np.zeros(n + 1)
    for p in range(len(t.task_unit)):
        here = position[t.item[t.task_unit[p]]]
        edges = t.task_edges[t.task_first[p] : t.task_first[p + 1]]
        for e in edges:
            there = position[t.item[t.edge_unit[e]]]
            low, high = sorted((int(here), int(there)))
            if high - low <= n // 2:
                crossing[low + 1 : high + 1] += t.edge_bytes[e] * t.task_messages[p]
                messages[low + 1 : high + 1] += t.task_messages[p]
    cost = np.zeros((lanes, n + 1))
    for k in range(lanes):
        link = t.up[t.device[k]]
        if link >= 0 and t.paid[link] == LANE:
            cost[k] = crossing * t.per_byte[link] + messages * t.per_message[link]
    return cost, cost


def spread(b: Places, devices: Ints) -> Ints:
    """Return the lanes of classes on given devices: in program order, each class takes the least
    loaded lane of its device."""
    lanes: dict[int, list[int]] = {}
    for k, d in enumerate(b.t.device):
        lanes.setdefault(int(d), []).append(k)
    load = np.zeros(len(b.lanes))
    place = np.zeros(len(devices), np.int64)
    for c, d in enumerate(devices):
        place[c] = min(lanes[int(d)], key=lambda k: load[k])
        load[place[c]] += b.t.seconds[c, place[c]]
    return place


def greedy(b: Places) -> Ints | None:
    """Place the largest items first, each on the least loaded lane; None if memory is too small.
    Copies do not count."""
    t, load = b.t, np.zeros(len(b.lanes))
    free = t.capacity.copy()
    place = np.zeros(len(t.seconds), np.int64)
    quickest = t.seconds.min(axis=1)
    tight = t.memory / max(float(t.memory.max(initial=0.0)), 1e-300)
    fits = np.isfinite(t.capacity).any() and t.memory.sum() > 0.5 * t.capacity.sum()
    for c in np.lexsort((-quickest, -tight)) if fits else np.argsort(-quickest, kind="stable"):
        after = np.where(free[t.device] >= t.memory[c], load + t.seconds[c], math.inf)
        k = int(after.argmin())
        if after[k] == math.inf:
            return None
        place[c] = k
        load[k] += t.seconds[c, k]
        free[t.device[k]] -= t.memory[c]
    return place


def mended(b: Places, place: Ints | None) -> Ints | None:
    """Return an assignment, changed by cold annealing if it breaks rules that couple classes; None
    if it still breaks one."""
    from pearl.solvers.large.loop_moves import anneal
    from pearl.solvers.large.timed_native import excess

    if place is None:
        return None
    s, best = scratch_of(b.t), place.copy()
    if excess(b.t, place, s) > 0:
        random = np.array([MENDING], np.uint64)
        steps = MENDING + 20 * len(place)
        if anneal(b.t, place.copy(), best, s, random, steps, MENDED, MENDED) > 0:
            return None
    return best


def few(b: Places) -> bool:
    """Return whether there are at most EVERY assignments. Hardly any of them has a bound below the
    least period, so that the orders of these can all be searched."""
    count: int = len(_able(b)) ** len(b.space.classes)
    return 0 < count <= EVERY


def every(b: Places, s: Scratch) -> Iterator[tuple[float, Ints]]:
    """Yield the bound in seconds and the lanes of every assignment, the least bound first. The
    bound of a forbidden assignment is infinite."""
    from pearl.solvers.large.loop_moves import all_bounds

    able, items = _able(b), len(b.t.seconds)
    bounds = np.empty(len(able) ** items)
    all_bounds(b.t, able, s, bounds)
    for k in np.argsort(bounds, kind="stable"):
        yield float(bounds[k]), able[k // len(able) ** np.arange(items) % len(able)]


def _able(b: Places) -> Ints:
    """Return the lanes that some class may be on."""
    return np.flatnonzero(np.isfinite(b.t.seconds).any(axis=0))
