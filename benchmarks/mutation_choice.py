"""Which tests a mutant meets, nearest first, and whether it changes machine code: the sources are
read, no test runs for the choice."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path

from benchmarks.mutants import Mutant
from benchmarks.mutation_runs import Unit, listed

PACKAGES = ("pearl", "devices", "estimators")
"""Folders of the tree with the packages in them."""

FILES = 3
"""Test files of the first batch of a mutant. Each batch has twice the files of the one before."""

NAMED, ROOM, FAR = 3, 4, 99
"""Distances of a test whose file has a word of the module's name, of another test of its room, and
of one that does not lead there. Nearer ones mention the mutated lines through fewer others."""

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


class Choice:
    """The mentions of names in the packages and in the tests.

    tests: test → the functions, fixtures and classes that it consists of.
    """

    def __init__(self, root: Path, tests: dict[str, list[Unit]]) -> None:
        self.tests = tests
        costs = root / "tests/costs.json"
        self.costs_s: dict[str, float] = json.loads(costs.read_text()) if costs.exists() else {}
        self.mentions = defaultdict[str, set[Unit]](set)
        self.importers = defaultdict[str, set[str]](set)
        self.tables = dict[str, str]()
        trees = {f: ast.parse((root / f).read_bytes()) for f in sources(root, (*PACKAGES, "tests"))}
        self._files = {module_name(file): file for file in trees}
        assigned = [node for tree in trees.values() for node in tree.body]
        self._compilers = COMPILERS.union(
            *(
                {n.id for n in node.targets if isinstance(n, ast.Name)}
                for node in assigned
                if isinstance(node, ast.Assign) and called(node.value) & COMPILERS
            )
        )
        self.compiled, self.functions = set[Unit](), set[Unit]()
        for file, tree in trees.items():
            self.importers[file].add(file)
            for where, node in inside(tree):
                for name in self._names(file, node):
                    self.mentions[name].add((file, where))
                match node:
                    case ast.FunctionDef(decorator_list=by) | ast.ClassDef(decorator_list=by):
                        self.functions.add((file, where))
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
                self._table(modules)
                yield name
            case ast.Constant(value=str(text)) if text.isidentifier():
                modules = [f"{module_name(file)}.{text}"]
                self._table(modules)
                yield f"{text!r}"
        for name in modules:
            if name in self._files:
                self.importers[self._files[name]].add(file)

    def _table(self, modules: Iterable[str]) -> None:
        """Note modules that are imported by a text: tests name them by the last word."""
        self.tables |= {self._files[m]: m.rpartition(".")[2] for m in modules if m in self._files}

    def users(self, unit: Unit) -> set[Unit]:
        """The places that mention the unit, in its file or one that imports something of it; any
        place if there are none."""
        file, where = unit
        names = where.replace(".", " ").split()
        there = {user for name in names for user in self.mentions[name]} - {unit}
        return {user for user in there if user[0] in self.importers[file]} or there

    def distances(self, mutant: Mutant) -> tuple[dict[Unit, int], dict[str, int]]:
        """Unit → number of mentions from there to the mutated one; and the same of the words by
        which tests name modules that are imported by a text."""
        near = {(mutant.file, mutant.where)}
        known, words, distance = dict.fromkeys(near, 0), dict[str, int](), 0
        while near:
            distance += 1
            for word in {self.tables[file] for file, _ in near if file in self.tables}:
                words.setdefault(word, distance)
            near = {user for unit in near for user in self.users(unit)}
            for word in [w for w, begun in words.items() if begun == distance - 1]:
                near |= {u for u in self.mentions[f"{word!r}"] if u[0].startswith("tests/")}
            near -= known.keys()
            known |= dict.fromkeys(near, distance)
        return known, words

    def is_compiled(self, mutant: Mutant) -> bool:
        """Whether machine code may change with the mutant: it is in a compiled function or around
        one, or a compiled function mentions it, directly or through what is assigned."""
        file, where = mutant.file, mutant.where
        if where.partition(".")[0] in COMPILERS:
            return False
        if any(f == file and f"{w}.".startswith(f"{where}.") for f, w in self.compiled):
            return True
        rest, known = [(file, where)], set[Unit]()
        while rest:
            known.add(unit := rest.pop())
            names = unit[1].split(".")
            around = {(unit[0], ".".join(names[:n])) for n in range(1, len(names) + 1)}
            if around & self.compiled:
                return True
            if unit == (file, where) or not around & self.functions:
                rest += self.users(unit) - known
        return False

    def batches(self, mutant: Mutant) -> list[list[str]]:
        """The tests that lead to the mutant, and the others of its room and of files that import
        its module or have a word of its name: the nearest first, of equal ones those of its room,
        then the first of each function's parameters, then the cheapest."""
        (near, words), place = self.distances(mutant), f"tests/{room(mutant.file)}/"
        stem = set(Path(mutant.file).stem.split("_"))
        order, seen = dict[str, tuple[float, ...]](), Counter[str]()
        for test, units in self.tests.items():
            function, _, given = test.partition("[")
            distance = min((near[unit] for unit in units if unit in near), default=FAR)
            parameters = [words[w] + 1 for w in re.split(r"\W", given) if w in words]
            distance = min([distance, *parameters])
            beside = test.startswith(place)
            if beside or file_of(test) in self.importers[mutant.file]:
                named = beside and stem & set(Path(file_of(test)).stem.split("_"))
                distance = min(distance, NAMED if named else ROOM)
            if distance < FAR:
                order[test] = (
                    distance, not beside, seen[function].bit_length(), self.costs_s.get(test, 0.0)
                )  # fmt: skip
                seen[function] += 1
        batches, files = list[list[str]]([[]]), set[str]()
        for test in sorted(order, key=order.__getitem__):
            if len(files | {file_of(test)}) > FILES << (len(batches) - 1):
                batches.append([])
                files.clear()
            files.add(file_of(test))
            batches[-1].append(test)
        return batches


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
