"""Tests of a mutated tree, each run in a fork of a process that holds the libraries already.

A `Tree` is a copy of the sources in a folder of its own; the working tree is never written. A fork
starts in it within milliseconds, imports the project's modules afresh and runs pytest in itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mutation_trace, processes
from benchmarks.mutants import Mutant

LIBRARIES = (
    "scipy.optimize", "scipy.sparse", "scipy.stats", "numba", "torch", "gymnasium", "networkx",
    "pydantic", "jinja2", "typer.testing", "rich.progress", "safetensors.numpy", "hypothesis",
    "jsonschema", "ortools.sat.python.cp_model",
)  # fmt: skip
"""Imported once, before any fork; those that are not installed are left out. Not highspy: it and
ortools cannot be in one process."""
OURS = {"pearl", "pearl_devices", "pearl_estimators", "pearl_configs", "benchmarks", "tests"}
FOLDERS = (".", "devices", "estimators")
OPTIONS = ("-q", "-m", "not slow", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")
DATA_BYTES, FILE_BYTES = 6 << 30, 2 << 30
"""Memory and file size that a mutant may take, so that none fills the machine."""
WAIT = 4.0
"""Seconds of a clock for each CPU-second that a test may take: its processes compute too."""
PATIENCE = 10.0
"""The same for all tests of a run: many processes wait for a core on a busy machine, and a test
that waits for ever must end."""
POLL_S = 0.1
SUBREAPER = 36  # of prctl: processes whose parent has ended become this one's

Record = dict[str, tuple[float, list[str]]]
"""Test → its seconds, and `file function` of each function that it calls."""


def warm() -> None:
    """Import what every fork needs."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@dataclass
class Ran:
    """What a fork did. ended: `passed`, `failed` or `out of time`; running: the test that began
    last; seconds: of each test that ended; failed: those that failed; wide: test → the fixtures it
    shares with others; text: the end of what was printed; cpu_s: CPU-seconds of the fork and of all
    processes below it."""

    ended: str
    running: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    wide: dict[str, list[str]] = field(default_factory=dict)
    text: str = ""
    cpu_s: float = 0.0

    @classmethod
    def read(cls, ended: str, scratch: Path, cpu_s: float) -> Ran:
        ran = cls(ended, cpu_s=cpu_s, text=(scratch / "log").read_text(errors="replace")[-8000:])
        for line in (scratch / "events").read_text().splitlines():
            match json.loads(line):
                case "begin", test, wide:
                    ran.running, ran.wide[test] = test, wide
                case "failed", test:
                    ran.failed.append(test)
                    ran.ended = "failed"
                case "ran", test, seconds:
                    ran.seconds[test] = ran.seconds.get(test, 0.0) + seconds
        return ran


@dataclass(frozen=True)
class How:
    """How tests run. first: only until one fails; compiled: with compiled kernels; limits_s:
    CPU-seconds that tests may take without their fixtures; hits: the folder for traces;
    kernels: the folder of machine code that a mutated tree takes its own from, "": it keeps none,
    None: the user's caches; stale: the modules of which it takes none."""

    first: bool = False
    compiled: bool = True
    limits_s: Mapping[str, float] = field(default_factory=dict)
    hits: Path | None = None
    kernels: str | None = None
    stale: frozenset[str] = frozenset()

    def become(self, tree: Tree, scratch: Path) -> None:
        """The forked process starts as if it had been started in this tree."""
        os.setsid()
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(scratch / "log", os.O_WRONLY)
        for old, new in ((null, 0), (out, 1), (out, 2)):
            os.dup2(old, new)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        os.chdir(tree.root)
        sources = [str(folder) for folder in tree.sources()]
        inherited = [p for p in sys.path if p and not (Path(p) / "benchmarks").is_dir()]
        sys.path[:] = [*sources, *inherited]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(sources),
            mutation_trace.ROOT: f"{tree.root}/",
            "NUMBA_DISABLE_JIT": str(int(not self.compiled)),
        }
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        importlib.invalidate_caches()
        if numba := sys.modules.get("numba"):
            numba.config.reload_config()
        if self.kernels is not None:
            self._lay_out(scratch)

    def _lay_out(self, scratch: Path) -> None:
        """The mutated tree has caches of its own, with the machine code it may use. Programs of the
        stand-ins are kept by their sources."""
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        if not self.kernels:
            return
        usual = importlib.import_module("pearl_devices.cache_folder").cache_folder().absolute()
        os.environ |= {
            "PEARL_CACHE_DIR": str(scratch / "cache"),
            "NUMBA_CACHE_DIR": str(scratch / "numba"),
        }
        (scratch / "cache").mkdir(mode=0o700)
        (scratch / "cache/gpu-stand-in").symlink_to(usual / "gpu-stand-in")
        code_cache = importlib.import_module("pearl_devices.primitives.code_cache")
        new = scratch / "numba" / code_cache.FOLDER / code_cache.sources().digest
        for file in Path(self.kernels).rglob("*.nb?"):
            module = file.name.removeprefix("part.").partition(".")[0]
            if f"{file.parent.name}.{module}" not in self.stale:
                there = new / file.parent.name / file.name
                there.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                there.symlink_to(file)


