"""Which tests a mutant meets, and which machine code it may change."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from benchmarks.mutants import Mutant, walk
from benchmarks.mutation_runs import listed

PACKAGES = ("pearl", "devices", "estimators")
"""Folders of the tree with the packages in them."""

Unit = tuple[str, str]
"""A file, and a function, a class or the names that are assigned there, as `Mutant.where`."""


def sources(root: Path) -> list[str]:
    """The modules of the packages."""
    return [f for f in listed(root) if f.endswith(".py") and f.split("/")[0] in PACKAGES]


def module_name(file: str) -> str:
    """`devices/pearl_devices/cpu.py` → `pearl_devices.cpu`."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts[1:] if parts[0] in ("devices", "estimators") else parts)


def room(file: str) -> str:
    """The folder under `tests/` for a module: `pearl/spec/units.py` → `spec`."""
    first, *rest = file.split("/")
    return rest[0] if first == "pearl" and len(rest) > 1 else first


class Source:
    """What one module imports and mentions. imports: name here → module and name there, which is
    empty for a module itself."""

    def __init__(self, text: bytes) -> None:
        self.tree = ast.parse(text)
        self.imports = dict[str, tuple[str, str]]()
        self.modules = set[str]()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = alias.name, ""
                    self.modules.add(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = node.module, alias.name
                    self.modules |= {node.module, f"{node.module}.{alias.name}"}

    def mentions(self) -> Iterator[tuple[str, str, str]]:
        """Where, the name that is mentioned and, if it is an attribute, what it is one of, which is
        `?` for all but a plain name."""
        for where, node in walk(self.tree):
            match node:
                case ast.Name(id=name):
                    yield where, name, ""
                case ast.Attribute(value=ast.Name(id=of), attr=name):
                    yield where, name, of
                case ast.Attribute(attr=name):
                    yield where, name, "?"


class Choice:
    """seconds: of each test; calls: test → `file function` it is seen to call."""

    def __init__(
        self, root: Path, seconds: Mapping[str, float], calls: Mapping[str, set[str]]
    ) -> None:
        self.seconds = seconds
        self.names = {file: module_name(file) for file in sources(root)}
        self.files = {name: file for file, name in self.names.items()}
        self.sources = {
            file: Source((root / file).read_bytes())
            for file in listed(root)
            if file.endswith(".py") and file.split("/")[0] in (*PACKAGES, "tests")
        }
        self.callers = dict[str, set[str]]()
        for test, there in calls.items():
            for call in there:
                self.callers.setdefault(call, set()).add(test)

    @cached_property
    def users(self) -> dict[Unit, set[Unit]]:
        """A name of a module → what mentions it; `?` and a name → what mentions an attribute so
        called."""
        found = dict[Unit, set[Unit]]()
        for file in self.names:
            for where, name, of in self.sources[file].mentions():
                there = self.meant(file, name) if not of else self.attribute(file, of, name)
                found.setdefault(there, set()).add((file, where))
        return found

    def meant(self, file: str, name: str) -> Unit:
        """The module and name behind a name in this file."""
        for _ in self.files:
            module, there = self.sources[file].imports.get(name, ("", ""))
            if module not in self.files or not there:
                break
            if f"{module}.{there}" in self.files:
                return self.files[f"{module}.{there}"], ""
            file, name = self.files[module], there
        return file, name

    def attribute(self, file: str, of: str, name: str) -> Unit:
        """The same of an attribute, where it is one of a module."""
        there, inner = self.meant(file, of)
        return self.meant(there, name) if there != file and not inner else ("?", name)

    def calling(self, unit: Unit) -> set[str]:
        """The tests that call this function or, where none is seen to, the one around it."""
        file, where = unit
        names = [where, *(where.rsplit(".", n)[0] for n in range(1, where.count(".") + 1))]
        return next((c for name in names if (c := self.callers.get(f"{file} {name}"))), set())

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that call its function. Where no test is seen to, as with compiled functions and
        with constants: those that call a function that mentions it, and so on. Where no test does
        that either, as with a process of its own: the tests of the room."""
        found, known = set[str](), set[Unit]()
        rest = [(mutant.file, mutant.where)]
        while rest:
            known.add(unit := rest.pop())
            there = self.calling(unit)
            found |= there
            if not there:
                file, where = unit
                keys = {(at, name) for name in parts(where) for at in (file, "?")}
                rest += {u for k in keys for u in self.users.get(k, ())} - known
        if not found:
            found = {t for t in self.seconds if t.startswith(f"tests/{room(mutant.file)}/")}
        direct = {t for t in found if self.direct(t, self.names[mutant.file])}
        place = {t: (t not in direct, t.partition("::")[0]) for t in found}
        total = dict.fromkeys(place.values(), 0.0)
        for test in found:
            total[place[test]] += self.seconds[test]
        order = {p: (p[0], total[p], p[1]) for p in total}
        return sorted(found, key=lambda t: (order[place[t]], self.seconds[t], t))

    def direct(self, test: str, module: str) -> bool:
        """Whether the file of a test imports the module itself, or by a file of helpers."""
        there = self.sources[test.partition("::")[0]].modules
        helpers = [self.sources.get(f"{name.replace('.', '/')}.py") for name in there]
        return module in there or any(h and module in h.modules for h in helpers)

    def stale(self, mutant: Mutant) -> frozenset[str]:
        """The functions whose machine code may be another: those that mention what is mutated, and
        what mentions those, and so on."""
        rest = [(mutant.file, name) for name in parts(mutant.where.split(".")[0])]
        known = set[Unit]()
        while rest:
            known.add(unit := rest.pop())
            for file, where in self.users.get(unit, ()):
                rest += {(file, name) for name in parts(where.split(".")[0])} - known
        return frozenset(f"{self.names[file]}.{name}" for file, name in known)


def parts(where: str) -> list[str]:
    """`A.b` → A, b; `x y` → x, y."""
    return where.replace(".", " ").split()
