"""Machine code kept between processes: never of other sources, never from a damaged file."""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

from pearl_devices.primitives import code_cache
from pearl_devices.primitives.code_cache import FOLDER, IN_USE, KEPT, compiled, sources
from pearl_devices.primitives.math import rng

ROOT = Path(__file__).parents[2]
Z = np.uint64(5)

CALLER = """
from pearl_devices.primitives.native import fast
from pearl_devices.primitives.math.rng import mix


@fast
def called(z):
    return mix(z)
"""
CALL = """
import numpy as np
from pearl_devices.primitives.caller import called
print(called(np.uint64(5)), sum(called.stats.cache_hits.values()))
"""


# --- other sources


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The package of the kernels, copied, and one file more with a function that calls one of
    another file."""
    copied = tmp_path / "tree" / "pearl_devices"
    plain = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "devices" / "pearl_devices", copied, ignore=plain)
    (copied / "primitives" / "caller.py").write_text(CALLER)
    return tmp_path / "tree"


def printed(tree: Path, variable: str, cache: Path, code: str = CALL, *given: str) -> list[str]:
    """What a process with the kernels of `tree` gets of `called`, and how often it found it."""
    plain = {k: v for k, v in os.environ.items() if not k.endswith("CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, cwd=tree,
        env=plain | {"PYTHONPATH": str(tree), variable: str(cache)}, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "PEARL_CACHE_DIR"])
def test_a_constant_changed_in_one_file_reaches_callers_in_others(
    tree: Path, tmp_path: Path, variable: str
) -> None:
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    before, misses = printed(tree, variable, warm)
    assert misses == "0"
    assert printed(tree, variable, warm) == [before, "1"]  # there is something to be stale
    file = tree / "pearl_devices" / "primitives" / "math" / "rng.py"
    shifts = "(27, 30, 31, 11, 40)"
    assert shifts in file.read_text()
    file.write_text(file.read_text().replace(shifts, "(29, 30, 31, 11, 40)"))
    after, _ = printed(tree, variable, warm)
    assert after != before
    assert [after, "0"] == printed(tree, variable, cold)
    assert not list(tree.rglob("*.nb[ic]"))  # nothing is written where the package is installed


EDITED = """
from pathlib import Path
import pearl_devices.primitives.code_cache as code_cache
code_cache.sources()
file = Path(code_cache.__file__).parent / "math" / "rng.py"
file.write_text(file.read_text().replace("(27, 30, 31, 11, 40)", "(29, 30, 31, 11, 40)"))
"""


def test_a_source_that_changes_before_it_is_imported_finds_nothing_that_was_kept(
    tree: Path, tmp_path: Path
) -> None:
    """Nor do functions that call it, whose own source is as it was."""
    warm = tmp_path / "warm"
    before, _ = printed(tree, "NUMBA_CACHE_DIR", warm)
    after, hits = printed(tree, "NUMBA_CACHE_DIR", warm, EDITED + CALL)
    assert hits == "0"
    assert before != after == printed(tree, "NUMBA_CACHE_DIR", tmp_path / "cold")[0]


def modules() -> Iterator[tuple[str, str]]:
    """Path and module of every source that the digest is of and that can be imported here."""
    for path, name in sources().names.items():
        module = name.removesuffix(".py").removesuffix("/__init__").replace(os.sep, ".")
        if not any(word in module for word in ("torch", "envpool", "gpu")):
            yield path, module


def test_compiled_code_takes_constants_from_no_file_that_the_digest_is_not_of() -> None:
    """A number that a compiled function gets from elsewhere is part of its machine code."""
    known = {module for _, module in modules()}
    seen = 0
    for path, module in modules():
        foreign = {
            alias.asname or alias.name
            for node in ast.walk(ast.parse(Path(path).read_text()))
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pearl")
            for alias in node.names
            if node.module not in known and f"{node.module}.{alias.name}" not in known
        }
        for found in vars(import_module(module)).values():
            if isinstance(found, Dispatcher) and found.py_func.__module__ == module:
                seen += 1
                assert not foreign & set(found.py_func.__code__.co_names), found
    assert seen > 150


def imports_of(file: Path) -> set[Path]:
    """The files of `pearl_devices` that a file imports, as Python's parser reads it."""
    root, found = ROOT / "devices", set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: an import that is relative"
            names = [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
        for both in names:
            for name in both:
                stem = root.joinpath(*name.split(".")) if name.startswith("pearl_devices") else None
                places = (stem.with_suffix(".py"), stem / "__init__.py") if stem else ()
                if existing := [place for place in places if place.is_file()]:
                    found.add(existing[0])
                    break
    return found


def test_every_file_that_a_kernel_may_take_a_constant_from_is_of_the_digest() -> None:
    """As Python's parser reads the imports, those inside functions and for type checkers too."""
    files = set((ROOT / "devices" / "pearl_devices" / "primitives").rglob("*.py"))
    ahead = list(files)
    while ahead:
        new = imports_of(ahead.pop()) - files
        files |= new
        ahead += new
    covered = {path for path, name in sources().names.items() if name.startswith("pearl_devices")}
    assert {str(file) for file in files} <= covered, "name it in USED_FILES of code_cache.py"
    beside = {Path(path) for path in covered if Path(path).parent.name == "pearl_devices"}
    assert beside <= files, "used by no kernel: leave it out of USED_FILES of code_cache.py"


EDITS = """
import sys
from pathlib import Path
from pearl_devices.primitives import code_cache
for file in ("/dev/null", *sys.argv[1:]):
    with open(Path(code_cache.__file__).parents[1] / file, "a") as opened:
        opened.write("EDITED = 1\\n")
    print(code_cache.sources.__wrapped__().digest)
"""


def test_only_an_edit_of_a_file_that_kernels_use_changes_the_digest(
    tree: Path, tmp_path: Path
) -> None:
    others = ["gpu/memory.py", "discover.py", "fpga/learner.py", "hosts.py", "__init__.py"]
    used = ["kernels/arrays.py", "primitives/__init__.py"]
    found = printed(tree, "PEARL_CACHE_DIR", tmp_path, EDITS, *others, *used)
    assert len(found) == 8
    assert len(set(found[:6])) == 1
    assert len(set(found[5:])) == 3


def test_what_is_compiled_after_a_source_has_changed_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path)
    path, (at_ns, size) = next(iter(sources().stamps.items()))
    older = replace(sources(), stamps={**sources().stamps, path: (at_ns - 1, size)})
    monkeypatch.setattr(code_cache, "sources", lambda: older)
    assert mix()(Z) == rng.mix(Z)
    assert not list(tmp_path.rglob("*.nb[ic]"))


