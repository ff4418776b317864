"""Whether this host is busy: several looks, and what the kernel counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pearl_estimators.host import free_cores
from pearl_estimators.host.free_cores import LOOK_S, LOOKS, look, share_had

IDLE = "cpu{} 10 0 10 900 5 0 0 {} 0 0"


def had(shares: Sequence[float], stolen_s: float = 0.0) -> float:
    """`share_had` of one core, by looks that find these shares. stolen_s: by the host meanwhile."""
    given, counted = iter(shares), iter([7.0, 7.0 + stolen_s])
    pauses: list[float] = []
    found = share_had(
        1, look=lambda _: next(given), stolen=lambda: next(counted), pause=pauses.append
    )
    assert len(pauses) == LOOKS - 1
    assert next(given, None) is None
    return found


def test_a_burst_in_some_looks_does_not_make_a_host_busy_and_lasting_load_does() -> None:
    assert had([0.4, 1.0, 1.0, 0.0, 1.0]) == 1.0
    assert had([0.5, 0.6, 1.0, 0.4, 1.0]) == 0.6


def test_time_that_the_host_of_a_virtual_machine_takes_counts_as_taken() -> None:
    busy_s = LOOKS * LOOK_S
    assert had([1.0] * LOOKS, stolen_s=0.2 * busy_s) == pytest.approx(0.8)
    assert had([1.0] * LOOKS, stolen_s=2.0 * busy_s) == 0.0


def test_the_kernels_figures_are_those_of_this_thread_and_of_the_cores_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    (tmp_path / "thread-self").mkdir()
    (tmp_path / "thread-self" / "schedstat").write_text("1000818 2500000000 2\n")
    rows = [
        IDLE.format("", 111),
        IDLE.format(0, 3),
        IDLE.format(1, 100),
        IDLE.format(2, 4),
        "intr 5",
    ]
    (tmp_path / "stat").write_text("\n".join(rows))
    assert free_cores.queued_here_s(tmp_path) == 2.5
    assert free_cores.stolen_s(tmp_path) == pytest.approx(7 / os.sysconf("SC_CLK_TCK"))
    assert free_cores.queued_here_s(tmp_path / "none") is None
    assert free_cores.stolen_s(tmp_path / "none") == 0.0


@pytest.mark.parametrize("counted", [True, False])
def test_a_look_is_what_its_busy_threads_waited_for_a_core(
    counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the run queue is counted, waits for anything else, as for the interpreter, are none."""
    monkeypatch.setattr(free_cores, "queued_here_s", lambda: 0.25 if counted else None)
    monkeypatch.setattr(free_cores.time, "thread_time", lambda: 3.0)  # no CPU time at all
    assert look(2, seconds=0.002) == (1.0 if counted else 0.0)
