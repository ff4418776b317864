"""Signals as a terminal gives them, also where the tests were started by `nohup` or a shell's `&`,
which leave some ignored: a run leaves ignored signals ignored, and the tests send signals."""

import signal
import sys
from collections.abc import Iterator

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def nothing_is_passed_over() -> Iterator[None]:
    """A test that trains on a busy host plans from the data sheet. The next one does not."""
    yield
    on_demand = sys.modules.get("pearl_estimators.host.on_demand")
    if on_demand is not None:
        on_demand._passed.clear()


@pytest.fixture(autouse=True)
def no_plan_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may change what plans follow from in ways that no plan of another process sees."""
    if memory := sys.modules.get("pearl.planner.plan_memory"):
        monkeypatch.setattr(memory, "KEPT", 0)