def test_a_worker_of_other_sources_does_not_run() -> None:
    program = "from pearl.runtime.lanes.worker_process import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "1=1"],  # answers on its standard output
        input=json.dumps({"sources": "of another version"}) + "\n",
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "sources of the kernels have changed" in json.loads(done.stdout)["error"]


# --- damaged files


def mix() -> Any:
    """`rng.mix`, as another process would find it."""
    return compiled(nogil=True, error_model="numpy")(rng.mix.py_func)


def found(function: Any) -> int:
    return sum(function.stats.cache_hits.values())


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    """One bit, amid the machine code: pickle would not notice."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [cut, flip, lambda _: b"", lambda _: b"junk" * 99])
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path)
    expected = rng.mix(Z)
    assert mix()(Z) == expected
    (file,) = tmp_path.rglob(f"*.{suffix}")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    damaged, mended = mix(), mix()
    assert damaged(Z) == expected
    assert found(damaged) == 0
    assert mended(Z) == expected
    assert found(mended) == 1


def test_an_entry_of_another_signature_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that compile at once may both write the first entry."""
    for name, argument in (("a", Z), ("b", 5)):
        monkeypatch.setattr(code_cache, "folder", lambda name=name: tmp_path / name)
        mix()(argument)
    (mine,), (others,) = ((tmp_path / name).rglob("*.nbc") for name in ("a", "b"))
    shutil.copy(others, mine)
    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path / "a")
    again = mix()
    assert again(Z) == rng.mix(Z)
    assert found(again) == 0


def test_a_full_disk_is_said_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(code_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", full)
    with pytest.warns(RuntimeWarning, match=rf"{tmp_path}.*cannot be kept here: .*No space left"):
        assert mix()(Z) == rng.mix(Z)


# --- the folder


def kept(monkeypatch: pytest.MonkeyPatch, above: Path) -> Path | None:
    """`folder` of a process that begins with this NUMBA_CACHE_DIR."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(above))
    return code_cache.folder.__wrapped__()


def test_the_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        found = kept(monkeypatch, tmp_path / "cache")
    finally:
        os.umask(before)
    assert found == tmp_path / "cache" / FOLDER / sources().digest
    assert [found.stat().st_mode & 0o777, found.parent.stat().st_mode & 0o777] == [0o700, 0o700]


def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER).chmod(0o720)
    with pytest.warns(RuntimeWarning, match="others may write it"):
        assert kept(monkeypatch, tmp_path) is None
    (tmp_path / FOLDER).chmod(0o700)
    assert kept(monkeypatch, tmp_path) is not None


def test_without_a_folder_kernels_are_compiled_by_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot be kept here: .*File exists"):
        assert kept(monkeypatch, tmp_path / "file") is None
    monkeypatch.setattr(code_cache, "folder", lambda: None)
    assert mix()(Z) == rng.mix(Z)


def test_folders_used_longest_ago_are_removed_but_none_in_use(tmp_path: Path) -> None:
    for age in range(KEPT + 2):
        old = tmp_path / f"{age} back"
        (old / "pearl_devices.primitives").mkdir(parents=True)
        (old / IN_USE).touch()
        os.utime(old / IN_USE, (1e9 - age, 1e9 - age))
    with open(tmp_path / f"{KEPT + 1} back" / IN_USE) as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        code_cache._hold_folder(tmp_path, "new")
    stay = {f"{age} back" for age in (*range(KEPT - 1), KEPT + 1)}
    assert {f.name for f in tmp_path.iterdir()} == {"new", *stay}
