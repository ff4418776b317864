"""LLVM vector code for `products`: tiles of a product, a transposition, a sum of squares.

numba's own vectorisation cannot keep a block of sums in registers, so these functions write the
vector code. A vector has LANES elements. Order and fusion of additions do not depend on LANES.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pearl_devices.primitives.math.vectors import (
    BY_LANE,
    DOT_PARTS,
    LANES,
    SQUARE_PARTS,
    STRIP,
)
from pearl_devices.primitives.numba_internals import get_or_insert_function, make_array

FLOAT, BIT = ir.FloatType(), ir.IntType(1)
INT, WORD = ir.IntType(64), ir.IntType(32)
VECTOR, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(WORD, LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)
Sums = dict[tuple[int, int, int], Any]
"""(row, column, vector) → the vector's sums."""
AT_ONCE = 4
"""Inner indices that a tile loads at once where `BY_LANE`."""
QUAD = ir.VectorType(FLOAT, AT_ONCE)


def _number(value: int) -> Any:
    return ir.Constant(INT, value)


def _spread(builder: Any, value: Any, kind: Any) -> Any:
    """A vector of type `kind` with `value` in all lanes."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(WORD, 0))
    lanes = ir.Constant(WORDS, [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), lanes)


def _quad(builder: Any, start: Any) -> Any:
    """AT_ONCE neighbouring elements."""
    value = builder.load(builder.bitcast(start, QUAD.as_pointer()))
    value.align = 4
    return value


def _lane(builder: Any, quad: Any, lane: int) -> Any:
    """A vector with one element of a quad in all lanes; the multiplication takes it as it is."""
    lanes = ir.Constant(WORDS, [lane] * LANES)
    return builder.shuffle_vector(quad, ir.Constant(QUAD, ir.Undefined), lanes)


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

        def left(pa: list[Any], r: int) -> Any:
            if turned:
                return builder.gep(pa[0], [_number(r)])
            return builder.gep(pa[r // 3], [builder.mul(stride, _number(r % 3))])

        def by_row(pa: list[Any], pb: Any, held: list[Any]) -> list[Any]:
            """The sums with one inner index more; each left factor is loaded to all lanes."""
            right = [memory.load(pb, v) for v in range(vectors)]
            new = []
            for r in range(rows):
                factor = _spread(builder, builder.load(left(pa, r)), VECTOR)
                for v in range(vectors):
                    new.append(builder.call(fma, [factor, right[v], held[r * vectors + v]]))
            return new

        def by_lane(pa: list[Any], pb: Any, held: list[Any]) -> list[Any]:
            """The sums with AT_ONCE inner indices more; turned: with one, AT_ONCE rows at once."""
            loads = range(0, rows, AT_ONCE) if turned else range(rows)
            quads = [_quad(builder, left(pa, r)) for r in loads]
            for step in range(1 if turned else AT_ONCE):
                here = builder.gep(pb, [builder.mul(b_row, _number(step))])
                right = [memory.load(here, v) for v in range(vectors)]
                new = []
                for r in range(rows):
                    quad, lane = (r // AT_ONCE, r % AT_ONCE) if turned else (r, step)
                    factor = _lane(builder, quads[quad], lane)
                    for v in range(vectors):
                        new.append(builder.call(fma, [factor, right[v], held[r * vectors + v]]))
                held = new
            return held

        def loop(begin: Any, end: Any, values: list[Any], step: int, more: Any) -> list[Any]:
            """Add inner indices begin … end − 1, `step` at a time, to the pointers and sums."""
            before = builder.block
            body, after = builder.append_basic_block("depth"), builder.append_basic_block("end")
            some = isinstance(begin, ir.Constant) and step == 1  # depth ≥ 1
            if some:
                builder.branch(body)
            else:
                builder.cbranch(builder.icmp_signed("<", begin, end), body, after)
            builder.position_at_end(body)
            k, *phis = (builder.phi(value.type) for value in (begin, *values))
            pb, pa, held = phis[0], phis[1 : 1 + len(bases)], phis[1 + len(bases) :]
            new = more(pa, pb, held)
            following = builder.add(k, _number(step))
            onward = [builder.gep(pb, [builder.mul(b_row, _number(step))])]
            ahead = builder.mul(stride, _number(step)) if turned else _number(step)
            onward += [*(builder.gep(pointer, [ahead]) for pointer in pa), *new]
            for phi, entering, value in zip(
                (k, *phis), (begin, *values), (following, *onward), strict=True
            ):
                phi.add_incoming(entering, before)
                phi.add_incoming(value, body)
            builder.cbranch(builder.icmp_signed("<", following, end), body, after)
            builder.position_at_end(after)
            if some:
                return onward
            ends = []
            for entering, value in zip(values, onward, strict=True):
                ends.append(builder.phi(value.type))
                ends[-1].add_incoming(entering, before)
                ends[-1].add_incoming(value, body)
            return ends

        values = [b, *bases, *(sums[cell] for cell in cells)]
        if BY_LANE and turned and rows % AT_ONCE == 0:
            values = loop(_number(0), depth, values, 1, by_lane)
        elif BY_LANE and not turned:
            whole = builder.sub(depth, builder.srem(depth, _number(AT_ONCE)))
            values = loop(_number(0), whole, values, AT_ONCE, by_lane)
            values = loop(whole, depth, values, 1, by_row)
        else:
            values = loop(_number(0), depth, values, 1, by_row)
        new = dict(zip(cells, values[1 + len(bases) :], strict=True))
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
    vector empty. Sums over the inner index have DOT_PARTS parts, which are added at the end.

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
        places = range(DOT_PARTS // LANES)
        cells = [(r, c, v) for r in range(rows) for c in range(columns) for v in places]
        whole = builder.sub(depth, builder.srem(depth, _number(DOT_PARTS)))

        def added(k: Any, left: Any | None, sums: Sums) -> Sums:
            """The sums with DOT_PARTS more terms from inner index k; left: with only that many
            terms."""

            def load(at: Any, vector: int, share: int) -> Any:
                if left is None:
                    return _Memory(builder, None).load(at, vector)
                more = builder.sub(builder.mul(left, _number(share)), _number(vector * LANES))
                return _Memory(builder, more).load(at, vector)

            right = {}
            if interleaved:
                at = builder.gep(b, [builder.mul(k, _number(columns))])
                for v in places:
                    parts = [load(at, v * columns + c, columns) for c in range(columns)]
                    for c in range(columns):
                        lanes = [columns * lane + c for lane in range(LANES)]
                        right[c, v] = builder.shuffle_vector(
                            parts[0], parts[-1], ir.Constant(WORDS, lanes)
                        )
            else:
                for c in range(columns):
                    at = builder.gep(b, [builder.add(k, builder.mul(b_row, _number(c)))])
                    right |= {(c, v): load(at, v, 1) for v in places}
            new = {}
            for r in range(rows):
                at = builder.gep(a, [builder.add(k, builder.mul(stride, _number(r)))])
                for v in places:
                    line = load(at, v, 1)
                    for c in range(columns):
                        new[r, c, v] = builder.call(fma, [line, right[c, v], sums[r, c, v]])
            return new

        before = builder.block
        head, body, rest, partly, after = (
            builder.append_basic_block(name) for name in ("head", "dots", "rest", "partly", "end")
        )
        builder.branch(head)
        builder.position_at_end(head)
        k = builder.phi(INT)
        k.add_incoming(_number(0), before)
        held = {cell: builder.phi(VECTOR) for cell in cells}
        builder.cbranch(builder.icmp_signed("<", k, whole), body, rest)
        builder.position_at_end(body)
        new = added(k, None, held)
        k.add_incoming(builder.add(k, _number(DOT_PARTS)), body)
        builder.branch(head)
        for cell in cells:
            held[cell].add_incoming(ZERO, before)
            held[cell].add_incoming(new[cell], body)
        builder.position_at_end(rest)
        builder.cbranch(builder.icmp_signed("<", whole, depth), partly, after)
        builder.position_at_end(partly)
        more = added(whole, builder.sub(depth, whole), held)
        partly = builder.block
        builder.branch(after)
        builder.position_at_end(after)
        last = {cell: builder.phi(VECTOR) for cell in cells}
        for cell in cells:
            last[cell].add_incoming(held[cell], rest)
            last[cell].add_incoming(more[cell], partly)
        for r in range(rows):
            at = builder.gep(out, [builder.mul(row, _number(r))])
            for c in range(columns):
                total = _lane_sum(builder, [last[r, c, v] for v in places])
                builder.store(total, builder.gep(at, [_number(c)]))
        return context.get_dummy_value()

    @intrinsic
    def product(typing, a, a_at, stride, b, b_at, b_row, out, out_at, row, depth):
        _check(a, b, out)
        i = types.int64
        return types.none(a, i, i, b, i, i, out, i, i, i), generate

    return product


def _lane_sum(builder: Any, parts: list[Any]) -> Any:
    """Sum the lanes of vectors in a row: halves are added until one number is left."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [builder.fadd(*two) for two in zip(parts[:half], parts[half:], strict=True)]
    total, width = parts[0], LANES
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
    """Sum of squares of the first `count` elements, a multiple of SQUARE_PARTS above 0."""

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
        sums = [builder.phi(VECTOR) for _ in range(SQUARE_PARTS // LANES)]
        here = builder.gep(start, [k])
        new = []
        for v, held in enumerate(sums):
            value = memory.load(here, v)
            new.append(builder.call(fma, [value, value, held]))
        following = builder.add(k, _number(SQUARE_PARTS))
        k.add_incoming(_number(0), before)
        k.add_incoming(following, loop)
        for held, value in zip(sums, new, strict=True):
            held.add_incoming(ZERO, before)
            held.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, given[1]), loop, after)
        builder.position_at_end(after)
        return _lane_sum(builder, new)

    _check(x)
    return types.float32(x, types.int64), generate


whole_squares: Any = intrinsic(_squares)
