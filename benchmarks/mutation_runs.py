"""Tests of a mutated tree, each run in a fork of a process that holds the libraries already.

A `Tree` is a copy of the sources in a folder of its own; the working tree is never written. A fork
starts in it within milliseconds, imports the project's modules afresh and runs pytest in itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks import processes
from pearl_devices.cache_folder import cache_folder

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
PATIENCE = 12.0
"""Seconds of the clock for each CPU-second that a test may take: many processes wait for a core of
a busy machine, and a test that waits for ever must end."""
POLL_S = 0.1
NO_TESTS = pytest.ExitCode.NO_TESTS_COLLECTED
SUBREAPER = 36  # of prctl: processes whose parent has ended become this one's

Unit = tuple[str, str]
"""A file, and a function, a class or the names that are assigned there, as `Mutant.where`."""


def warm() -> None:
    """Import what every fork needs."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@dataclass
class Ran:
    """What a fork did.

    ended: `passed`; `failed`: `test` did, or its file could not be imported; `stuck`: `test` took
    too long; `spent`: the CPU-seconds of all tests were over. passed: test → whether it did;
    costs_s: test → CPU-seconds of the fork and of the processes that it waited for; cpu_s: those of
    all tests and of all processes below; text: the end of what was printed.
    """

    ended: str = ""
    test: str = ""
    passed: dict[str, bool] = field(default_factory=dict)
    costs_s: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    text: str = ""


@dataclass
class Tree:
    """A copy of the sources (root), and a folder beside it (home) with the caches of its runs."""

    root: Path
    home: Path
    mutated: bool = False
    machine_code: str = ""

    @classmethod
    def copied(cls, source: Path, folder: Path) -> Tree:
        """The files of `source` (`listed`), and the user's compiled code."""
        tree = cls(folder / "tree", folder / "home")
        for name in listed(source):
            (tree.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, tree.root / name)
        (tree.home / "site").mkdir(parents=True)
        (tree.home / "site/pearl_configs").symlink_to("../../tree/configs")
        (tree.home / "cache").mkdir(mode=0o700)
        for kept in ("pearl-kernels", "gpu-stand-in", "gpu-code"):
            if (cache_folder() / kept).is_dir():
                shutil.copytree(cache_folder() / kept, tree.home / "cache" / kept)
        subprocess.run(["git", "init", "-q"], cwd=tree.root, check=True)
        tree.machine_code = tree.digest()
        return tree

    def digest(self) -> str:
        """The folder of the machine code of these sources as they are now; "" if there is none."""
        code = "from pearl_devices.primitives.code_cache import sources; print(sources().digest)"
        env = os.environ | {"PYTHONPATH": os.pathsep.join(self.sources())}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.root, env=env,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
        return done.stdout.strip()

    @contextlib.contextmanager
    def holding(self, texts: dict[str, bytes], *, same_code: bool) -> Iterator[None]:
        """Within it these files have other sources, with a time of change that no cache has seen.
        same_code: the tree finds the machine code of before, although a source of it may have
        changed."""
        kernels, before = (
            self.home / "cache/pearl-kernels",
            dict[Path, tuple[bytes, os.stat_result]](),
        )
        for name, text in texts.items():
            file = self.root / name
            before[file] = file.read_bytes(), file.stat()
            file.write_bytes(text)
        self.mutated = True
        link = kernels / ((same_code and self.digest()) or self.machine_code)
        if link.name != self.machine_code and (kernels / self.machine_code).is_dir():
            link.symlink_to(self.machine_code)
        try:
            yield
        finally:
            if link.is_symlink():
                link.unlink()
            for file, (source, stat) in before.items():
                file.write_bytes(source)
                os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            self.mutated = False

    def sources(self) -> list[str]:
        """Where Python finds the packages."""
        return [*(str((self.root / f).resolve()) for f in FOLDERS), str(self.home / "site")]

    def collected(self) -> dict[str, list[Unit]]:
        """The tests that are not slow → the functions, fixtures and classes that each consists
        of. Ends the program if a test file cannot be imported."""
        ran, told = self._run(["--collect-only", "tests"], [], math.inf, math.inf, compiled=True)
        if ran.ended != "passed":
            sys.exit(f"the tests cannot be collected:\n{ran.text}")
        return {test: [(file, where) for file, where in units] for _, test, units in told}

    def run(
        self,
        tests: Sequence[str],
        limit_s: float,
        test_s: float,
        *,
        first: bool = True,
        compiled: bool = True,
    ) -> Ran:
        """These tests in their order, until one takes `test_s` CPU-seconds or, with `first`, fails,
        or until all have taken `limit_s`; compiled: with compiled kernels."""
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        given = ["-x", *files] if first else files
        return self._run(given, tests, limit_s, test_s, compiled=compiled)[0]

    def _run(
        self,
        given: Sequence[str],
        tests: Sequence[str],
        limit_s: float,
        test_s: float,
        *,
        compiled: bool,
    ) -> tuple[Ran, list[Any]]:
        """A fork with pytest, and what its `Reporter` told."""
        scratch = Path(tempfile.mkdtemp(dir=self.home))
        for name in ("log", "events"):
            (scratch / name).touch()
        if not (pid := os.fork()):
            status = 70
            try:
                self._become(scratch, compiled=compiled)
                where = ["--rootdir", str(self.root), "-c", str(self.root / "pyproject.toml")]
                base = ["--basetemp", str(scratch / "pytest")]
                plugin = Reporter(tests, scratch / "events")
                status = int(pytest.main([*OPTIONS, *where, *base, *given], plugins=[plugin]))
                sys.stdout.flush()
            finally:
                os._exit(status)
        handle, ran, told = os.pidfd_open(pid), Ran(test=tests[0] if tests else ""), list[Any]()
        try:
            with open(scratch / "events") as events:
                begin_s, begin = 0.0, time.monotonic()
                while not ran.ended:
                    gone, now = select.select([handle], [], [], POLL_S)[0], time.monotonic()
                    ran.cpu_s = processes.cpu_s(processes.below("self"), waited=True)
                    for line in events:
                        told.append(json.loads(line))
                        match told[-1]:
                            case "begin", test:
                                ran.test, begin_s, begin = test, ran.cpu_s, now
                            case "passed", test:
                                ran.passed.setdefault(test, True)
                            case "took", test, cost_s:
                                ran.costs_s[test] = cost_s
                            case "failed", test:
                                ran.test, ran.passed[test] = test, False
                    if gone:
                        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                        ran.ended = "passed" if status in (0, NO_TESTS) else "failed"
                    elif ran.cpu_s >= limit_s:
                        ran.ended = "spent"
                    elif ran.cpu_s - begin_s > test_s or now - begin > PATIENCE * test_s:
                        ran.ended = "stuck"
                    if ran.passed.get(ran.test) is False:
                        ran.ended = ran.ended and "failed"
            ran.text = (scratch / "log").read_text(errors="replace")[-8000:]
            return ran, told
        finally:
            os.close(handle)
            end_children()
            shutil.rmtree(scratch, ignore_errors=True)

    def _become(self, scratch: Path, *, compiled: bool) -> None:
        """The forked process starts as if it had been started in this tree."""
        os.setsid()
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(scratch / "log", os.O_WRONLY)
        for old, new in ((null, 0), (out, 1), (out, 2)):
            os.dup2(old, new)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        os.chdir(self.root)
        sources = self.sources()
        inherited = [p for p in sys.path if p and not (Path(p) / "benchmarks").is_dir()]
        sys.path[:] = [*sources, *inherited]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(sources),
            "PEARL_CACHE_DIR": str(self.home / "cache"),
            "NUMBA_DISABLE_JIT": str(int(not compiled)),
        }
        if not compiled:
            os.environ["NUMBA_CACHE_DIR"] = str(self.home / "uncompiled")
        if self.mutated:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        importlib.invalidate_caches()
        if numba := sys.modules.get("numba"):
            numba.config.reload_config()


