"""Tests that need torch, NVRTC, Linux or a room are skipped where these are missing, and say so.

A test needs what it, or the code that it calls, does not find. `test_without_torch` and
`test_installed` hold what must work without torch, and are never skipped so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from pearl_devices.base import UnsupportedError
from pearl_devices.system import host_system
from pearl_devices.torch_threads import INSTALL, has_torch
from tests.rooms import ROOMS
from tests.sources import ROOT

needs_torch = pytest.mark.skipif(not has_torch(), reason=INSTALL)
"""Marks a test that finds fewer variants without torch, where no error says why."""


def needs_linux(why: str) -> pytest.MarkDecorator:
    """Mark a test of what Linux alone offers. why: what that is, in words."""
    return pytest.mark.skipif(host_system.NAME != "Linux", reason=f"Linux alone: {why}")


NEVER = ("test_without_torch.py", "test_installed.py")


@cache
def absent() -> dict[str, str]:
    """What is not installed: words of an error that names it → why a test is skipped."""
    found = {}
    if any(not (ROOT / path).exists() for paths in ROOMS.values() for path in paths):
        found["which this installation of PEARL leaves out"] = "the room is left out"
    if not has_torch():
        words = ("No module named 'torch'", "No module named 'torch.", "torch is not installed")
        found |= dict.fromkeys(words, INSTALL)
    try:
        from pearl_devices.gpu import nvrtc

        nvrtc.library()
    except ModuleNotFoundError:  # the room of GPUs is left out, and so are its tests
        pass
    except UnsupportedError as error:
        found[str(error)] = str(error)
    return found


def missing(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why this failure is a skip, by its error and by what its processes wrote; empty if it is
    none."""
    lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
    said = "\n".join([*lines, report.capstderr])
    return next((why for words, why in absent().items() if words in said), "")


def skip(report: pytest.TestReport | pytest.CollectReport, path: str, line: int) -> None:
    """Make the report of a failure one of a skip, if something is missing."""
    if report.failed and not path.endswith(NEVER) and (why := missing(report)):
        report.outcome, report.longrepr = "skipped", (path, line, f"Skipped: {why}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Iterator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    skip(report, str(collector.path), 1)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skip(report, str(item.path), (item.location[1] or 0) + 1)
    return report