@dataclass
class Tree:
    """A copy of the sources (root), and a folder beside it (home)."""

    root: Path
    home: Path

    @classmethod
    def copied(cls, source: Path, folder: Path) -> Tree:
        """The files of `source` that git knows or would add, as they are now."""
        shutil.rmtree(folder, ignore_errors=True)
        tree = cls(folder / "tree", folder / "home")
        for name in listed(source):
            (tree.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, tree.root / name)
        site = tree.home / "site"
        site.mkdir(parents=True)
        shutil.copyfile(mutation_trace.__file__, site / "sitecustomize.py")
        (site / "pearl_configs").symlink_to("../../tree/configs")
        subprocess.run(["git", "init", "-q"], cwd=tree.root, check=True)
        return tree

    def kernels(self) -> str:
        """A copy of the machine code of these sources, kept while tests ran without a mutant."""
        if not (self.root / "devices").is_dir():
            return ""
        code = "from pearl_devices.primitives.code_cache import folder; print(folder())"
        there = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, self.sources()))}
        command = [sys.executable, "-c", code]
        out = subprocess.run(command, env=there, stdout=subprocess.PIPE, text=True, check=True)
        return str(shutil.copytree(out.stdout.strip(), self.home / "kernels"))

    def sources(self) -> list[Path]:
        return [*((self.root / folder).resolve() for folder in FOLDERS), self.home / "site"]

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

    def run(self, files: Sequence[str], chosen: Sequence[str], limit_s: float, how: How) -> Ran:
        """The tests `chosen` of these files in that order, or all of them if none is chosen, until
        they have taken `limit_s` CPU-seconds, or PATIENCE times as long by the clock."""
        scratch = Path(tempfile.mkdtemp(dir=self.home))
        for name in ("log", "events"):
            (scratch / name).touch()
        pid = os.fork()
        if not pid:
            status = 70
            try:
                how.become(self, scratch)
                status = Reporter(how, chosen, scratch / "events").run(self.root, files, scratch)
                sys.stdout.flush()
            finally:
                os._exit(status)
        handle = os.pidfd_open(pid)
        try:
            ended, end_s, cpu_s = "out of time", time.monotonic() + PATIENCE * limit_s, 0.0
            while cpu_s < limit_s and time.monotonic() < end_s:
                gone = select.select([handle], [], [], POLL_S)[0]
                cpu_s = processes.cpu_s(processes.below("self"), waited=True)
                if gone:
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    passed = status in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
                    ended = "passed" if passed else "failed"
                    break
            return Ran.read(ended, scratch, cpu_s)
        finally:
            os.close(handle)
            end_children()
            shutil.rmtree(scratch, ignore_errors=True)


class Reporter:
    """A plugin of pytest that chooses tests and writes into a file how they go."""

    def __init__(self, how: How, chosen: Sequence[str], events: Path) -> None:
        self.how, self.events = how, os.open(events, os.O_WRONLY | os.O_APPEND)
        self.order = {test: i for i, test in enumerate(chosen)}
        self.now: list[str] = []

    def run(self, root: Path, files: Sequence[str], scratch: Path) -> int:
        self.trace("collection")
        where = ["--rootdir", str(root), "-c", str(root / "pyproject.toml")]
        base = ["--basetemp", str(scratch / "pytest")]
        first = ["-x"] if self.how.first else []
        status = int(pytest.main([*OPTIONS, *first, *where, *base, *files], plugins=[self]))
        self.trace("end")
        return status

    def tell(self, *words: object) -> None:
        os.write(self.events, (json.dumps(words) + "\n").encode())

    def trace(self, key: str) -> None:
        if self.how.hits:
            self.now.append(key)
            mutation_trace.anew(str(trace_file(self.how.hits, key)))

    @contextlib.contextmanager
    def traced(self, key: str) -> Iterator[None]:
        self.trace(key)
        try:
            yield
        finally:
            if self.how.hits:
                self.now.pop()
                self.trace(self.now.pop())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.order:
            items[:] = [item for item in items if item.nodeid in self.order]
            items.sort(key=lambda item: self.order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        info: Any = getattr(item, "_fixtureinfo", None)
        fixtures = info.name2fixturedefs.values() if info else ()
        wide = [wide_key(f[-1]) for f in fixtures if f[-1].scope != "function"]
        self.tell("begin", item.nodeid, wide)
        with self.traced(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        limit_s = self.how.limits_s.get(item.nodeid, 0.0)  # 0: a timer that is not set
        signal.signal(signal.SIGPROF, out_of_time)
        signal.signal(signal.SIGALRM, out_of_time)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        signal.setitimer(signal.ITIMER_REAL, WAIT * limit_s)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        with self.traced(wide_key(fixturedef)):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)
        self.tell("ran", report.nodeid, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)


def out_of_time(*given: object) -> None:
    pytest.fail("too slow without compiled kernels")


def trace_file(folder: Path, key: str) -> Path:
    """Where the trace of a test or fixture is."""
    return folder / hashlib.sha256(key.encode()).hexdigest()


def wide_key(fixture: Any) -> str:
    return f"fixture {fixture.baseid} {fixture.argname}"


def adopt() -> None:
    """This process becomes the parent of all that its forks leave behind."""
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill every process below this one, those that were left to it too."""
    while found := processes.children("self"):
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
