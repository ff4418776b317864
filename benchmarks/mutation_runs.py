"""Tests of a mutated tree, each in a fork of a process that holds the libraries already.

A `Tree` is a copy of the sources in a folder of its own; the working tree is never written. A fork
starts in it within milliseconds, imports the project's modules afresh and runs pytest in itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import math
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mutation_trace
from benchmarks.mutants import Mutant

LIBRARIES = (
    "numpy", "scipy.optimize", "scipy.sparse", "scipy.stats", "numba", "torch", "gymnasium",
    "networkx", "pydantic", "jinja2", "yaml", "typer.testing", "rich.console", "rich.table",
    "rich.progress", "safetensors.numpy", "platformdirs", "hypothesis", "jsonschema",
    "ortools.sat.python.cp_model", "_pytest.assertion.rewrite", "xml.etree.ElementTree",
)  # fmt: skip
"""Imported once, before any fork; those that are not installed are left out. Not highspy: it and
ortools cannot be in one process."""
OURS = {"pearl", "pearl_devices", "pearl_estimators", "pearl_configs", "benchmarks", "tests"}
FOLDERS = (".", "devices", "estimators")
OPTIONS = ("-q", "-m", "not slow", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")
DATA_BYTES, FILE_BYTES = 6 << 30, 2 << 30
"""Memory and file size that a mutant may take, so that none fills the machine."""
KERNELS = "pearl-kernels"  # `pearl_devices.primitives.code_cache.FOLDER`
SUBREAPER = 36  # of prctl: processes whose parent has ended become this one's


def warm() -> None:
    """Import what every fork needs; adopt what forks leave behind."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@dataclass
class Ran:
    """What a fork did. ended: `passed`, `failed`, `slow` (a test took far longer than it does) or
    `unfinished` (the time was up); test: the one that failed or was running; seconds: of each test
    that ended; failed: all that failed; wide: test → the fixtures it shares with others; text: the
    end of what was printed."""

    ended: str = "failed"
    test: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    wide: dict[str, list[str]] = field(default_factory=dict)
    text: str = ""

    def heard(self, event: list[Any], limit_s: Callable[[str], float], slow: float) -> float:
        """Take in one event; when the running test will have been too slow."""
        match event:
            case "begin", test, wide:
                self.test, self.wide[test] = test, wide
                return time.monotonic() + limit_s(test)
            case "failed", test:
                self.failed.append(test)
                return math.inf  # it is decided; to say why takes a while
            case "ran", test, seconds:
                self.seconds[test] = self.seconds.get(test, 0.0) + seconds
        return slow


@dataclass(frozen=True)
class Kept:
    """The machine code that a mutant finds. digest: that of the sources without it; stale: the
    functions, with their modules, whose code it may change: they are compiled anew."""

    digest: str
    stale: frozenset[str]

    def laid_out(self, home: Path, cache: Path) -> None:
        """Makes the cache folder `cache` of the mutated tree out of `home`, the one without. What
        was measured counts for the mutant too."""
        shutil.copytree(home, cache, ignore=shutil.ignore_patterns(KERNELS))
        for file in cache.glob("calibration-*.json"):
            calibration = importlib.import_module("pearl_estimators.host.calibration")
            body = json.loads(file.read_text()) | {"versions": calibration.versions()}
            del body["checksum"]
            file.write_text(json.dumps(calibration.sealed(body)))
        old = home / KERNELS / self.digest
        if not (self.digest and old.is_dir()):
            return
        code_cache = importlib.import_module("pearl_devices.primitives.code_cache")
        new = cache / KERNELS / code_cache.sources().digest
        for file in old.rglob("*.nb?"):
            name = f"{file.parent.name}.{file.name.partition('-')[0]}"
            if not any(name == f or name.startswith(f"{f}.") for f in self.stale):
                (new / file.parent.name).mkdir(mode=0o700, parents=True, exist_ok=True)
                os.link(file, new / file.parent.name / file.name)


