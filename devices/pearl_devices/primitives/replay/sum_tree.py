"""The K-ary sum tree over priorities (proportional sampling of Schaul et al. 2016).

Levels are stored one after another, root first (`replay.tree_levels`). A parent is always
recomputed as the sum of its children in one order, so errors do not build up, and fused and
separate calls agree bit for bit. With a fanout of 8 or 16, the children of a node are one or two
vectors. The running sums, the choice and the sum of a node are then a few instructions without a
branch. This matters for random draws, because a mispredicted branch costs as much as a node. Other
fanouts go child by child.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pearl_devices.primitives.math.rng import uniform
from pearl_devices.primitives.native import fast, inner
from pearl_devices.primitives.numba_internals import make_array

FLOAT, DOUBLE, WORD = ir.FloatType(), ir.DoubleType(), ir.IntType(32)


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """The elements `lanes` of a followed by b."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(WORD, len(lanes)), lanes))


def _children(context: Any, builder: Any, kind: Any, tree: Any, at: Any, fanout: int) -> Any:
    if kind.dtype != types.float32 or kind.layout != "C":
        raise TypingError(f"a tree is a C-contiguous float32 array, not {kind}")
    start = builder.gep(make_array(kind)(context, builder, tree).data, [at])
    value = builder.load(builder.bitcast(start, ir.VectorType(FLOAT, fanout).as_pointer()))
    value.align = 4
    return value


def _node_sum(fanout: int) -> Any:
    """Compile the sum of the children from element `at`: halves are added until one number is
    left."""

    def node_sum(typing, tree, at):
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            tree, at = given
            value = _children(context, builder, signature.args[0], tree, at, fanout)
            width = fanout
            while width > 1:
                width //= 2
                low = _shuffle(builder, value, value, list(range(width)))
                high = _shuffle(builder, value, value, list(range(width, 2 * width)))
                value = builder.fadd(low, high)
            return builder.extract_element(value, ir.Constant(WORD, 0))

        return types.float32(tree, types.int64), generate

    return intrinsic(node_sum)


def _choice(fanout: int) -> Any:
    """Compile the choice of a child; it returns (child, rest).

    child: the first child above 0 whose running sum exceeds `prefix`, else the last child above 0,
        else child 0. rest: prefix − sum of the children before it. Sums are float32, as the nodes
            are."""
    wide, bits = ir.VectorType(FLOAT, fanout), ir.IntType(fanout)
    zeros = ir.Constant(wide, [0.0] * fanout)

    def choice(typing, tree, at, fan, prefix):
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            tree, at, _, prefix = given
            shares = _children(context, builder, signature.args[0], tree, at, fanout)
            sums, step = shares, 1
            while step < fanout:  # each pass sums over twice as many children
                moved = [fanout] * step + list(range(fanout - step))
                sums = builder.fadd(sums, _shuffle(builder, sums, zeros, moved))
                step *= 2
            before = _shuffle(builder, sums, zeros, [fanout, *range(fanout - 1)])
            single = builder.fptrunc(prefix, FLOAT)
            wanted = builder.insert_element(zeros, single, ir.Constant(WORD, 0))
            wanted = _shuffle(builder, wanted, wanted, [0] * fanout)
            above = builder.fcmp_ordered(">", shares, zeros)
            ahead = builder.and_(above, builder.fcmp_ordered("<", wanted, sums))
            mask, some = builder.bitcast(ahead, bits), builder.bitcast(above, bits)
            first = builder.cttz(mask, ir.Constant(ir.IntType(1), 0))
            last = builder.sub(
                ir.Constant(bits, fanout - 1),
                builder.ctlz(
                    builder.or_(some, ir.Constant(bits, 1)), ir.Constant(ir.IntType(1), 0)
                ),
            )
            none = builder.icmp_unsigned("==", mask, ir.Constant(bits, 0))
            child = builder.zext(builder.select(none, last, first), ir.IntType(64))
            skipped = builder.fpext(builder.extract_element(before, child), DOUBLE)
            rest = builder.fsub(prefix, skipped)
            return context.make_tuple(builder, signature.return_type, [child, rest])

        result = types.Tuple((types.int64, types.float64))
        return result(tree, types.int64, types.int64, types.float64), generate

    return intrinsic(choice)


_sum8, _sum16 = _node_sum(8), _node_sum(16)
_choose8, _choose16 = _choice(8), _choice(16)


