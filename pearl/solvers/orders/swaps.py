"""Compiled tabu search over lane orders: swaps of neighbours on the critical cycle.

A lane is a ring of arcs. The ring arc of node u is arc `first[u]`; it leads to the next node of the
lane after `occupancy` seconds. The tokens of a ring add up to 1. Swapping neighbours a and b turns
p → a → b → q with tokens α, β, γ into p → b → a → q with tokens α + β, −β, β + γ, so that every
start that both orders allow keeps its turn. A swap of the same two nodes undoes a swap.
"""

from __future__ import annotations

import math

import numpy as np

from pearl.graph.compiled_policy import improve_policy, start_policy
from pearl.solvers.orders.modulo import random_below
from pearl_devices.primitives.code_cache import compiled

_native = compiled(nogil=True, error_model="numpy")

TENURE = 12
"""Number of moves for which a swap must not be undone, plus up to half as many at random
(assumed)."""

CANDIDATES = 12
"""Number of swaps of one critical cycle that are evaluated, chosen at random (assumed)."""

STUCK = 60
"""Moves without a better period after which the search returns to the best orders (assumed)."""

KICKS = 3
"""Random swaps on critical cycles after such a return (assumed)."""


@_native
def swap(first, heads, tokens, previous, a):
    """Swap a node of a ring with the next one."""
    arc = first[a]
    b = heads[arc]
    p = previous[a]
    q = heads[first[b]]
    between = tokens[arc]
    if q == a:
        tokens[arc] += 1
        tokens[first[b]] -= 1
        return
    tokens[first[p]] += between
    heads[first[p]] = b
    tokens[arc] = between + tokens[first[b]]
    heads[arc] = q
    tokens[first[b]] = -between
    heads[first[b]] = a
    previous[b] = p
    previous[a] = b
    previous[q] = a


@_native
def unswap(first, heads, tokens, previous, a, b):
    """Undo `swap` of a, where b was the next node."""
    if heads[first[a]] == b and previous[a] == b:
        tokens[first[a]] -= 1
        tokens[first[b]] += 1
    else:
        swap(first, heads, tokens, previous, b)


@_native
def improve_orders(
    first, heads, seconds, tokens, previous, unit, valuations, below, random, best_heads,
    best_tokens,
):  # fmt: skip
    """Search for rings of smaller period and write them to best_heads and best_tokens (node →
    next node, tokens of its ring arc). Return their period and the remaining evaluations.

    unit: node → number of its task, whose firings keep their order. valuations: largest number of
    policy iterations. below: the search ends at this period. The arrays of arcs are changed.
    """
    n = len(previous)
    policy = np.full(n, -1)
    ratio = np.zeros(n)
    value = np.zeros(n)
    state = np.zeros(n, np.int64)
    path = np.zeros(n, np.int64)
    cycle = np.zeros(n, np.int64)
    kept = np.zeros(n, np.int64)
    moves = np.zeros(n, np.int64)
    size = 1 << 12
    until = np.zeros(size, np.int64)
    start_policy(first, seconds, tokens, policy)
    best = math.inf
    since = 0
    turn = 0
    while valuations > 0:
        valuations -= 1
        now, length = improve_policy(
            first, heads, seconds, tokens, policy, ratio, value, state, path, cycle
        )
        turn += 1
        since += 1
        if now < best * (1 - 1e-12):
            best = now
            since = 0
            for u in range(n):
                best_heads[u] = heads[first[u]]
                best_tokens[u] = tokens[first[u]]
            if best <= below:
                break
        count = 0
        for i in range(length):
            u = cycle[i]
            v = heads[first[u]]
            if policy[u] == first[u] and v != u and unit[u] != unit[v]:
                moves[count] = u
                count += 1
        if since > STUCK or (count == 0 and now > best):
            for u in range(n):
                heads[first[u]] = best_heads[u]
                tokens[first[u]] = best_tokens[u]
                previous[best_heads[u]] = u
                policy[u] = -1
            start_policy(first, seconds, tokens, policy)
            now, length = improve_policy(
                first, heads, seconds, tokens, policy, ratio, value, state, path, cycle
            )
            valuations -= 1
            for _ in range(KICKS):
                u = cycle[random_below(random, length)]
                v = heads[first[u]]
                if v != u and unit[u] != unit[v]:
                    swap(first, heads, tokens, previous, u)
                    for x in range(n):
                        kept[x] = policy[x]
                    shaken, length = improve_policy(
                        first, heads, seconds, tokens, policy, ratio, value, state, path, cycle
                    )
                    valuations -= 1
                    if shaken == math.inf:
                        unswap(first, heads, tokens, previous, u, v)
                        for x in range(n):
                            policy[x] = kept[x]
                        break
            since = 0
            continue
        if count == 0:
            break  # no lane arc is on the critical cycle: the period is the least
        for i in range(min(count, CANDIDATES)):
            k = i + random_below(random, count - i)
            moves[i], moves[k] = moves[k], moves[i]
        count = min(count, CANDIDATES)
        for x in range(n):
            kept[x] = policy[x]
        chosen = -1
        least = math.inf
        for i in range(count):
            u = moves[i]
            v = heads[first[u]]
            swap(first, heads, tokens, previous, u)
            found, _ = improve_policy(
                first, heads, seconds, tokens, policy, ratio, value, state, path, cycle
            )
            valuations -= 1
            unswap(first, heads, tokens, previous, u, v)
            for x in range(n):
                policy[x] = kept[x]
            held = until[(u * n + v) % size] > turn
            if found < least and (not held or found < best * (1 - 1e-12)):
                least = found
                chosen = u
        if chosen < 0:
            since = STUCK + 1
            if best == math.inf:
                break
            continue
        v = heads[first[chosen]]
        until[(v * n + chosen) % size] = turn + TENURE + random_below(random, TENURE // 2)
        swap(first, heads, tokens, previous, chosen)
    return best, valuations
