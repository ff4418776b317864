"""Which tests a mutant meets, whether compiled, and which machine code it may change."""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from benchmarks.mutants import Mutant, walk
from benchmarks.mutation_runs import Record, listed

PACKAGES = ("pearl", "devices", "estimators")
"""Folders of the tree with the packages in them."""
COMPILES = re.compile(rb"^(?:from|import) .*(?:numba|primitives\.(?:native|code_cache))", re.M)
"""In modules with compiled functions."""

Unit = tuple[str, str]
"""A file, and a function, a class or the names that are assigned there, as `Mutant.where`."""


def sources(root: Path) -> list[str]:
    """The modules of the packages."""
    return [f for f in listed(root) if f.endswith(".py") and f.split("/")[0] in PACKAGES]


def module_name(file: str) -> str:
    """`devices/pearl_devices/cpu.py` → `pearl_devices.cpu`."""
    name = re.sub(r"(/__init__)?\.py$", "", file)
    return re.sub("^(devices|estimators)/", "", name).replace("/", ".")


def room(file: str) -> str:
    """The folder under `tests/` for a module: `pearl/spec/units.py` → `spec`."""
    first, *rest = file.split("/")
    return rest[0] if first == "pearl" and len(rest) > 1 else first


def needing(root: Path, record: Record) -> list[str]:
    """The tests that may run compiled functions: those that call a function of a module with some,
    and those of files that import primitives themselves."""
    files = {f for f in sources(root) if COMPILES.search((root / f).read_bytes())}
    texts = {file: (root / file).read_text() for file in {t.partition("::")[0] for t in record}}
    return [
        test
        for test, (_, calls) in record.items()
        if "pearl_devices.primitives" in texts[test.partition("::")[0]]
        or any(call.split()[0] in files for call in calls)
    ]


class Choice:
    """compiled, interpreted: the tests with compiled kernels, and without; those that need compiled
    ones have infinite seconds there."""

    def __init__(self, root: Path, compiled: Record, interpreted: Record) -> None:
        self.root, self.compiled, self.interpreted = root, compiled, interpreted
        self.trees = {file: ast.parse((root / file).read_bytes()) for file in sources(root)}
        self.seen = callers(compiled), callers(interpreted)

    @cached_property
    def mentions(self) -> dict[str, set[Unit]]:
        """Name → where it is mentioned."""
        found = defaultdict[str, set[Unit]](set)
        for file, tree in self.trees.items():
            for where, node in walk(tree):
                match node:
                    case ast.Name(id=name) | ast.Attribute(attr=name):
                        found[name].add((file, where))
                    case ast.alias(name=name):
                        found[name].add((file, where or name))
        return found

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """File → it and the files that import something of it."""
        files = {module_name(file): file for file in self.trees}
        found = {file: {file} for file in self.trees}
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                for name in names:
                    if name in files:
                        found[files[name]].add(file)
        return found

    def users(self, unit: Unit) -> set[Unit]:
        """What mentions this, in its file or one that imports something of it."""
        file, where = unit
        there = {user for name in parts(where) for user in self.mentions.get(name, ())}
        return {user for user in there if user[0] in self.importers[file]}

    def calling(self, unit: Unit, seen: Mapping[str, set[str]]) -> set[str]:
        """The tests that call this function or, where none is seen to, the one around it."""
        file, where = unit
        names = [where, *(where.rsplit(".", n)[0] for n in range(1, where.count(".") + 1))]
        return next((c for name in names if (c := seen.get(f"{file} {name}"))), set())

    def tests(self, mutant: Mutant) -> list[tuple[bool, list[str]]]:
        """One or two groups of tests in their order, and whether kernels are compiled in each.

        Those that call its function. Where no test is seen to, as with constants: those that call
        a function that mentions it, and so on. Where no test does that either, as with a process
        of its own: the tests of the room. A function that is seen to be called only where kernels
        are not compiled is a kernel: then first the tests that pass so.
        """
        found, known, kernel = set[str](), set[Unit](), False
        rest = [(mutant.file, mutant.where)]
        while rest:
            known.add(unit := rest.pop())
            usual, uncompiled = (self.calling(unit, seen) for seen in self.seen)
            found |= usual | uncompiled
            kernel |= bool(uncompiled and not usual)
            if not usual and not uncompiled:
                rest += self.users(unit) - known
        if not found:
            found = {t for t in self.compiled if t.startswith(f"tests/{room(mutant.file)}/")}
        python = {test for test, (seconds, _) in self.interpreted.items() if seconds < math.inf}
        quick = found & python if kernel else set[str]()
        groups = [
            (False, self.ordered(quick, self.interpreted, mutant)),
            (True, self.ordered(found - quick, self.compiled, mutant)),
        ]
        return [(compiled, tests) for compiled, tests in groups if tests]

    def ordered(self, tests: set[str], of: Record, mutant: Mutant) -> list[str]:
        """File after file: first those that name the module, then the quickest."""
        total = defaultdict[str, float](float)
        for test in tests:
            total[test.partition("::")[0]] += of[test][0]
        word = re.compile(rf"\b{module_name(mutant.file).rpartition('.')[2]}\b")
        order = {f: (not word.search((self.root / f).read_text()), s, f) for f, s in total.items()}
        return sorted(tests, key=lambda test: (order[test.partition("::")[0]], of[test][0], test))

    def stale(self, mutant: Mutant) -> set[str]:
        """The modules whose machine code may be another: those of what mentions what is mutated,
        and of what mentions that, and so on."""
        rest = [(mutant.file, mutant.where.split(".")[0])]
        known = set[Unit]()
        while rest:
            known.add(unit := rest.pop())
            rest += {(f, where.split(".")[0]) for f, where in self.users(unit)} - known
        return {module_name(file) for file, _ in known}


def callers(record: Record) -> dict[str, set[str]]:
    """`file function` → the tests that call it."""
    found = defaultdict[str, set[str]](set)
    for test, (_, calls) in record.items():
        for call in calls:
            found[call].add(test)
    return dict(found)


def parts(where: str) -> list[str]:
    """`A.b` → A, b; `x y` → x, y."""
    return where.replace(".", " ").split()
