"""The calibration's file: refused when it cannot be trusted, measured again, kept however measuring
ends."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.processes import children
from pearl_devices import Device, kernel
from pearl_devices.cache_folder import cache_folder
from pearl_estimators import estimate
from pearl_estimators.host import calibrator, child_process, measuring
from pearl_estimators.host.benchmark_kernels import (
    GROUPS,
    draw_fit_kernels,
    group,
    offered_variants,
)
from pearl_estimators.host.calibration import Calibration, CalibrationWarning, MeasuringTimeoutError
from pearl_estimators.host.calibration_file import (
    journal_path,
    journal_writer,
    load_calibration,
    locking,
    path,
    read_journal,
    store,
)
from pearl_estimators.host.calibration_updates import (
    empty_calibration,
    fit_journal,
)
from pearl_estimators.sealed_files import CalibrationError, OutdatedError, checksum
from tests.calibrations import KERNELS, LANES, Child, measure, synthetic
from tests.processes import HANG_S, until, until_gone

HOST = Device("host", "cpu", width=2, real=True, idle_power_w=10.0, active_power_w=50.0)
ACTS = kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 64, 2))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return replace(measure(1.0, kernels=KERNELS, prepare=synthetic(0.02)), runtime=LANES)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, of a process that has just started; machine code stays where it is."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder()))
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibrator, "_skipped", {})
    monkeypatch.setattr(calibrator, "_checked", set())
    return tmp_path


def stands(monkeypatch: pytest.MonkeyPatch, child: Child) -> Child:
    monkeypatch.setattr(measuring, "run_in_child", child)
    return child


# --- the file


def rewrite(file: Path, change: Callable[[dict], None], sealed: bool = True) -> None:
    value = json.loads(file.read_text())
    change(value)
    if sealed:
        body = {k: v for k, v in value.items() if k != "checksum"}
        value["checksum"] = checksum(body)
    file.write_text(json.dumps(value))


def test_a_stored_calibration_comes_back_the_same(cache, calibration):
    assert load_calibration() is None
    store(calibration)
    assert load_calibration() == calibration
    assert measuring.calibrate() == calibration
    json.dumps(calibration.to_json(), allow_nan=False)
    assert [p.name for p in cache.glob(".calibration-*")] == []


DAMAGED = {
    "cut": lambda text: text[:-200], "empty": lambda _: "", "null": lambda _: "null",
    "a list": lambda _: "[]", "no calibration": lambda _: '{"schema": 1}',
    "bytes": lambda _: "\x00\xff", "deep": lambda _: "[" * 100_000,
    "deep and closed": lambda _: '{"schema": 1, "fits": ' + "[" * 50_000 + "]" * 50_000 + "}",
    "edited": lambda text: text.replace('"load": ', '"load": 1'),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_made_anew_with_a_line_that_says_so(
    cache, calibration, monkeypatch, what
):
    store(calibration)
    path().write_text(DAMAGED[what](path().read_text()), encoding="latin-1")
    with pytest.raises(CalibrationError, match=r"calibration-"):
        load_calibration()
    standing = stands(monkeypatch, Child())
    with pytest.warns(
        CalibrationWarning, match=r"calibration-.*: .*; the calibration is measured again"
    ):
        assert calibrator.missing_groups([ACTS]) == ["inference.dqn", "shared"]
    with pytest.warns(CalibrationWarning, match=r"the calibration is measured again"):
        assert estimate(ACTS, HOST).rung == "calibrated"
    assert standing.asked == [["inference.dqn", "shared"]]
    found = load_calibration()
    assert found is not None
    assert found.groups == ("inference.dqn", "shared")


def older(value: dict) -> None:
    value["versions"]["kernels"] = "older"
    value["fits"][0]["form"] = "max"


@pytest.mark.parametrize(
    ("change", "sealed", "said"),
    [
        (older, True, "other versions of kernels"),
        (lambda v: v.update(host={"cpu": "A", "cores": "8"}), True, "another host .A, 8 cores"),
        (lambda v: v.update(schema=99), True, "schema is 99; this version reads 1"),
        (lambda v: v["fits"][0].update(band=0.01), False, "checksum does not match"),
        *(  # even with a right checksum
            (lambda v, band=band: v["fits"][0].update(band=band), True, "calibration-")
            for band in (math.nan, math.inf, -1.0, "fast", None)
        ),
    ],
)
def test_a_file_of_another_form_or_host_or_with_other_numbers_is_refused(
    cache, calibration, change, sealed, said
):
    store(calibration)
    rewrite(path(), change, sealed)
    with pytest.raises(CalibrationError, match=said):
        load_calibration()


def test_other_versions_are_outdated_and_measured_anew(cache, calibration, monkeypatch):
    store(replace(calibration, versions={**calibration.versions, "numba": "0.1"}))
    with pytest.raises(OutdatedError, match=r"other versions of numba"):
        load_calibration()
    standing = stands(monkeypatch, Child(synthetic(times=2.0)))
    found = measuring.calibrate(seconds=5.0)
    assert measuring.calibrate(seconds=5.0) == found == load_calibration()
    assert not {p.seconds for p in found.points} & {p.seconds for p in calibration.points}
    assert len(standing.asked) == 1


def test_force_replaces_even_an_unsound_file(cache, monkeypatch):
    path().write_text("{")
    stands(monkeypatch, Child())
    assert measuring.calibrate(force=True) == load_calibration()


def test_two_first_uses_measure_once(cache, monkeypatch):
    standing = stands(monkeypatch, Child())
    threads = [
        threading.Thread(target=measuring.calibrate, kwargs={"groups": ["tabular"]})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(standing.asked) == 1


@pytest.mark.parametrize("seconds", [0.0, -3.0])
def test_measuring_needs_time(cache, seconds):
    with pytest.raises(ValueError, match=r"calibrate: seconds is"):
        measuring.calibrate(seconds=seconds)
    with pytest.raises(ValueError, match=r"calibrate: limit_s is"):
        measuring.calibrate(limit_s=seconds)


def test_only_a_cpu_of_this_host_is_calibrated():
    for device in (Device("far", "cpu"), Device("gpu", "gpu", real=True)):
        with pytest.raises(ValueError, match=r"is not a CPU of this host"):
            calibrator.calibration(device)


def test_only_what_is_needed_and_lacking_is_timed(cache, monkeypatch):
    standing = stands(monkeypatch, Child())
    needed = [kernel("replay_update", batch=8, steps=1, capacity=64, fanout=8)]
    calibrator.calibration(HOST, needed)
    calibrator.calibration(HOST, needed)
    needed.append(next(draw_fit_kernels(["dqn"])))
    calibrator.calibration(HOST, needed)
    calibrator.calibration(HOST, needed)
    assert standing.asked == [["replay", "shared"], ["dqn"]]


# --- a measuring that does not come to its end

DQN = ["dqn", "inference.dqn", "replay", "rollout", "gae", "shared"]
DQN += [name for name in GROUPS if name.startswith("env_step")]
WHOLE = sum(1 for k in draw_fit_kernels(DQN) for _ in offered_variants(k))


def late(most: int) -> Child:
    why = "measuring this host took more than 180 s and was ended"
    return Child(synthetic(times=3.0), most, MeasuringTimeoutError(why))


@pytest.mark.parametrize("most", [0, 3, 200, 600])
def test_what_was_timed_before_the_limit_is_kept_and_the_next_try_goes_on(cache, monkeypatch, most):
    stands(monkeypatch, late(most))
    with pytest.raises(CalibrationError, match=r"was ended; the timings of \d+ kernels are stored"):
        measuring.calibrate(groups=DQN)
    first = load_calibration()
    kept = len(first.points) if first else 0
    assert kept == min(most, WHOLE)
    second = stands(monkeypatch, Child(synthetic(times=2.0)))
    found = measuring.calibrate(groups=DQN)
    assert second.points == ([WHOLE - kept] if kept < WHOLE else [])
    assert set(DQN) <= set(found.groups)
    assert found.points[:kept] == (first.points if first else ())
    assert load_calibration() == found
    assert not journal_path().exists()


def test_a_plan_goes_on_with_the_next_rung_where_time_runs_out(cache, monkeypatch):
    """Families that were timed keep their fits; no other child is started for the rest."""
    first = next(draw_fit_kernels(["shared"]))
    monkeypatch.setattr(
        calibrator, "cores_are_idle", lambda cores: False
    )  # else the cost of lanes is timed
    standing = stands(monkeypatch, late(20))
    said = r"took more than 180 s and was ended; untimed kernels of .*inference.dqn"
    with pytest.warns(CalibrationWarning, match=said):
        found = estimate(ACTS, HOST)
    assert (found.rung, estimate(first, HOST).rung) == ("datasheet", "calibrated")
    assert "not timed on this host yet" in found.source
    assert standing.limits == [180.0]
    assert "inference.dqn" not in calibrator.missing_groups([ACTS])
    monkeypatch.setattr(calibrator, "_skipped", {})  # another process
    stands(monkeypatch, Child())
    assert estimate(ACTS, HOST).rung == "calibrated"


def test_an_environment_of_a_family_that_is_late_starts_no_process_of_its_own(cache, monkeypatch):
    stands(monkeypatch, late(0))
    monkeypatch.setattr("pearl_estimators.host.user_code_timing.run_in_child", None)
    of = next(k for k, _ in KERNELS if k.kind == "env_step")
    with pytest.warns(CalibrationWarning):
        assert estimate(of, HOST).rung == "datasheet"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_ctrl_c_keeps_what_was_timed(cache, monkeypatch, error):
    stands(monkeypatch, Child(most=40, error=error))
    with pytest.raises(type(error)):
        measuring.calibrate(groups=DQN)
    assert len(read_journal()) == 40
    second = stands(monkeypatch, Child())
    measuring.calibrate(groups=DQN)
    assert second.points == [WHOLE - 40]


def test_a_line_of_the_journal_that_is_cut_damaged_or_of_other_versions_does_not_count(
    cache, calibration, monkeypatch
):
    point = {**vars(calibration.points[0]), "terms": dict(calibration.points[0].terms)}
    journal = journal_path()
    tell = journal_writer(journal)
    tell({"point": point})
    whole = journal.read_text()
    with journal.open("a") as out:
        out.write(whole.replace('"seconds": ', '"seconds": 1'))
        out.write("[" * 100_000 + "\n")
        out.write("null\n\n")
        out.write(whole[:-40])
    tell({"point": {**point, "seconds": -1.0}})  # on the line that was cut
    tell({"point": {**point, "seconds": -1.0}})
    tell({"point": {"family": "gae"}})
    tell({"skipped": {"gae torch": "no torch"}})
    assert [list(found) for found in read_journal()] == [["schema", "point"], ["schema", "skipped"]]
    found = fit_journal(None, read_journal())
    assert (found.points, found.skipped) == (calibration.points[:1], {"gae torch": "no torch"})
    monkeypatch.setattr("pearl_estimators.host.calibration_file.versions", lambda: {"numba": "0.1"})
    assert read_journal() == []


def test_a_forced_measuring_goes_on_with_its_own_beginning_and_spares_the_old_file(
    cache, calibration, monkeypatch
):
    store(calibration)
    stands(monkeypatch, late(50))
    with pytest.raises(CalibrationError, match=r"the timings of 50 kernels are stored"):
        measuring.calibrate(force=True, groups=DQN)
    assert load_calibration() == calibration
    second = stands(monkeypatch, Child(synthetic(times=2.0)))
    found = measuring.calibrate(force=True, groups=DQN)
    assert second.points == [WHOLE - 50]
    assert not {p.seconds for p in found.points} & {p.seconds for p in calibration.points}


def test_a_forced_measuring_does_not_go_on_with_an_old_beginning(cache, monkeypatch):
    stands(monkeypatch, late(50))
    with pytest.raises(CalibrationError):
        measuring.calibrate(force=True, groups=DQN)
    then = time.time() - measuring.UNFINISHED_S - 1
    os.utime(journal_path(), (then, then))
    second = stands(monkeypatch, Child())
    measuring.calibrate(force=True, groups=DQN)
    assert second.points == [WHOLE]


def test_a_process_that_waits_for_another_ones_measuring_waits_no_longer_than_its_limit(
    cache, monkeypatch
):
    standing = stands(monkeypatch, Child())
    with locking(1.0) as held:
        assert held
        with pytest.raises(CalibrationError, match=r"another process was measuring"):
            measuring.calibrate(limit_s=0.1)
    assert standing.asked == []


def test_a_cache_folder_that_cannot_be_written_stops_no_plan(monkeypatch, cache):
    monkeypatch.setenv("PEARL_CACHE_DIR", str(cache / "file" / "folder"))
    (cache / "file").write_text("")
    with pytest.warns(CalibrationWarning, match=r"Not a directory; set PEARL_CACHE_DIR"):
        assert estimate(ACTS, HOST).rung == "datasheet"
    with pytest.raises(CalibrationError, match=r"set PEARL_CACHE_DIR"):
        measuring.calibrate()


CALIBRATES = "from pearl_estimators.host.measuring import calibrate; calibrate(seconds=3600.0)"
"""Half a minute of CPU time lies between the first point and the last."""


def test_ctrl_c_ends_a_real_measuring_at_once_with_all_its_processes(cache):
    """The real thing: what it left is a beginning for the next one."""
    begun = subprocess.Popen([sys.executable, "-c", CALIBRATES], stderr=subprocess.PIPE)
    journal = journal_path()
    until(lambda: read_journal() or begun.poll() is not None, "the first point")
    (child,) = children(begun.pid)
    begun.send_signal(signal.SIGINT)
    _, trouble = begun.communicate(timeout=600)
    assert b"KeyboardInterrupt" in trouble
    until_gone([child])
    kept = fit_journal(None, read_journal()).points
    groups = {group(p.family) for p in kept}
    assert groups
    assert not path().exists()  # it ended before all was timed
    found = measuring.calibrate(groups=groups, seconds=1.0, limit_s=HANG_S)
    assert groups <= set(found.groups) < set(GROUPS)
    assert {p.key for p in kept} <= {p.key for p in found.points}
    assert not journal.exists()


# --- the child process


def test_a_child_that_fails_says_its_last_line(cache):
    with pytest.raises(CalibrationError, match=r"measuring this host failed: .*float"):
        child_process.run_in_child("measure", "soon", timeout_s=60.0)  # type: ignore[arg-type]


def to_measure(folder: Path) -> dict[str, object]:
    """What a child is given that has minutes of measuring to do."""
    known = empty_calibration().to_json()
    told = str(folder / "journal")
    return {"groups": list(GROUPS), "known": known, "journal": told, "only": None}


def test_a_child_that_takes_too_long_is_ended(cache):
    before = os.times().children_user
    with pytest.raises(CalibrationError, match=r"took more than 0 s and was ended"):
        child_process.run_in_child("measure", 600.0, timeout_s=0.2, request=to_measure(cache))
    assert os.times().children_user - before < 60  # CPU-seconds


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")
def test_a_child_ends_when_its_parent_does(cache):
    reader, writer = os.pipe()
    code = "from pearl_estimators.host.calibrate_host import main; main(['measure', '600'])"
    grandchild = subprocess.Popen([sys.executable, "-c", code], stdin=reader)
    os.close(reader)
    os.write(writer, json.dumps(to_measure(cache)).encode() + b"\n")
    time.sleep(0.5)
    assert grandchild.poll() is None
    os.close(writer)  # as the death of the parent does
    assert grandchild.wait(timeout=600) == 1
