"""Whether this host is busy: several looks, and what the kernel counts."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from pearl_devices.system import linux
from pearl_estimators.host import free_cores
from pearl_estimators.host.free_cores import LOOK_S, LOOKS, look, share_had
from tests.needs import needs_linux

IDLE = "cpu{} 10 0 10 900 5 0 0 {} 0 0"


def had(shares: Sequence[float], stolen_s: float = 0.0, cores: int = 1) -> float:
    """`share_had` by looks that find these shares. stolen_s: by the host meanwhile."""
    given, counted = iter(shares), iter([7.0, 7.0 + stolen_s])
    pauses: list[float] = []
    found = share_had(
        cores, look=lambda _: next(given), stolen=lambda: next(counted), pause=pauses.append
    )
    assert pauses == [0.1] * 4
    assert next(given, None) is None
    return found


def test_a_burst_in_some_looks_does_not_make_a_host_busy_and_lasting_load_does() -> None:
    assert had([0.4, 1.0, 1.0, 0.0, 1.0]) == 1.0
    assert had([0.5, 0.6, 1.0, 0.4, 1.0]) == 0.6


def test_time_that_the_host_of_a_virtual_machine_takes_counts_as_taken() -> None:
    busy_s = LOOKS * LOOK_S
    assert had([0.5] * LOOKS, stolen_s=0.2 * busy_s) == pytest.approx(0.5 * 0.8)
    assert had([1.0] * LOOKS, stolen_s=0.2 * busy_s, cores=2) == pytest.approx(0.9)
    assert had([1.0] * LOOKS, stolen_s=2.0 * busy_s) == 0.0


@needs_linux("counts of waits for a core")
def test_the_kernels_figures_are_those_of_this_thread_and_of_the_cores_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    here = tmp_path / str(os.getpid()) / "task" / str(threading.get_native_id())
    here.mkdir(parents=True)
    (here / "schedstat").write_text("1000818 2500000000 2\n")
    rows = [
        IDLE.format("", 111), IDLE.format(0, 3), IDLE.format(1, 100), IDLE.format(2, 4), "intr 5",
    ]  # fmt: skip
    (tmp_path / "stat").write_text("\n".join(rows))
    monkeypatch.setattr(linux, "PROC", tmp_path)
    assert free_cores.queued_here_s() == 2.5
    assert linux.Linux().stolen_s() == pytest.approx(7 / os.sysconf("SC_CLK_TCK"))
    monkeypatch.setattr(linux, "PROC", tmp_path / "none")
    assert free_cores.queued_here_s() is None
    assert linux.Linux().stolen_s() is None


@pytest.mark.parametrize(
    ("queued", "share"),
    [((0.25, 0.55), 1 - 0.3 / 0.75), ((0.0, 2.0), 0.0), ((None, 0.3), 0.8), ((0.3, None), 0.8)],
)
def test_a_look_is_what_its_busy_thread_did_not_wait_for_a_core(
    queued: tuple[float | None, ...], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread hashes once and looks at the clock three more times, which moves 0.25 s each time.
    If the system does not count waits, the share is CPU time over wall time."""
    begin, hashed = iter(queued), list[int]()
    monkeypatch.setattr(free_cores, "queued_here_s", lambda: next(begin))
    times = SimpleNamespace(
        perf_counter=(0.25 * n for n in count()).__next__, thread_time=iter((3.0, 3.6)).__next__
    )
    monkeypatch.setattr(free_cores, "time", times)
    digest = SimpleNamespace(sha256=lambda data: hashed.append(len(data)))
    monkeypatch.setattr(free_cores, "hashlib", digest)
    assert look(1, seconds=0.5) == pytest.approx(share)
    assert hashed == [1 << 20]


def test_a_look_at_two_cores_is_the_smaller_share(monkeypatch: pytest.MonkeyPatch) -> None:
    here, waits = threading.local(), iter((0.0, 1e9))

    def queued() -> float:
        here.read = getattr(here, "read", 0) + 1
        return 0.0 if here.read == 1 else next(waits)

    monkeypatch.setattr(free_cores, "queued_here_s", queued)
    assert look(2, seconds=0.002) == 0.0
    assert list(waits) == []
