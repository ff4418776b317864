"""Which tests a mutant meets, near and cheap ones first, and whether it changes machine code."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.mutants import Key, Mutant, key
from benchmarks.mutation_runs import Unit, listed
from pearl.files import write_atomically

PACKAGES = ("pearl", "devices", "estimators")
"""Folders of the tree with the packages in them."""

BATCH_S, GROWTH, FILE_S = 3.0, 3, 0.3
"""CPU-seconds of the tests of the first batch of a mutant, the share that each further batch has of
the one before, and CPU-seconds for each test file of a batch (assumed)."""

RECORDED_S = 0.1
"""CPU-seconds of a test beyond which it is too dear for the record of what tests reach (assumed):
78 % of the tests take less, and together 7 % of all CPU-seconds."""

FACTORS = (1, 2, 4, 8)
"""Of the cost of a test in the order, where the test mentions the mutated function, its file has a
word of the module's name, it is of the module's room, and elsewhere (assumed)."""

COMPILERS = frozenset(["compiled", "part", "njit", "overload", "intrinsic"])
"""What compiles functions, and what is assigned from a call of one."""

_REFERENCE = re.compile(r"([\w.]+):(\w+)")
"""A function that is imported on use: `package.module:function`."""


def sources(root: Path, folders: Iterable[str] = PACKAGES) -> list[str]:
    """The modules of the packages."""
    return [f for f in listed(root) if f.endswith(".py") and f.split("/")[0] in folders]


def module_name(file: str) -> str:
    """`devices/pearl_devices/cpu.py` → `pearl_devices.cpu`."""
    name = re.sub(r"(/__init__)?\.py$", "", file)
    return re.sub("^(devices|estimators)/", "", name).replace("/", ".")


def room(file: str) -> str:
    """The folder under `tests/` for a module: `pearl/spec/units.py` → `spec`."""
    first, *rest = file.split("/")
    return rest[0] if first == "pearl" and len(rest) > 1 else first


@dataclass
class Reach:
    """cpu_s: test that has run → its CPU-seconds; tests: mutant → the tests that reach it."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    tests: dict[Key, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Reach:
        kept = json.loads(file.read_text())
        names = list(kept["cpu_s"])
        reached = {tuple(mutant): {names[i] for i in tests} for mutant, tests in kept["tests"]}
        return cls(kept["cpu_s"], reached)

    def write(self, file: Path) -> None:
        at = {test: i for i, test in enumerate(self.cpu_s)}
        tests = [[mutant, sorted(at[t] for t in found)] for mutant, found in self.tests.items()]
        write_atomically(file, json.dumps({"cpu_s": self.cpu_s, "tests": tests}).encode())


