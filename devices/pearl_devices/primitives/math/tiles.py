"""LLVM vector code for `products`: tiles of a product, a transposition, a sum of squares.

numba's own vectorisation cannot keep a block of sums in registers, so these functions write the
vector code. A vector has LANES elements; a host with shorter registers uses several.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pearl_devices.primitives.math.vectors import LANES, STRIP
from pearl_devices.primitives.numba_internals import get_or_insert_function, make_array

FLOAT, BIT = ir.FloatType(), ir.IntType(1)
INT, WORD = ir.IntType(64), ir.IntType(32)
VECTOR, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(WORD, LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)


def _number(value: int) -> Any:
    return ir.Constant(INT, value)


def _spread(builder: Any, value: Any, kind: Any) -> Any:
    """A vector of type `kind` with `value` in all lanes."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(WORD, 0))
    lanes = ir.Constant(WORDS, [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), lanes)


def _check(*kinds: Any) -> None:
    """Refuse arrays that are not C-contiguous float32."""
    for kind in kinds:
        if getattr(kind, "dtype", None) != types.float32 or kind.layout != "C":
            raise TypingError(f"a product takes C-contiguous float32 arrays, not {kind}")


class _Memory:
    """Loads and stores of vectors; with `columns`, of only that many first lanes."""

    def __init__(self, builder: Any, columns: Any | None) -> None:
        self.builder, self.mask = builder, None
        if columns is not None:
            count = _spread(builder, builder.trunc(columns, WORD), WORDS)
            lanes = ir.Constant(WORDS, list(range(LANES)))
            self.mask = builder.icmp_signed("<", lanes, count)

    def _at(self, start: Any, vector: int) -> Any:
        here = self.builder.gep(start, [_number(vector * LANES)])
        return self.builder.bitcast(here, VECTOR.as_pointer())

    def _masked(self, name: str, result: Any, given: list[Any]) -> Any:
        function = get_or_insert_function(
            self.builder.module,
            ir.FunctionType(result, [value.type for value in given]),
            f"llvm.masked.{name}.v{LANES}f32.p0",
        )
        return self.builder.call(function, given)

    def load(self, start: Any, vector: int) -> Any:
        at, size = self._at(start, vector), ir.Constant(WORD, 4)
        if self.mask is not None:
            return self._masked("load", VECTOR, [at, size, self.mask, ZERO])
        value = self.builder.load(at)
        value.align = 4
        return value

    def store(self, value: Any, start: Any, vector: int) -> None:
        at, size = self._at(start, vector), ir.Constant(WORD, 4)
        if self.mask is not None:
            self._masked("store", ir.VoidType(), [value, at, size, self.mask])
        else:
            self.builder.store(value, at).align = 4