@dataclass
class Tree:
    """A copy of the sources (root), and the folder of its caches (home)."""

    root: Path
    home: Path

    @classmethod
    def copied(cls, source: Path, folder: Path) -> Tree:
        """The files of `source` that git knows or would add, as they are now. What is in the folder
        already and is the same stays, with its caches."""
        tree = cls(folder / "tree", folder / "home")
        names = listed(source)
        for old in tree.root.rglob("*.py"):
            if str(old.relative_to(tree.root)) not in names:
                old.unlink()
        for name in names:
            file = tree.root / name
            if not (file.exists() and file.read_bytes() == (source / name).read_bytes()):
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, file)
        site = tree.home / "site"
        site.mkdir(parents=True, exist_ok=True)
        (tree.home / "cache").mkdir(exist_ok=True)
        shutil.copyfile(mutation_trace.__file__, site / "sitecustomize.py")
        if not (site / "pearl_configs").is_symlink():
            (site / "pearl_configs").symlink_to("../../tree/configs")
        subprocess.run(["git", "init", "-q"], cwd=tree.root, check=True)
        return tree

    def twin(self, folder: Path) -> Tree:
        """A copy of it with all its caches."""
        shutil.copytree(self.root.parent, folder, symlinks=True, dirs_exist_ok=True)
        return Tree(folder / "tree", folder / "home")

    @contextlib.contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """Within it the tree has the mutant, with a time of change that no cache has seen."""
        file = self.root / mutant.file
        source, stat = file.read_bytes(), file.stat()
        file.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            file.write_bytes(source)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def run(
        self,
        files: list[str],
        chosen: list[str],
        limit_s: Callable[[str], float],
        whole_s: float,
        hits: Path | None = None,
        kept: Kept | None = None,
    ) -> Ran:
        """The tests `chosen` of these files in that order until one fails, or all of them if none
        is chosen; limit_s: of a test; whole_s: of all; hits: the folder for traces; kept: what a
        mutated tree takes of the caches, which it leaves as they are."""
        scratch = Path(tempfile.mkdtemp(dir=self.home))
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            status = 70
            try:
                os.close(reader)
                cache = scratch / "cache" if kept else self.home / "cache"
                self._become(scratch / "log", cache)
                if kept:
                    sys.dont_write_bytecode = True
                    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
                    kept.laid_out(self.home / "cache", cache)
                status = Reporter(writer, chosen, hits).run(self.root, files, scratch)
                sys.stdout.flush()
            finally:
                os._exit(status)
        os.close(writer)
        try:
            ran = watched(pid, reader, limit_s, whole_s)
            ran.text = (scratch / "log").read_text(errors="replace")[-8000:]
            return ran
        finally:
            os.close(reader)
            end_children()
            shutil.rmtree(scratch, ignore_errors=True)

    def kernels(self) -> str:
        """The digest by which machine code was kept last."""
        used = (self.home / "cache" / KERNELS).glob("*/in-use")
        return max(used, key=lambda f: f.stat().st_mtime, default=Path()).parent.name

    def _become(self, log: Path, cache: Path) -> None:
        """The forked process starts as if it had been started in this tree."""
        os.setsid()
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT)
        for old, new in ((null, 0), (out, 1), (out, 2)):
            os.dup2(old, new)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        os.chdir(self.root)
        sources = [str((self.root / folder).resolve()) for folder in FOLDERS]
        sources.append(str(self.home / "site"))
        inherited = [p for p in sys.path if p and not (Path(p) / "benchmarks").is_dir()]
        sys.path[:] = [*sources, *inherited]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(sources),
            "PEARL_CACHE_DIR": str(cache),
            mutation_trace.ROOT: f"{self.root}/",
        }
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        importlib.invalidate_caches()


class Reporter:
    """A plugin of pytest that chooses tests and tells by a pipe how they go."""

    def __init__(self, pipe: int, chosen: list[str], hits: Path | None) -> None:
        self.pipe, self.hits = pipe, hits
        self.order = {test: i for i, test in enumerate(chosen)}
        self.now: list[str] = []

    def run(self, root: Path, files: list[str], scratch: Path) -> int:
        self.trace("collection")
        first = ["-x"] if self.order else []
        where = ["--rootdir", str(root), "-c", str(root / "pyproject.toml")]
        base = ["--basetemp", str(scratch / "pytest")]
        status = int(pytest.main([*OPTIONS, *first, *where, *base, *files], plugins=[self]))
        self.trace("end")
        return status

    def tell(self, *words: object) -> None:
        os.write(self.pipe, (json.dumps(words) + "\n").encode())

    def trace(self, key: str) -> None:
        if self.hits:
            self.now.append(key)
            mutation_trace.anew(str(trace_file(self.hits, key)))

    def back(self) -> None:
        if self.hits:
            self.now.pop()
            self.trace(self.now.pop())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.order:
            items[:] = [item for item in items if item.nodeid in self.order]
            items.sort(key=lambda item: self.order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.trace(item.nodeid)
        info: Any = getattr(item, "_fixtureinfo", None)
        fixtures = info.name2fixturedefs.values() if info else ()
        wide = [wide_key(f[-1]) for f in fixtures if f[-1].scope != "function"]
        self.tell("begin", item.nodeid, wide)
        try:
            return (yield)
        finally:
            self.back()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        self.trace(wide_key(fixturedef))
        try:
            return (yield)
        finally:
            self.back()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)
        self.tell("ran", report.nodeid, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)


def trace_file(folder: Path, key: str) -> Path:
    """Where the trace of a test or fixture is."""
    return folder / hashlib.sha256(key.encode()).hexdigest()


def wide_key(fixture: Any) -> str:
    return f"fixture {fixture.baseid} {fixture.argname}"


def watched(pid: int, reader: int, limit_s: Callable[[str], float], whole_s: float) -> Ran:
    """Follow a fork until it ends or its time is up."""
    ran, rest, handle = Ran(), b"", os.pidfd_open(pid)
    slow = end = time.monotonic() + whole_s
    pipe = [reader]
    try:
        while True:
            left = min(slow, end) - time.monotonic()
            if left <= 0:
                ran.ended = "slow" if slow < end else "unfinished"
                return ran
            ready = select.select([*pipe, handle], [], [], left)[0]
            if reader in ready:
                read = os.read(reader, 1 << 16)
                pipe = [reader] if read else []
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    slow = ran.heard(json.loads(line), limit_s, slow)
            elif handle in ready:
                break  # a process that it forked may hold the pipe still
    finally:
        os.close(handle)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        ran.ended = "passed"
    elif ran.failed:
        ran.test = ran.failed[0]
    return ran


def adopt() -> None:
    """This process becomes the parent of all that its forks leave behind."""
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill every process below this one, those that were left to it too."""
    while found := [
        int(pid)
        for task in Path("/proc/self/task").glob("*/children")
        for pid in task.read_text().split()
    ]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def listed(source: Path) -> list[str]:
    """The files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=source, capture_output=True, check=True).stdout
    names = sorted(set(out.decode().split("\0")) - {""})
    return [name for name in names if (source / name).is_file()]
