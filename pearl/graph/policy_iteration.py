"""Howard's policy iteration for the maximum cycle ratio, over arrays of arcs.

The functions only index their arguments, so they run in Python over lists, and compiled by numba
over arrays, with the same bits. Python suits the small graphs of most plans: loading the compiler
takes longer than their whole solve.

Multichain form of Cochet-Terrasson, Cohen, Gaubert, McGettrick and Quadrat (1998): a policy picks
one arc out of every node. Each node has the ratio of the cycle that its policy leads to, and its
value relative to that cycle. Arcs to a higher ratio, then arcs of higher value, replace the
policy's arcs until none is left.
"""

from __future__ import annotations

import math
from typing import Any

ROUNDING = 1e-14
"""Relative difference below which two ratios or values count as equal."""

SPARE_ROUNDS = 100
"""Rounds at one ratio beyond one per node. Only rounding can keep values moving for longer."""


EAGER = 500
"""Number of nodes from which a round of improvement uses its own improvements at once, in backward
and forward order by turns. Otherwise a change moves one arc per round: 20,000 firings in one lane
took 20,000 rounds. From this number on, the error of a sum of so many values counts as rounding.
With fewer nodes, the choice among equal cycles is by the simple order."""


def sort_cyclic(
    tails: Any, heads: Any, first: Any, kept: Any, into: Any, before: Any, degree: Any, dead: Any
) -> int:
    """Write the arcs that lead to cycles, sorted by their tails, to `kept`; return their number.

    first: node → the first of these arcs, and their number. into, before, degree, dead: scratch,
    one cell for each node and one more, arc, node and node.
    """
    n, count = len(degree), 0
    for e in range(len(tails)):
        degree[tails[e]] += 1
        into[heads[e] + 1] += 1
    for u in range(n):
        into[u + 1] += into[u]
        first[u] = into[u]
        if degree[u] == 0:
            dead[count] = u
            count += 1
    for e in range(len(tails)):
        before[first[heads[e]]] = tails[e]
        first[heads[e]] += 1
    done = 0
    while done < count:
        for a in range(into[dead[done]], into[dead[done] + 1]):
            degree[before[a]] -= 1
            if degree[before[a]] == 0:
                dead[count] = before[a]
                count += 1
        done += 1
    for u in range(n + 1):
        first[u] = 0
    for e in range(len(tails)):
        if degree[tails[e]] > 0 and degree[heads[e]] > 0:
            first[tails[e] + 1] += 1
    for u in range(n):
        first[u + 1] += first[u]
        into[u] = first[u]
    for e in range(len(tails)):
        if degree[tails[e]] > 0 and degree[heads[e]] > 0:
            kept[into[tails[e]]] = e
            into[tails[e]] += 1
    return int(first[n])


def start_policy(first: Any, seconds: Any, tokens: Any, policy: Any) -> None:
    """Pick the arc of highest ratio out of each node that has no arc of the policy yet.

    first: node → its first arc, and the number of arcs. policy: node → arc; -1 if none is picked,
    and for nodes without arcs.
    """
    for u in range(len(policy)):
        if policy[u] >= 0:
            continue
        most = -math.inf
        for a in range(first[u], first[u + 1]):
            rate = seconds[a] / tokens[a] if tokens[a] > 0 else math.inf
            if rate > most:
                most = rate
                policy[u] = a


def improve_policy(
    first: Any,
    heads: Any,
    seconds: Any,
    tokens: Any,
    policy: Any,
    ratio: Any,
    value: Any,
    state: Any,
    path: Any,
    cycle: Any,
) -> tuple[float, int]:
    """Improve a policy until it is optimal. Return the maximum cycle ratio and the length of a
    cycle that attains it, whose nodes are written to `cycle`. The ratio is infinite for a cycle
    that takes time and has no token.

    Each arc must lead to a node from which a cycle can be reached.

    Arguments:
        first: node → its first arc; last, the number of arcs.
        heads, seconds, tokens: of each arc, sorted by the node it leaves.
        policy: node → arc, -1 for nodes without arcs; the start of the search and its end.
        ratio, value, state, path: scratch, one cell for each node.
        cycle: one cell for each node.
    """
    n = len(policy)
    longest = 0.0
    for a in range(first[n]):
        longest = max(longest, abs(seconds[a]))
    top = -math.inf
    left = n + SPARE_ROUNDS
    eager = n >= EAGER
    backward = False
    while True:
        backward = eager and not backward
        best = -math.inf
        length = 0
        for u in range(n):
            state[u] = 0  # 0 new, 1 on the path, 2 settled
        for begin in range(n):
            if policy[begin] < 0:
                continue
            size = 0
            u = begin
            while state[u] == 0:
                state[u] = 1
                path[size] = u
                size += 1
                u = heads[policy[u]]
            if state[u] == 1:
                k = size - 1
                while path[k] != u:
                    k -= 1
                # Neumaier's compensated sum: the ratio must not depend on where the cycle begins.
                total = 0.0
                lost = 0.0
                count = 0
                for i in range(k, size):
                    w = seconds[policy[path[i]]]
                    count += tokens[policy[path[i]]]
                    both = total + w
                    if abs(total) >= abs(w):
                        lost += (total - both) + w
                    else:
                        lost += (w - both) + total
                    total = both
                total += lost
                if count <= 0:
                    if total > 0 or count < 0:
                        for i in range(k, size):
                            cycle[i - k] = path[i]
                        return math.inf, size - k
                    ratio[u] = 0.0
                else:
                    ratio[u] = total / count
                if ratio[u] > best:
                    best = ratio[u]
                    length = size - k
                    for i in range(k, size):
                        cycle[i - k] = path[i]
                state[u] = 2
            for i in range(size - 1, -1, -1):
                x = path[i]
                if state[x] == 2:
                    continue
                a = policy[x]
                there = heads[a]
                ratio[x] = ratio[there]
                value[x] = seconds[a] - ratio[x] * tokens[a] + value[there]
                state[x] = 2
        if best > top:
            top = best
            left = n + SPARE_ROUNDS
        left -= 1
        changed = False
        for k in range(n):
            u = n - 1 - k if backward else k
            if policy[u] < 0:
                continue
            reach = ratio[u] + ROUNDING * abs(ratio[u])
            for a in range(first[u], first[u + 1]):
                if ratio[heads[a]] > reach:
                    policy[u] = a
                    reach = ratio[heads[a]]
                    changed = True
                    if eager:
                        ratio[u] = reach
        if changed and left > 0:
            continue
        highest = 0.0
        for u in range(n):
            highest = max(highest, abs(value[u]))
        small = ROUNDING * (longest + highest) * max(1.0, n / EAGER)  # values are sums of n terms
        for k in range(n):
            u = n - 1 - k if backward else k
            if policy[u] < 0:
                continue
            here = ratio[u]
            mine = value[u] + small
            floor = here - ROUNDING * abs(here)
            for a in range(first[u], first[u + 1]):
                there = heads[a]
                gain = seconds[a] - here * tokens[a] + value[there]
                if gain > mine and ratio[there] >= floor and a != policy[u]:
                    policy[u] = a
                    mine = gain
                    changed = True
                    if eager:
                        value[u] = gain
        if not changed or left <= 0:
            return best, length
