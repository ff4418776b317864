"""What each test costs: `pytest --profile FILE` writes JSON, off by default.

Of each test with its fixtures: CPU-seconds of this process and of every process below it, living
or ended; processes started; compilations by numba and by a C++ compiler. Fixtures that tests share
count for the test that meets them first. `python -m tests.profiler FILE [FILE]` prints a table by
folder, of one profile or of two beside each other; `--keep` writes `tests/costs.json`, which marks
the dear tests slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import processes

KEY = "profile"
"""Of the property by which a worker of pytest-xdist hands a test's costs on."""


WRITTEN = pytest.StashKey[dict[str, bool]]()
"""Collected test → whether its source says that it is slow."""

KEPT = Path(__file__).parent / "costs.json"
"""The last profile of all tests with warm caches, without the tests below KEPT_S."""

KEPT_S = 2.0
SLOW_S = 5.0
"""CPU-seconds with warm caches beyond which a test is marked slow."""

Costs = dict[str, float]
"""cpu_s: CPU-seconds; processes: started; numba, cxx: compilations."""

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"}
"""Audit events of a process that starts."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--profile", metavar="FILE", help="write the costs of each test (JSON)")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--profile"):
        is_worker = hasattr(config, "workerinput")
        profiler = Profiler(None if is_worker else Path(file).absolute())
        if is_worker or not config.getoption("numprocesses", None):
            profiler.begin()
        config.pluginmanager.register(profiler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests slow that the last profile found dear, and keep which tests are marked before
    pytest drops the ones that `-m` leaves out."""
    costs = json.loads(KEPT.read_text())
    written = {item.nodeid: item.get_closest_marker("slow") is not None for item in items}
    for item in items:
        if costs.get(item.nodeid, 0.0) > SLOW_S:
            item.add_marker(pytest.mark.slow)
    config.stash[WRITTEN] = written


class Profiler:
    """Counts in this process; the controller of pytest-xdist only gathers."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.found = file, dict[str, Costs]()
        self.counts = {"processes": 0, "numba": 0, "cxx": 0}

    def begin(self) -> None:
        """Count from now on."""
        from numba.core import event

        class Compilations(event.Listener):  # type: ignore[misc]
            def on_start(_, __: Any) -> None:
                self.counts["numba"] += 1

            def on_end(_, __: Any) -> None:
                pass

        event.register("numba:compile", Compilations())
        sys.addaudithook(self._hear)
        start = BaseProcess.start

        def counted(process: BaseProcess) -> None:
            before = self.counts["processes"]
            start(process)
            self.counts["processes"] = before + 1

        BaseProcess.start = counted  # type: ignore[method-assign]

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            self.counts["processes"] += 1
            if event == "subprocess.Popen" and "-print-file-name=libasan.so" not in arguments[1]:
                self.counts["cxx"] += Path(os.fsdecode(arguments[0])).name == "g++"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        cpu_s, counts = spent_cpu_s(), dict(self.counts)
        costs: Costs = {}
        item.user_properties.append((KEY, costs))
        self.now = lambda: costs.update(
            {"cpu_s": round(spent_cpu_s() - cpu_s, 3)}
            | {name: self.counts[name] - counts[name] for name in counts}
        )
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[Any]:
        if now := getattr(self, "now", None):
            now()
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and self.file:
            self.found[report.nodeid] = dict(dict(report.user_properties)[KEY])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.file:
            about = {"machine": platform.processor() or platform.machine()}
            tests = dict(sorted(self.found.items()))
            self.file.write_text(json.dumps({"about": about, "tests": tests}, indent=1) + "\n")


def spent_cpu_s() -> float:
    """CPU-seconds of this process, of its ended children and of all that lives below it."""
    whole = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        whole += used.ru_utime + used.ru_stime
    return whole + processes.cpu_s(processes.below(os.getpid()), waited=True)


def folders(tests: Mapping[str, Costs]) -> dict[str, Costs]:
    """The sums of each folder under `tests/`, and of all."""
    found: dict[str, Costs] = defaultdict(lambda: defaultdict(float))
    for test, costs in tests.items():
        names = Path(test.partition("::")[0]).parts
        for folder in (names[1] if len(names) > 2 else "tests", "all"):
            found[folder]["tests"] += 1
            for name, value in costs.items():
                found[folder][name] += value
    return dict(sorted(found.items(), key=lambda f: -f[1]["cpu_s"]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("files", nargs="+", type=Path, help="one profile, or before and after")
    parser.add_argument("--keep", action="store_true", help="keep the profile as tests/costs.json")
    parser.add_argument("--tests", type=int, default=0, help="the most expensive tests as well")
    given = parser.parse_args(arguments)
    profiles = [json.loads(file.read_text())["tests"] for file in given.files]
    columns = ("tests", "cpu_s", "processes", "numba", "cxx")
    print("| folder |" + "".join(f" {c} |" for c in columns) * len(profiles))
    print("|---|" + "---|" * len(columns) * len(profiles))
    sums = [folders(tests) for tests in profiles]
    for folder in dict.fromkeys(name for table in sums for name in table):
        cells = [table.get(folder, {}).get(name, 0) for table in sums for name in columns]
        print(f"| {folder} |" + "".join(f" {cell:,.0f} |" for cell in cells))
    if given.keep:
        kept = {t: c["cpu_s"] for t, c in profiles[-1].items() if c["cpu_s"] > KEPT_S}
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    dear = sorted(profiles[-1].items(), key=lambda t: -t[1]["cpu_s"])[: given.tests]
    for test, costs in dear:
        print(f"{costs['cpu_s']:8.1f} s  {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