def tile(rows: int, vectors: int, partial: bool, turned: bool, finish: str) -> Any:
    """out[:rows, :vectors · LANES] = a · b, then `finish`, over `depth` ≥ 1 inner indices.

    partial: only the first `columns` of one vector. turned: a is read as its transpose, so its rows
        are neighbours. finish: "bias" (sums start from extra[columns]; then ReLU if `relu`), "gate"
        (0 where extra[row, column] ≤ 0, if `relu`), or "". A matrix is a flat array and the element
        where the tile starts; `stride` is that of a, `b_row` and `row` of b and out.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        def start(k: int, at: Any) -> Any:
            data = make_array(signature.args[k])(context, builder, given[k]).data
            return builder.gep(data, [at])

        _, a_at, stride, _, b_at, b_row, _, out_at, row, _, extra_at, relu, depth, columns = given
        memory = _Memory(builder, columns if partial else None)
        fma = get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        a, b, out, extra = start(0, a_at), start(3, b_at), start(6, out_at), start(9, extra_at)
        cells = [(r, v) for r in range(rows) for v in range(vectors)]
        sums = dict.fromkeys(cells, ZERO)
        if finish == "bias":
            first = [memory.load(extra, v) for v in range(vectors)]
            sums = {(r, v): first[v] for r, v in cells}
        # Every third row has a pointer of its own: x86 addresses reach one and two strides further.
        bases = [a]
        if not turned:
            bases = [builder.gep(a, [builder.mul(stride, _number(r))]) for r in range(0, rows, 3)]
        before = builder.block
        loop, after = builder.append_basic_block("depth"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)

        def carried(value: Any) -> Any:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            return phi

        k, pb = carried(_number(0)), carried(b)
        pa = [carried(base) for base in bases]
        held = {cell: carried(value) for cell, value in sums.items()}
        right = [memory.load(pb, v) for v in range(vectors)]
        new = {}
        for r in range(rows):
            if turned:
                at = builder.gep(pa[0], [_number(r)])
            else:
                at = builder.gep(pa[r // 3], [builder.mul(stride, _number(r % 3))])
            left = _spread(builder, builder.load(at), VECTOR)
            for v in range(vectors):
                new[r, v] = builder.call(fma, [left, right[v], held[r, v]])
        following = builder.add(k, _number(1))
        k.add_incoming(following, loop)
        pb.add_incoming(builder.gep(pb, [b_row]), loop)
        for pointer in pa:
            pointer.add_incoming(builder.gep(pointer, [stride if turned else _number(1)]), loop)
        for cell in cells:
            held[cell].add_incoming(new[cell], loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        below = None
        if finish:
            off = builder.icmp_signed("==", relu, _number(0))
            below = builder.select(off, ir.Constant(FLOAT, float("-inf")), ir.Constant(FLOAT, 0.0))
            below = _spread(builder, below, VECTOR)
        for r in range(rows):
            offset = builder.mul(row, _number(r))
            for v in range(vectors):
                value = new[r, v]
                if finish == "bias":
                    value = builder.select(builder.fcmp_ordered("<", value, below), ZERO, value)
                elif finish == "gate":
                    gate = memory.load(builder.gep(extra, [offset]), v)
                    shut = builder.fcmp_ordered("<=", gate, below)
                    value = builder.select(shut, ZERO, value)
                memory.store(value, builder.gep(out, [offset]), v)
        return context.get_dummy_value()

    @intrinsic
    def product(
        typing, a, a_at, stride, b, b_at, b_row, out, out_at, row, extra, extra_at, relu, depth,
        columns,
    ):  # fmt: skip
        _check(a, b, out, extra)
        i = types.int64
        return types.none(a, i, i, b, i, i, out, i, i, extra, i, i, i, i), generate

    return product


def dots(rows: int, columns: int, interleaved: bool) -> Any:
    """out[:rows, :columns] = a · b for one or two columns, where a tile would leave most of a
    vector empty. Sums over the inner index have LANES parts, which are added at the end.

    b is given by its columns, b_row elements apart, or `interleaved`, row after row. Other
    arguments: as for `tile`.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        def start(k: int, at: Any) -> Any:
            data = make_array(signature.args[k])(context, builder, given[k]).data
            return builder.gep(data, [at])

        _, a_at, stride, _, b_at, b_row, _, out_at, row, depth = given
        a, b, out = start(0, a_at), start(3, b_at), start(6, out_at)
        fma = get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        cells = [(r, c) for r in range(rows) for c in range(columns)]
        whole = builder.sub(depth, builder.srem(depth, _number(LANES)))

        def added(k: Any, left: Any | None, sums: dict[tuple[int, int], Any]) -> Any:
            """The sums with LANES more terms from inner index k; left: with only that many
            terms."""

            def memory(before: int, share: int) -> _Memory:
                if left is None:
                    return _Memory(builder, None)
                more = builder.sub(builder.mul(left, _number(share)), _number(before))
                return _Memory(builder, more)

            if interleaved:
                at = builder.gep(b, [builder.mul(k, _number(columns))])
                parts = [memory(v * LANES, columns).load(at, v) for v in range(columns)]
                right = [
                    builder.shuffle_vector(
                        parts[0],
                        parts[-1],
                        ir.Constant(WORDS, [columns * lane + c for lane in range(LANES)]),
                    )
                    for c in range(columns)
                ]
            else:
                starts = [builder.add(k, builder.mul(b_row, _number(c))) for c in range(columns)]
                right = [memory(0, 1).load(builder.gep(b, [at]), 0) for at in starts]
            new = {}
            for r in range(rows):
                at = builder.gep(a, [builder.add(k, builder.mul(stride, _number(r)))])
                line = memory(0, 1).load(at, 0)
                for c in range(columns):
                    new[r, c] = builder.call(fma, [line, right[c], sums[r, c]])
            return new

        before = builder.block
        head, body = builder.append_basic_block("head"), builder.append_basic_block("dots")
        after = builder.append_basic_block("end")
        builder.branch(head)
        builder.position_at_end(head)
        k = builder.phi(INT)
        k.add_incoming(_number(0), before)
        held = {cell: builder.phi(VECTOR) for cell in cells}
        builder.cbranch(builder.icmp_signed("<", k, whole), body, after)
        builder.position_at_end(body)
        new = added(k, None, held)
        k.add_incoming(builder.add(k, _number(LANES)), body)
        builder.branch(head)
        for cell in cells:
            held[cell].add_incoming(ZERO, before)
            held[cell].add_incoming(new[cell], body)
        builder.position_at_end(after)
        last = added(whole, builder.sub(depth, whole), held)
        for r in range(rows):
            at = builder.gep(out, [builder.mul(row, _number(r))])
            for c in range(columns):
                builder.store(_lane_sum(builder, last[r, c]), builder.gep(at, [_number(c)]))
        return context.get_dummy_value()

    @intrinsic
    def product(typing, a, a_at, stride, b, b_at, b_row, out, out_at, row, depth):
        _check(a, b, out)
        i = types.int64
        return types.none(a, i, i, b, i, i, out, i, i, i), generate

    return product


