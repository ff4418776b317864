"""Shifts and orders of the nodes of a timed graph, its cycles without tokens, and its simulation,
over arrays of arcs.

Like those of `policy_iteration`, the functions only index their arguments: they run in Python over
lists, and compiled by numba over arrays, with the same result.
"""

from __future__ import annotations

from typing import Any


def order_nodes(
    first: Any, heads: Any, tokens: Any, shift: Any, degree: Any, order: Any, parent: Any
) -> int:
    """Write an order of the nodes that follows the arcs whose tokens + shift[src] − shift[dst] are
    0 or less. Return how many nodes it has: all, unless such arcs close a cycle.

    The parents of the other nodes lead back to a cycle.

    Arguments:
        first: node → its first arc, and the number of arcs.
        heads, tokens: of each arc, sorted by the node it leaves.
        degree, order, parent: one cell for each node.
    """
    n = len(shift)
    for u in range(n):
        degree[u] = 0
        parent[u] = -1
    for s in range(n):
        for a in range(first[s], first[s + 1]):
            if tokens[a] + shift[s] <= shift[heads[a]]:
                degree[heads[a]] += 1
    count = 0
    for u in range(n):
        if degree[u] == 0:
            order[count] = u
            count += 1
    done = 0
    while done < count:
        s = order[done]
        done += 1
        for a in range(first[s], first[s + 1]):
            d = heads[a]
            if tokens[a] + shift[s] <= shift[d]:
                degree[d] -= 1
                if degree[d] == 0:
                    order[count] = d
                    count += 1
    if count < n:
        for s in range(n):
            for a in range(first[s], first[s + 1]):
                d = heads[a]
                if degree[s] > 0 and degree[d] > 0 and tokens[a] + shift[s] <= shift[d]:
                    parent[d] = s
    return count


def shift_nodes(
    first: Any, heads: Any, tokens: Any, order: Any, shift: Any, parent: Any, passes: int
) -> bool:
    """Lower the shift of each node to the least sum of tokens of a path to it, in `passes` passes
    at most. Return whether the last pass has lowered one.

    parent: node → the node before it on its path, -1 at the beginning. Parents close a cycle only
        if its tokens sum to less than 0.
    """
    for _ in range(passes):
        changed = False
        for k in range(len(order)):
            s = order[k]
            for a in range(first[s], first[s + 1]):
                d = heads[a]
                if shift[s] + tokens[a] < shift[d]:
                    shift[d] = shift[s] + tokens[a]
                    parent[d] = s
                    changed = True
        if not changed:
            return False
    return True


def write_cycle(parent: Any, state: Any, cycle: Any) -> int:
    """Write the nodes of a cycle of parents, in the direction of the arcs; return its length, 0 if
    there is none.

    state: scratch, one cell for each node.
    """
    for u in range(len(parent)):
        state[u] = -1
    for begin in range(len(parent)):
        u = begin
        while u >= 0 and state[u] < 0:
            state[u] = begin
            u = parent[u]
        if u >= 0 and state[u] == begin:
            length = 1
            here = parent[u]
            while here != u:
                length += 1
                here = parent[here]
            for k in range(length):
                cycle[(length - k) % length] = here
                here = parent[here]
            return length
    return 0


def push_starts(
    first: Any,
    heads: Any,
    seconds: Any,
    tokens: Any,
    start: Any,
    queue: Any,
    waiting: Any,
    passes: Any,
    ends: Any,
    period_s: float,
    small: float,
    steps: int,
) -> None:
    """Raise start times along the arcs out of the first `steps` nodes of a queue, or all of them.

    Arguments:
        first: node → its first arc, and the number of arcs.
        heads, seconds, tokens: of each arc, sorted by the node it leaves.
        start: node → its start in seconds. A rise by at most `small` is rounding.
        queue, ends: the waiting nodes around a ring; place of the first, and their number.
        waiting: node → whether it is in the queue.
        passes: node → how often it came back. One that came back more often than there are nodes
            lies on a cycle that is critical but for rounding.
    """
    n = len(start)
    for _ in range(steps):
        if ends[1] == 0:
            return
        here = queue[ends[0]]
        ends[0] = (ends[0] + 1) % n
        ends[1] -= 1
        waiting[here] = 0
        for a in range(first[here], first[here + 1]):
            there = heads[a]
            length = seconds[a] - tokens[a] * period_s
            if start[here] + length > start[there] + small:
                start[there] = start[here] + length
                if waiting[there] == 0 and passes[there] <= n:
                    passes[there] += 1
                    waiting[there] = 1
                    queue[(ends[0] + ends[1]) % n] = there
                    ends[1] += 1


def run_iterations(
    first: Any,
    tails: Any,
    seconds: Any,
    tokens: Any,
    order: Any,
    shift: Any,
    factors: Any,
    start: Any,
    iterations: int,
    begin: int,
    end: int,
) -> None:
    """Write the start times of the turns `begin` to `end` of a self-timed run. A turn is iteration
    turn + shift[node] of each node.

    Arguments:
        first: node → the first arc into it, and the number of arcs.
        tails, seconds, tokens: of each arc, sorted by the node it leads to.
        factors, start: on the seconds of arcs that leave a node, and start times in seconds, both
            by iteration · nodes + node.
    """
    n = len(order)
    for turn in range(begin, end):
        for p in range(n):
            j = order[p]
            k = turn + shift[j]
            if k < 0 or k >= iterations:
                continue
            ready = 0.0
            for a in range(first[j], first[j + 1]):
                then = k - tokens[a]
                if 0 <= then < iterations:
                    cell = then * n + tails[a]
                    t = start[cell] + seconds[a] * factors[cell]
                    if t > ready:
                        ready = t
            start[k * n + j] = ready
