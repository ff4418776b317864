"""Single-line mutants of a Python source: one small change each, found in its syntax tree.

Changed are comparisons, arithmetic, `and` and `or`, conditions, numbers, True and False, `min` and
`max`; operands and statements are left out. Docstrings, texts, annotations, decorators, `assert`,
`strict` of `zip`, which asserts too, `__all__`, the words of an exception and `if __name__` stay as
they are.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

COMPARISONS: dict[type[ast.AST], bytes] = {
    ast.Lt: b"<=", ast.LtE: b"<", ast.Gt: b">=", ast.GtE: b">", ast.Eq: b"!=", ast.NotEq: b"==",
    ast.Is: b"is not", ast.IsNot: b"is", ast.In: b"not in", ast.NotIn: b"in",
}  # fmt: skip
ARITHMETIC: dict[type[ast.AST], bytes] = {
    ast.Add: b"-", ast.Sub: b"+", ast.Mult: b"+", ast.Div: b"*", ast.FloorDiv: b"*", ast.Mod: b"*",
    ast.Pow: b"*", ast.MatMult: b"*", ast.BitOr: b"&", ast.BitAnd: b"|", ast.BitXor: b"&",
    ast.LShift: b">>", ast.RShift: b"<<",
}  # fmt: skip
DROPPED = (ast.Mult, ast.Mod, ast.Sub, ast.Add)
"""Operators whose right operand is also left out."""
NAMES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
    "argmax": "argmin", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
OPERATOR = re.compile(rb"is\s+not|not\s+in|is|in|and|or|//|\*\*|<<|>>|[<>=!]=|[-+*/%@|&^<>]")
COMMENT = re.compile(rb"#[^\n]*")


Key = tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """One change. file: path in the tree; line: from 1; where: the function or class around it, or
    else the names that are assigned; before, after: the line without and with the change, stripped.
    """

    file: str
    line: int
    where: str
    kind: str
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """`source` with the change in it."""
        lines = source.split(b"\n")
        old = lines[self.line - 1]
        begin = len(old) - len(old.lstrip())
        lines[self.line - 1] = old[:begin] + self.after.encode()
        return b"\n".join(lines)


def key(mutant: Mutant | Mapping[str, Any]) -> Key:
    """What a mutant, or its outcome, is known by wherever its line has moved."""
    fields = mutant if isinstance(mutant, Mapping) else asdict(mutant)
    return tuple(fields[name] for name in ("file", "where", "before", "after"))


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of one source, each once; a few may be no Python or no change: `sound` tells."""
    return list(dict.fromkeys(_Finder(file, source).found()))


def sound(mutant: Mutant, source: bytes) -> bool:
    """Whether the mutant is a Python source, and of another syntax tree than `source`."""
    try:
        return ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.lines = source.split(b"\n")
        self.starts = list(accumulate((len(line) + 1 for line in self.lines), initial=0))

    def found(self) -> Iterator[Mutant]:
        for where, node in walk(ast.parse(self.source)):
            for kind, begin, end, text in self.changes(node):
                if b"\n" in self.source[begin:end]:
                    continue
                line = bisect_right(self.starts, begin) - 1
                old, at = self.lines[line], begin - self.starts[line]
                new = old[:at] + text + old[at + end - begin :]
                both = old.decode().strip(), new.decode().strip()
                yield Mutant(self.file, line + 1, where, kind, *both)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """Where the operator between two operands stands; parentheses and comments are around."""
        begin, end = self.span(left)[1], self.span(right)[0]
        gap = COMMENT.sub(lambda m: b" " * len(m[0]), self.source[begin:end])
        match = OPERATOR.search(gap)
        assert match, gap
        return begin + match.start(), begin + match.end()

    def changes(self, node: ast.AST) -> Iterator[tuple[str, int, int, bytes]]:
        """Kind, begin, end and new text of every change of this node alone."""
        match node:
            case ast.Compare():
                pairs = pairwise([node.left, *node.comparators])
                for pair, operator in zip(pairs, node.ops, strict=True):
                    yield "comparison", *self.between(*pair), COMPARISONS[type(operator)]
            case ast.BinOp() if not (texts(node.left) or texts(node.right)):
                begin, end = self.between(node.left, node.right)
                yield "arithmetic", begin, end, ARITHMETIC[type(node.op)]
                left = self.span(node.left)[1]
                closed = b")" in self.source[left:begin]
                if isinstance(node.op, DROPPED) and not closed:
                    yield "operand left out", left, self.span(node)[1], b""
            case ast.AugAssign() if not texts(node.value):
                between = self.between(node.target, node.value)
                yield "arithmetic", *between, ARITHMETIC[type(node.op)]
            case ast.BoolOp():
                for pair in pairwise(node.values):
                    new = b"or" if isinstance(node.op, ast.And) else b"and"
                    yield "and/or", *self.between(*pair), new
            case ast.UnaryOp(op=ast.Not()):
                yield "not", self.span(node)[0], self.span(node.operand)[0], b""
            case ast.If() | ast.While() | ast.IfExp():
                begin, end = self.span(node.test)
                yield "not", begin, end, b"(not (" + self.source[begin:end] + b"))"
            case ast.Constant(value=bool(value)):
                yield "constant", *self.span(node), str(not value).encode()
            case ast.Constant(value=int(value)):
                for other in (value + 1, value - 1):
                    yield "constant", *self.span(node), str(other).encode()
            case ast.Constant(value=float(number)):
                yield "constant", *self.span(node), repr(2 * number or 1.0).encode()
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in NAMES:
                _, end = self.span(node.func)
                yield "function", end - len(name), end, NAMES[name].encode()
        match node:
            case (
                ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign()
                | ast.Expr(value=ast.Call() | ast.Await())
                | ast.Assign(targets=[ast.Subscript() | ast.Attribute()])
            ):  # fmt: skip
                yield "statement left out", *self.span(node), b"pass"


def texts(node: ast.AST) -> bool:
    """Whether this is a text, or texts joined: the parts of a message."""
    match node:
        case ast.Constant(value=str() | bytes()) | ast.JoinedStr():
            return True
        case ast.BinOp():
            return texts(node.left) or texts(node.right)
    return False


def walk(node: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node that may change, with the name of the function or class around it, or else of what
    is assigned."""
    yield where, node
    if isinstance(node, ast.Raise):
        return  # that it is raised may change, its words not
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    yield from walk(child, f"{where}.{name}" if where else name)
                case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target) if (
                    not where and not left_out(child)
                ):
                    names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
                    yield from walk(child, " ".join(names))
                case ast.AST() if not left_out(child):
                    yield from walk(child, where)


def left_out(node: ast.AST) -> bool:
    match node:
        case (
            ast.JoinedStr() | ast.Assert() | ast.keyword(arg="strict")
            | ast.Assign(targets=[ast.Name(id="__all__")])
            | ast.Assign(value=ast.BinOp(op=ast.BitOr()))  # a name for a type
            | ast.If(test=ast.Name(id="TYPE_CHECKING"))
            | ast.If(test=ast.Compare(left=ast.Name(id="__name__")))
        ):  # fmt: skip
            return True
    return False