class Choice:
    """The mentions of names in the packages and in the tests.

    tests: test → the functions, fixtures and classes that it consists of; costs_s: test → its
    CPU-seconds, where they are known; trees: the syntax tree of each file.
    """

    def __init__(
        self, root: Path, tests: dict[str, list[Unit]], costs_s: dict[str, float] | None = None
    ) -> None:
        self.root, self.tests, self.costs_s = root, tests, costs_s or {}
        self.mentions = defaultdict[str, set[Unit]](set)
        self.importers = defaultdict[str, set[str]](set)
        files = sources(root, (*PACKAGES, "tests"))
        self.trees = {file: ast.parse((root / file).read_bytes()) for file in files}
        self._files = {module_name(file): file for file in files}
        assigned = [node for tree in self.trees.values() for node in tree.body]
        self._compilers = COMPILERS.union(
            *(
                {n.id for n in node.targets if isinstance(n, ast.Name)}
                for node in assigned
                if isinstance(node, ast.Assign) and called(node.value) & COMPILERS
            )
        )
        self.compiled, self.functions, self.classes = set[Unit](), set[Unit](), set[Unit]()
        for file, tree in self.trees.items():
            self.importers[file].add(file)
            for where, node in inside(tree):
                for name in self._names(file, node):
                    self.mentions[name].add((file, where))
                match node:
                    case ast.FunctionDef(decorator_list=by) | ast.ClassDef(decorator_list=by):
                        self.functions.add((file, where))
                        if isinstance(node, ast.ClassDef):
                            self.classes.add((file, where))
                        used = by
                    case ast.Assign(value=ast.Call(args=[_, *_]) as call):
                        used = [call]
                    case _:
                        used = []
                if any(called(each) & self._compilers for each in used):
                    self.compiled.add((file, where))

    def _names(self, file: str, node: ast.AST) -> Iterator[str]:
        """The names that a node mentions. Notes what the node imports."""
        modules = list[str]()
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Import(names=aliases):
                modules = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                modules = [module, *(f"{module}.{alias.name}" for alias in aliases)]
                yield from (alias.name for alias in aliases)
            case ast.Constant(value=str(text)) if found := _REFERENCE.fullmatch(text):
                module, name = found.groups()
                modules = [m for m in self._files if f".{m}".endswith(f".{module}")]
                yield name
            case ast.Constant(value=str(text)) if text.isidentifier():
                modules = [f"{module_name(file)}.{text}"]
        for name in modules:
            if name in self._files:
                self.importers[self._files[name]].add(file)

    def users(self, unit: Unit) -> set[Unit]:
        """The places that mention the unit, in its file or one that imports something of it; any
        place if there are none."""
        file, where = unit
        names = where.replace(".", " ").split()
        there = {user for name in names for user in self.mentions[name]} - {unit}
        return {user for user in there if user[0] in self.importers[file]} or there

    def is_compiled(self, start: Unit) -> bool:
        """Whether machine code may change with this unit: it is a compiled function or around one,
        or a compiled function mentions it, directly or through what is assigned."""
        file, where = start
        if where.partition(".")[0] in COMPILERS:
            return False
        if any(f == file and f"{w}.".startswith(f"{where}.") for f, w in self.compiled):
            return True
        rest, known = [start], set[Unit]()
        while rest:
            known.add(unit := rest.pop())
            names = unit[1].split(".")
            around = {(unit[0], ".".join(names[:n])) for n in range(1, len(names) + 1)}
            if around & self.compiled:
                return True
            if unit == start or not around & self.functions:
                rest += self.users(unit) - known
        return False

    def callers(self, start: Unit) -> set[Unit]:
        """The functions, but for compiled ones, that first lead to this unit."""
        rest, known, found = [start], set[Unit](), set[Unit]()
        while rest:
            known.add(unit := rest.pop())
            users = self.users(unit) - known
            plain = {u for u in users & self.functions - self.classes if not self.is_compiled(u)}
            found |= plain
            rest += users - plain
        return found

    def batches(self, mutant: Mutant, reach: Reach) -> list[list[str]]:
        """The tests that reach the mutant, and those without a record of its room and of
        files that import its module: the cheap ones that are near first, dear ones without a record
        last."""
        place, stem = f"tests/{room(mutant.file)}/", set(Path(mutant.file).stem.split("_"))
        reached = reach.tests.get(key(mutant), set())
        direct = self.users((mutant.file, mutant.where))
        costs_s = self.costs_s | reach.cpu_s
        order, seen = dict[str, tuple[bool, float]](), Counter[str]()
        for test, units in self.tests.items():
            file, function = file_of(test), test.partition("[")[0]
            beside, known = test.startswith(place), test in reach.cpu_s
            if test in reached or (not known and (beside or file in self.importers[mutant.file])):
                named = beside and stem & set(Path(file).stem.split("_"))
                near = [bool(direct.intersection(units)), bool(named), beside, True]
                seen[function] += 1
                factor = FACTORS[near.index(True)] * seen[function].bit_length()
                cost_s = costs_s.get(test, 0.0)
                order[test] = not known and cost_s > RECORDED_S, factor * (cost_s + FILE_S)
        batches, files, spent_s, share_s = list[list[str]](), dict[str, int](), math.inf, BATCH_S
        for test in sorted(order, key=order.__getitem__):
            if spent_s >= share_s:
                share_s *= GROWTH if batches else 1
                batches.append([])
                spent_s = 0.0
                files.clear()
            spent_s += costs_s.get(test, 0.0) + FILE_S * (file_of(test) not in files)
            files[file_of(test)] = len(files)
            batches[-1].append(test)
        return [by_file(batch) for batch in batches]


def by_file(tests: list[str]) -> list[str]:
    """The tests of each file together, so that what they share is made once."""
    first = {file_of(test): -i for i, test in reversed(list(enumerate(tests)))}
    return sorted(tests, key=lambda test: first[file_of(test)], reverse=True)


def called(node: ast.AST) -> set[str]:
    """The name of a decorator or of a called function."""
    match node:
        case ast.Call(func=func):
            return called(func)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
    return set()


def file_of(test: str) -> str:
    return test.partition("::")[0]


def inside(node: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node below this one, with the function or class around it, or else the names that are
    assigned there, as in `Mutant.where`."""
    for child in ast.iter_child_nodes(node):
        inner = where
        match child:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                inner = f"{where}.{name}" if where else name
            case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target) if not where:
                inner = " ".join(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.Import() | ast.ImportFrom() if not where:
                for alias in child.names:
                    alone = copy(child)
                    alone.names = [alias]
                    yield alias.asname or alias.name, alone
                continue
        yield inner, child
        yield from inside(child, inner)