@fast
def sum_children(tree, start, fanout):
    """Sum `fanout` neighbours from `start`."""
    if fanout == 16:
        return _sum16(tree, start)
    if fanout == 8:
        return _sum8(tree, start)
    total = np.float32(0.0)
    for j in range(start, start + fanout):
        total += tree[j]
    return total


@fast
def raise_range(tree, levels, fanout, first, last):
    """Recompute the parents of the leaves first … last."""
    below = tree.size - levels[levels.size - 1]
    for level in range(levels.size - 2, -1, -1):
        above = below - levels[level]
        first, last = first // fanout, last // fanout
        for node in range(first, last + 1):
            tree[above + node] = sum_children(tree, below + node * fanout, fanout)
        below = above


@fast
def raise_leaves(tree, levels, fanout, leaves):
    """Recompute the parents of `leaves`; cheapest if sorted, correct in any order."""
    below, span = tree.size - levels[levels.size - 1], 1
    for level in range(levels.size - 2, -1, -1):
        above = below - levels[level]
        span *= fanout
        done = -1
        for b in range(leaves.size):
            node = leaves[b] // span
            if node != done:
                tree[above + node] = sum_children(tree, below + node * fanout, fanout)
                done = node
        below = above


@fast
def choose_child(tree, start, fanout, prefix):
    """Choose a child like `_choice`, child by child."""
    chosen, rest, sums = 0, prefix, 0.0
    for j in range(fanout):
        share = np.float64(tree[start + j])
        if share > 0.0:
            chosen, rest = j, prefix - sums
            sums += share
            if prefix < sums:
                break
    return chosen, rest


def _descents(choose: Any) -> tuple[Any, Any]:
    """Compile the descent to one leaf, and to four leaves at once, which hide each other's
    latency."""

    @inner
    def one(tree, levels, fanout, prefix):
        node, start = 0, 0
        for level in range(1, levels.size):
            start += levels[level - 1]
            chosen, prefix = choose(tree, start + node * fanout, fanout, prefix)
            node = node * fanout + chosen
        return node

    @inner
    def four(tree, levels, fanout, p, q, r, s):
        a, b, c, d, start = 0, 0, 0, 0, 0
        for level in range(1, levels.size):
            start += levels[level - 1]
            to_a, p = choose(tree, start + a * fanout, fanout, p)
            to_b, q = choose(tree, start + b * fanout, fanout, q)
            to_c, r = choose(tree, start + c * fanout, fanout, r)
            to_d, s = choose(tree, start + d * fanout, fanout, s)
            a, b, c, d = a * fanout + to_a, b * fanout + to_b, c * fanout + to_c, d * fanout + to_d
        return a, b, c, d

    return one, four


one_by_8, four_by_8 = _descents(_choose8)
one_by_16, four_by_16 = _descents(_choose16)
one_by_any, four_by_any = _descents(choose_child)


@fast
def find_leaf(tree, levels, fanout, prefix):
    """Return the leaf whose part of the total contains `prefix`; its priority is 0 only if all are.

    If rounding carries the prefix past the last child, the last child above 0 is taken.
    """
    if fanout == 16:
        return one_by_16(tree, levels, 16, prefix)
    if fanout == 8:
        return one_by_8(tree, levels, 8, prefix)
    return one_by_any(tree, levels, fanout, prefix)


@fast
def prefix_of(tree, base, b, rows):
    """Return a random prefix in part b of `rows` equal parts of the total."""
    return (b + uniform(base, b)) / rows * np.float64(tree[0])


@fast
def find_strata(tree, levels, fanout, base, index):
    """Draw one leaf from each of index.size equal parts of the total, by the uniforms of `base`."""
    rows = index.size
    whole = rows - rows % 4
    for b in range(0, whole, 4):
        p, q = prefix_of(tree, base, b, rows), prefix_of(tree, base, b + 1, rows)
        r, s = prefix_of(tree, base, b + 2, rows), prefix_of(tree, base, b + 3, rows)
        if fanout == 16:
            found = four_by_16(tree, levels, 16, p, q, r, s)
        elif fanout == 8:
            found = four_by_8(tree, levels, 8, p, q, r, s)
        else:
            found = four_by_any(tree, levels, fanout, p, q, r, s)
        index[b], index[b + 1], index[b + 2], index[b + 3] = found
    for b in range(whole, rows):
        index[b] = find_leaf(tree, levels, fanout, prefix_of(tree, base, b, rows))
