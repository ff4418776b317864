"""The order of packages and rooms, no import upwards, and what a room shows to the others.

A room is a folder of `pearl/`. Its `__init__` names in `__all__` all that other rooms import.
"""

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import isfunction
from pathlib import Path

import networkx as nx
import pytest

import pearl
from tests.sources import ROOT, attributes, imports, parsed

FOLDERS = {
    "pearl_devices": ROOT / "devices" / "pearl_devices",
    "pearl_estimators": ROOT / "estimators" / "pearl_estimators",
    "pearl": ROOT / "pearl",
}
MAY_IMPORT = {
    "pearl_devices": set(),
    "pearl_estimators": {"pearl_devices"},
    "pearl": {"pearl_devices", "pearl_estimators", "pearl_configs"},
}

ROOMS = [
    "",  # the modules beside the rooms: errors, files, seeds, time_limit, …
    "schemas",
    "graph",
    "algorithms",
    "spec",
    "planning",
    "verification",
    "io",
    "solvers.orders",
    "solvers.model",
    "solvers.period",
    "solvers.large",
    "solvers.infeasible",
    "solvers.methods",
    "solvers",
    "solvers.makespan",
    "planner",
    "runtime",
    "runtime.environments",
    "runtime.protocol",
    "runtime.lanes",
    "cluster",
    "report",
    "explanation",
    "advice",
    "training",
    "callbacks",
    "population",
    "cli",
    "testing",
    "entry",  # pearl/__init__.py and pearl/__main__.py
]
"""The rooms of `pearl/`, lowest first: a module imports from its own room and from lower ones."""

WHOLE = {"test_docs.py", "test_installed.py", "test_knowledge.py", "test_layering.py"}
WHOLE |= {"test_public.py", "test_rooms.py", "test_slow.py"}
"""Test files that are about the whole tree."""


def named(file: Path, package: str) -> str:
    """The module of a file."""
    parts = file.relative_to(FOLDERS[package]).with_suffix("").parts
    return ".".join((package, *(p for p in parts if p != "__init__")))


FILES = {named(f, p): f for p, folder in FOLDERS.items() for f in sorted(folder.rglob("*.py"))}
"""Module of one of the packages → its file."""


@cache
def module_of(name: str) -> str | None:
    """The module of `pearl` that a dotted name is or is found in."""
    name = file_module(name) or ""
    return name if name.startswith("pearl.") else None


@cache
def file_module(name: str) -> str | None:
    """The module of the three packages that a dotted name is or is found in."""
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name or None


def room_of(module: str) -> str:
    if module in ("pearl", "pearl.__main__"):
        return "entry"
    folders = FILES[module].relative_to(FOLDERS["pearl"]).parent.parts
    return ".".join(folders if ".".join(folders) in ROOMS else folders[:1])


def arrows() -> Iterator[tuple[str, str, str]]:
    """(module, dotted name that it imports, module of that name), within `pearl`."""
    for module, file in FILES.items():
        if module.partition(".")[0] == "pearl":
            for name in imports(file):
                target = module_of(name)
                if target and target != module:
                    yield module, name, target


def test_a_package_imports_only_the_layers_below_it():
    ours = set(FOLDERS) | {"pearl_configs"}
    for module, file in FILES.items():
        package = module.partition(".")[0]
        found = {name.partition(".")[0] for name in imports(file)} & ours
        above = found - {package} - MAY_IMPORT[package]
        assert not above, f"{file.relative_to(ROOT)} imports {above}"


def test_every_folder_of_pearl_is_a_room():
    assert {room_of(module) for module in FILES if module.startswith("pearl.")} <= set(ROOMS)


def test_no_import_runs_up():
    found = {
        (module, room_of(target))
        for module, _, target in arrows()
        if ROOMS.index(room_of(target)) > ROOMS.index(room_of(module))
    }
    assert found == set()


TYPE_CIRCLES = [
    ["pearl.advice", "pearl.advice.page"],
    ["pearl.explanation", "pearl.explanation.sections"],
    ["pearl.runtime.lanes.engine", "pearl.runtime.lanes.worker_monitor"],
    ["pearl.runtime.protocol.residency", "pearl.runtime.protocol.single_lane"],
    ["pearl.training.policy", "pearl.training.policy_export"],
]
"""Pairs of modules of which one imports the other for its types alone. The list may only shrink."""