class Reporter:
    """A plugin of pytest that chooses tests and writes into a file how they go."""

    def __init__(self, chosen: Sequence[str], events: Path) -> None:
        self.events = os.open(events, os.O_WRONLY | os.O_APPEND)
        self.order = {test: i for i, test in enumerate(chosen)}

    def tell(self, *words: object) -> None:
        os.write(self.events, (json.dumps(words) + "\n").encode())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item], config: pytest.Config
    ) -> None:
        if config.option.collectonly:
            for item in items:
                self.tell("test", item.nodeid, units(item, config.rootpath))
        else:
            items[:] = [item for item in items if item.nodeid in self.order]
            items.sort(key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begin_s = sum(os.times()[:4])
        self.tell("begin", nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.tell("took", nodeid, round(sum(os.times()[:4]) - self.begin_s, 2))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)
        elif report.when == "teardown":
            self.tell("passed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)


def units(item: pytest.Item, root: Path) -> list[Unit]:
    """The function of a test, its class, and the fixtures that it names, directly or through
    others."""
    info: Any = getattr(item, "_fixtureinfo", None)
    fixtures = [f[-1].func for f in info.name2fixturedefs.values()] if info else []
    parts = [getattr(item, "function", None), getattr(item, "cls", None), *fixtures]
    found = []
    for part in map(inspect.unwrap, filter(None, parts)):
        file = Path(inspect.getfile(part))
        if file.is_relative_to(root) and file.name != "conftest.py":
            found.append((str(file.relative_to(root)), part.__qualname__))
    return found


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
    """The files that git knows or would add; of an unpacked archive, all that are not hidden or
    compiled."""
    if not (source / ".git").exists():
        found = (f.relative_to(source) for f in source.rglob("*") if f.is_file())
        hidden = (".", "__pycache__")
        return sorted(str(f) for f in found if not any(p.startswith(hidden) for p in f.parts))
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=source, capture_output=True, check=True).stdout
    names = sorted(set(out.decode().split("\0")) - {""})
    return [name for name in names if (source / name).is_file()]
