"""`pearl train` first trains, then times the kernels that it used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pearl.planning.runs import load_run
from pearl.training.policy import Policy
from pearl_estimators.host import calibrator, measuring
from pearl_estimators.host.calibration_file import load_calibration, path, store
from tests.calibrations import Child
from tests.cli.test_cli import Ran
from tests.estimators.test_calibration_load import fresh, loaded, restarted

__all__ = ["fresh"]

SET = ("--set", "limits.max_lanes=1", "--set", "train.steps=400", "--set", "train.seed=3")


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else runs on this host: else nothing would be timed."""
    monkeypatch.setattr(calibrator, "cores_are_idle", lambda cores: True)


def trained(out: Path, *more: str) -> Ran:
    ran = Ran("train", "dqn_cartpole", *SET, *more, "--out", out)
    assert ran.status == 0, ran.err
    assert load_run(out).status == "done"
    return ran


class After(Child):
    """Times the imagined machine, where the run in `out` has written all its files."""

    def __init__(self, out: Path, **options: Any) -> None:
        super().__init__(**options)
        self.out, self.only = out, list[list[str]]()

    def __call__(self, task: str, seconds: float, *, timeout_s: float, request: Any) -> object:
        assert {"run.json", "report.html", "checkpoint.safetensors"} <= {
            file.name for file in self.out.iterdir()
        }
        self.only.append(request["only"])
        return super().__call__(task, seconds, timeout_s=timeout_s, request=request)


def fails(*given: Any, **options: Any) -> Any:
    raise ValueError("Matrix is singular.")


def test_what_fails_after_a_finished_run_is_one_sentence_each(
    fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh.setattr(measuring, "run_in_child", Child())
    fresh.setattr("pearl.training.run.calibration_feedback", fails)
    fresh.setattr("pearl.report.report.Report.text", fails)
    fresh.setattr("pearl.training.calibrating.calibrate_after", fails)
    ran = trained(tmp_path / "run")  # exit status 0, and the run is done
    said = "note: the run has ended and is saved; {} failed: Matrix is singular."
    for what in ("its report", "the timing of its kernels"):
        assert said.format(what) in ran.err.splitlines()
    drift = load_run(tmp_path / "run").drift
    assert drift is not None
    assert drift.learned == ("Nothing was learned from this run: Matrix is singular.",)


def test_one_lane_is_trained_by_the_data_sheet_and_its_kernels_are_timed_after_it(
    fresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "first"
    child = After(out)
    fresh.setattr(measuring, "run_in_child", child)
    ran = trained(out)
    plan = load_run(out).plan
    assert {t.rung for t in plan.tasks} == {"datasheet"}
    assert "timing kernels" not in ran.err
    text = " ".join(ran.out.split())
    assert "Not timed on this host, but from the data sheet: " in text
    assert "(one lane on one CPU needs no timing to be trained)" in text
    assert ran.err.rstrip().endswith("kernels timed")
    assert child.limits == [5.0]
    assert child.only[0][0] == "iteration.dqn native CartPole-v1"  # whole calls come first
    assert {"inference.dqn native", "env_step native CartPole-v1"} <= set(child.only[0])
    known = load_calibration()
    assert known is not None

    assert {"env_step CartPole-v1 native", "inference.dqn native"} <= {
        p.named for p in known.points
    }

    second = tmp_path / "second"
    fresh.setattr(measuring, "run_in_child", None)  # nothing is left to be timed
    store(loaded(1.0))
    restarted(fresh)
    trained(second, "--plan", str(out / "plan.json"))
    first, other = (
        Policy.load(folder / "policy_last.safetensors", trust=True).tensors()
        for folder in (out, second)
    )
    assert first.keys() == other.keys()
    assert all((first[name] == other[name]).all() for name in first)


def test_ctrl_c_ends_the_timing_and_nothing_else(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fresh.setattr(measuring, "run_in_child", After(out, most=5, error=KeyboardInterrupt()))
    assert "skipped; the timings so far are stored" in trained(out).err
    known = load_calibration()
    assert known is not None
    assert len(known.points) == 5


def test_a_spec_may_leave_the_timing_out(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = trained(tmp_path / "run", "--set", "train.calibrate_after=false")  # `in_child` is None
    assert "timing its kernels" not in ran.err
    known = load_calibration()
    assert known is None or not known.points
    assert path().parent == tmp_path