@pytest.mark.parametrize(("for_types", "known"), [(False, []), (True, TYPE_CIRCLES)])
def test_no_circle_joins_modules(for_types: bool, known: list[list[str]]):
    """Of the three packages, by imports inside functions too, and then also by imports for types.
    `pearl` itself imports on use."""
    graph = nx.DiGraph(
        (module, target)
        for module, file in FILES.items()
        for name in imports(file, for_types=for_types)
        if (target := file_module(name)) and target not in (module, "pearl")
    )
    circles = sorted(sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1)
    assert circles == known


def shown() -> dict[str, set[str]]:
    """Room → what other rooms and the examples import of it, and what is public there."""
    found = defaultdict(set)
    names = [
        (name, target) for module, name, target in arrows() if room_of(module) != room_of(target)
    ]
    for file in (ROOT / "examples").glob("*.py"):
        names += [(name, target) for name in imports(file) if (target := module_of(name))]
    names += [(f"{home}.{name}", home) for name, home in pearl._HOME.items() if module_of(home)]
    for name, target in names:
        room = room_of(target)
        found[room].add(name.removeprefix(f"pearl.{room}.").partition(".")[0])
    return found


def test_a_room_states_what_is_imported_of_it_and_no_other_module():
    used = shown()
    for room in ROOMS[1:-1]:
        if room == "testing":
            continue
        package = import_module(f"pearl.{room}")
        stated = set(getattr(package, "__all__", ()))
        inside = Path(package.__file__).parent.glob("*")
        modules = {f.stem for f in inside if f.suffix == ".py" or (f / "__init__.py").exists()}
        modules = {name for name in modules if f"{room}.{name}" not in ROOMS}
        assert used[room] <= stated, f"__all__ of pearl.{room}"
        assert stated & modules <= used[room], f"__all__ of pearl.{room}"
        assert all(name in modules or hasattr(package, name) for name in stated), room


def imported(file: Path) -> set[str]:
    """Dotted names that a test and its helpers import, or use of `pearl`; public ones by the module
    of each."""
    found: set[str] = set()
    files = [file]
    for each in files:
        found |= imports(each) | {f"pearl.{name}" for name in attributes(each, "pearl")}
        helpers = {name for name in found if name.startswith("tests.")}
        paths = {ROOT.joinpath(*n.split(".")).with_suffix(".py") for n in helpers}
        paths |= {ROOT.joinpath(*n.split(".")[:-1]).with_suffix(".py") for n in helpers}
        files += [path for path in sorted(paths) if path.is_file() and path not in files]
    homes = {f"pearl.{name}": f"{home}.{name}" for name, home in pearl._HOME.items()}
    return {homes.get(name, name) for name in found}


def test_every_test_file_lies_in_the_folder_of_a_room_that_it_imports():
    packages = {"devices": "pearl_devices", "estimators": "pearl_estimators"}
    misplaced = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        folder, *inner = file.relative_to(ROOT / "tests").parts
        if folder in WHOLE or folder == "recipes":
            continue
        names = imported(file)
        home = packages.get(folder, folder if folder == "benchmarks" else f"pearl.{folder}")
        if not inner:  # the modules beside the rooms
            found = any((m := module_of(n)) and room_of(m) == "" for n in names)
        else:
            found = any(f"{name}.".startswith(f"{home}.") for name in names)
        if not found:
            misplaced.append(str(file.relative_to(ROOT)))
    assert misplaced == []


def test_a_name_is_of_one_class():
    count = Counter(
        node.name
        for file in FILES.values()
        for node in parsed(file).body
        if isinstance(node, ast.ClassDef)
    )
    del count["Options"]  # every algorithm has such a class
    assert {name: times for name, times in count.items() if times > 1} == {}


def test_the_listed_packages_are_those_in_the_tree():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    sources = listed["package-dir"]
    found = {
        ".".join((name, *init.parent.relative_to(ROOT / folder).parts))
        for name, folder in sources.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(listed["packages"])


def test_no_submodule_bears_the_name_of_a_public_function():
    functions = {name for name in pearl.__all__ if isfunction(getattr(pearl, name))} | {"compile"}
    assert {"plan", "sweep", "advise"} <= functions
    assert not functions & {p.stem for p in (ROOT / "pearl").iterdir()}
