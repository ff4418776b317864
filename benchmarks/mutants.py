"""Single-line mutants of a Python source: one small change each, found in its syntax tree.

Changed are comparisons, arithmetic, `and` and `or`, conditions, numbers, True and False, `min` and
`max`; operands and statements are left out. Docstrings, texts, annotations, decorators, `assert`,
`__all__`, the words of an exception and `if __name__` stay as they are.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

COMPARISONS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.Pow: "*", ast.MatMult: "*", ast.BitOr: "&", ast.BitAnd: "|", ast.BitXor: "&",
    ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
DROPPED = (ast.Mult, ast.Mod, ast.Sub, ast.Add)
"""Operators whose right operand is also left out."""
NAMES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
    "argmax": "argmin", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
OPERATOR = re.compile(rb"is\s+not|not\s+in|is|in|and|or|//|\*\*|<<|>>|[<>=!]=|[-+*/%@|&^<>]")
COMMENT = re.compile(rb"#[^\n]*")


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

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.before} → {self.after}"

    def applied(self, source: bytes) -> bytes:
        """`source` with the change in it."""
        lines = source.split(b"\n")
        old = lines[self.line - 1]
        begin = len(old) - len(old.lstrip())
        lines[self.line - 1] = old[:begin] + self.after.encode()
        return b"\n".join(lines)


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

    @cached_property
    def starts(self) -> list[int]:
        begin, found = 0, []
        for line in self.lines:
            found.append(begin)
            begin += len(line) + 1
        return found

    def found(self) -> Iterator[Mutant]:
        for where, node in walk(ast.parse(self.source)):
            for kind, begin, end, text in self.changes(node):
                if b"\n" in self.source[begin:end]:
                    continue
                line = bisect_right(self.starts, begin) - 1
                at = begin - self.starts[line]
                old = self.lines[line]
                new = old[:at] + text + old[at + end - begin :]
                yield Mutant(
                    self.file, line + 1, where, kind, old.decode().strip(), new.decode().strip()
                )

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
                operands = [node.left, *node.comparators]
                for i, operator in enumerate(node.ops):
                    new = COMPARISONS[type(operator)]
                    yield "comparison", *self.between(*operands[i : i + 2]), new.encode()
            case ast.BinOp() if not (texts(node.left) or texts(node.right)):
                new = ARITHMETIC[type(node.op)]
                begin, end = self.between(node.left, node.right)
                yield "arithmetic", begin, end, new.encode()
                if isinstance(node.op, DROPPED) and not self.closed(node.left, begin):
                    yield "operand left out", self.span(node.left)[1], self.span(node)[1], b""
            case ast.AugAssign() if not texts(node.value):
                new = ARITHMETIC[type(node.op)]
                begin, end = self.between(node.target, node.value)
                yield "arithmetic", begin, end, new.encode()
            case ast.BoolOp():
                new = "or" if isinstance(node.op, ast.And) else "and"
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield "and/or", *self.between(left, right), new.encode()
            case ast.UnaryOp(op=ast.Not()):
                begin, _ = self.span(node)
                yield "not", begin, self.span(node.operand)[0], b""
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
            case ast.Raise() | ast.Continue() | ast.Break():
                yield "statement left out", *self.span(node), b"pass"
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield "statement left out", *self.span(node), b"pass"
            case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
                yield "statement left out", *self.span(node), b"pass"
        if isinstance(node, ast.AugAssign):
            yield "statement left out", *self.span(node), b"pass"

    def closed(self, left: ast.expr, end: int) -> bool:
        """Whether a parenthesis closes between an operand and its operator."""
        return b")" in self.source[self.span(left)[1] : end]


def texts(node: ast.AST) -> bool:
    """Whether this is a text, or texts joined: what is put together of it is a message."""
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
    for field, value in ast.iter_fields(node):
        if left_alone(node, field):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not left_out(child):
                match child:
                    case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                        yield from walk(child, f"{where}.{name}" if where else name)
                    case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target) if (
                        not where
                    ):
                        names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
                        yield from walk(child, " ".join(names))
                    case _:
                        yield from walk(child, where)


def left_alone(node: ast.AST, field: str) -> bool:
    """Whether this field of this node is no part of the program's work."""
    if field in ("annotation", "returns", "decorator_list", "type_params"):
        return True
    return isinstance(node, ast.Raise)  # its words; that it is raised at all is mutated


def left_out(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Assert():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Assign(value=ast.BinOp(op=ast.BitOr())):
            return True  # a name for a type
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False
