"""Which tests reach the lines of mutants: the tests run once in a tree with a probe at each line.

A probe is a call in the statement of the mutant, so that no line moves and machine code is found.
Code that is compiled, and statements that run at import, have probes in the functions that first
mention them. `PYTEST_CURRENT_TEST` names the test in every process that inherits it.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.mutants import Mutant, key
from benchmarks.mutation_choice import RECORDED_S, Choice, Reach, inside
from benchmarks.mutation_runs import Tree

MODULE = "mutation_probe"
PROBE = f"__import__({MODULE!r}).hit(%d)"
TEXT = """import os
seen = set()


def hit(number):
    key = number, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if key not in seen:
        seen.add(key)
        with open({file!r}, "a") as file:
            file.write("%d %s\\n" % key)
"""
TEST_S = 30.0
"""CPU-seconds after which the record goes on without a test."""


def record(tree: Tree, choice: Choice, mutants: list[Mutant]) -> Reach:
    """Run the tests that are not known to be dear. A mutant whose probe none of them meets is taken
    to be reached by all: code that runs at import has its probe elsewhere, or none."""
    hits, reach, texts = tree.home / "hits", Reach(), probed(choice, mutants)
    hits.touch()
    (tree.home / "site" / f"{MODULE}.py").write_text(TEXT.format(file=str(hits)))
    left = [test for test in choice.tests if choice.costs_s.get(test, 0.0) <= RECORDED_S]
    with tree.holding(texts, same_code=True):
        tree.mutated = False  # bytecode of the probes may stay: other sources have other times
        while left:  # the rest, if one ends the process or takes too long
            ran = tree.run(left, math.inf, TEST_S, first=False)
            reach.cpu_s |= ran.costs_s
            rest = [test for test in left if test not in reach.cpu_s and test != ran.test]
            left = rest if len(rest) < len(left) else []
    reach.tests = {key(mutant): set() for mutant in mutants}
    for line in hits.read_text().splitlines():
        which, _, test = line.partition(" ")
        if test in reach.cpu_s:
            reach.tests[key(mutants[int(which)])].add(test)
    reach.tests = {mutant: found or set(reach.cpu_s) for mutant, found in reach.tests.items()}
    return reach


def probed(choice: Choice, mutants: list[Mutant]) -> dict[str, bytes]:
    """File → its source with the probes of the mutants in it."""
    found = defaultdict[str, dict[tuple[int, int], bytes]](lambda: defaultdict(bytes))
    for number, mutant in enumerate(mutants):
        unit, places = (mutant.file, mutant.where), list[tuple[str, Place]]()
        if not choice.is_compiled(unit):
            at = [p for p in places_of(choice.trees[mutant.file]) if p.line <= mutant.line <= p.end]
            places = [(mutant.file, place) for place in at[-1:]]
        for file, where in [] if places else choice.callers(unit):
            at = [p for p in places_of(choice.trees[file]) if p.where == where]
            places += [(file, place) for place in at[:1]]
        for file, place in places:
            found[file][place.at] += (PROBE % number + place.joint).encode()
    texts = dict[str, bytes]()
    for file, probes in found.items():
        lines = (choice.root / file).read_bytes().split(b"\n")
        for (line, column), probe in sorted(probes.items(), reverse=True):
            lines[line - 1] = lines[line - 1][:column] + probe + lines[line - 1][column:]
        texts[file] = b"\n".join(lines)
        ast.parse(texts[file])
    return texts


class Place(NamedTuple):
    """A statement in a function: the function, its lines, the line and column of a probe, and the
    text behind the probe."""

    where: str
    line: int
    end: int
    at: tuple[int, int]
    joint: str


def places_of(tree: ast.Module) -> Iterator[Place]:
    """The statements of all functions in their order, but for docstrings."""
    functions = set[str]()
    held: ast.expr | ast.stmt
    for where, node in inside(tree):
        match node:
            case ast.FunctionDef():
                functions.add(where)
                continue
            case ast.ClassDef() | ast.Try() | ast.Expr(value=ast.Constant()):
                continue
            case ast.If(test=held) | ast.While(test=held) | ast.For(iter=held):
                joint = " or "
            case ast.With(items=[ast.withitem(context_expr=held), *_]) | ast.Match(subject=held):
                joint = " or "
            case ast.stmt():
                held, joint = node, "; "
            case _:
                continue
        if isinstance(held, ast.NamedExpr):
            held = held.value
        if where in functions:
            yield Place(
                where, node.lineno, node.end_lineno or 0, (held.lineno, held.col_offset), joint
            )