def _lane_sum(builder: Any, total: Any) -> Any:
    """Sum a vector's lanes: halves are added until one number is left."""
    width = LANES
    while width > 1:
        width //= 2
        halves = []
        for first in (0, width):
            lanes = ir.Constant(ir.VectorType(WORD, width), list(range(first, first + width)))
            halves.append(builder.shuffle_vector(total, total, lanes))
        total = builder.fadd(*halves)
    return builder.extract_element(total, ir.Constant(WORD, 0))


def _butterfly(builder: Any, lines: list[Any], step: int) -> list[Any]:
    """One stage of a transposition in registers: blocks of `step` by `step` swap places."""
    new = list(lines)
    for r in range(LANES):
        if r & step:
            continue
        low, high = lines[r], lines[r + step]
        # Lane l of the second operand is number LANES + l.
        upper = [lane if not lane & step else LANES + lane - step for lane in range(LANES)]
        lower = [lane + step if not lane & step else LANES + lane for lane in range(LANES)]
        new[r] = builder.shuffle_vector(low, high, ir.Constant(WORDS, upper))
        new[r + step] = builder.shuffle_vector(low, high, ir.Constant(WORDS, lower))
    return new


def _turn(typing, source, at, row, out, out_at, out_row):
    """Transpose LANES by LANES elements from element `at` of source to `out_at` of out."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        source, at, row, out, out_at, out_row = given
        memory = _Memory(builder, None)
        base = builder.gep(make_array(signature.args[0])(context, builder, source).data, [at])
        lines = [
            memory.load(builder.gep(base, [builder.mul(row, _number(r))]), 0) for r in range(LANES)
        ]
        step = 1
        while step < LANES:
            lines = _butterfly(builder, lines, step)
            step *= 2
        base = builder.gep(make_array(signature.args[3])(context, builder, out).data, [out_at])
        for r, line in enumerate(lines):
            memory.store(line, builder.gep(base, [builder.mul(out_row, _number(r))]), 0)
        return context.get_dummy_value()

    _check(source, out)
    i = types.int64
    return types.none(source, i, i, out, i, i), generate


turn_block: Any = intrinsic(_turn)


def _pack(typing, source, at, row, panel, depth):
    """panel (depth, STRIP) = STRIP columns of `depth` ≥ 1 rows of source from element `at`."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        memory = _Memory(builder, None)
        first = make_array(signature.args[0])(context, builder, given[0]).data
        first = builder.gep(first, [given[1]])
        target = make_array(signature.args[3])(context, builder, given[3]).data
        before = builder.block
        loop, after = builder.append_basic_block("pack"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)
        k, read, write = (builder.phi(kind) for kind in (INT, first.type, target.type))
        for v in range(STRIP // LANES):
            memory.store(memory.load(read, v), write, v)
        following = builder.add(k, _number(1))
        for phi, start, value in (
            (k, _number(0), following),
            (read, first, builder.gep(read, [given[2]])),
            (write, target, builder.gep(write, [_number(STRIP)])),
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, given[4]), loop, after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    _check(source, panel)
    i = types.int64
    return types.none(source, i, i, panel, i), generate


pack_strip: Any = intrinsic(_pack)


def _squares(typing, x, count):
    """Sum of squares of the first `count` elements, a multiple of 4 · LANES above 0."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        memory = _Memory(builder, None)
        start = make_array(signature.args[0])(context, builder, given[0]).data
        fma = get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        before = builder.block
        loop, after = builder.append_basic_block("squares"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(INT)
        sums = [builder.phi(VECTOR) for _ in range(4)]
        here = builder.gep(start, [k])
        new = []
        for v, held in enumerate(sums):
            value = memory.load(here, v)
            new.append(builder.call(fma, [value, value, held]))
        following = builder.add(k, _number(4 * LANES))
        k.add_incoming(_number(0), before)
        k.add_incoming(following, loop)
        for held, value in zip(sums, new, strict=True):
            held.add_incoming(ZERO, before)
            held.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, given[1]), loop, after)
        builder.position_at_end(after)
        total = builder.fadd(builder.fadd(new[0], new[1]), builder.fadd(new[2], new[3]))
        return _lane_sum(builder, total)

    _check(x)
    return types.float32(x, types.int64), generate


whole_squares: Any = intrinsic(_squares)
