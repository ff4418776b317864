"""User code that is timed is kept: networks and algorithms, their other sizes, and the budget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import pearl
from pearl_devices import Device, Kernel, kernel
from pearl_devices.primitives.torch.modules import measure
from pearl_estimators import Estimate, estimate
from pearl_estimators.host import timed_rows, user_code_timing
from pearl_estimators.host.calibrator import without_timing
from pearl_estimators.host.timed_rows import describe_job, find_row, stored_rows
from tests.calibrations import time_briefly

pytestmark = pytest.mark.usefixtures("nothing_is_timed")

HOST = Device("cpu", "cpu", host="", real=True)
LOSS = "pearl.algorithms.dqn:losses"


def small(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs[0], 32), nn.LayerNorm(32), nn.Linear(32, outputs))


def picky(nets: Any, batch: Any, hyper: Any) -> Any:
    """A loss that refuses rewards that no environment gives."""
    raise ValueError("these rewards are impossible")


@pytest.fixture
def nothing_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_rows, "path", lambda: tmp_path / "timed.jsonl")
    monkeypatch.setattr(user_code_timing, "path", lambda: tmp_path / "timed.jsonl")
    monkeypatch.setattr(user_code_timing, "_failed", {})
    monkeypatch.setattr(user_code_timing, "_spent_s", [0.0])


def update(batch: int = 32, loss: str = LOSS) -> Kernel:
    own = measure(f"{__name__}:small", (4,), 2)
    sizes: dict[str, Any] = {"obs": 4, "act": 0, "batch": batch, "steps": 1, "double": 1}
    return kernel("update.dqn", q=(4, 2), program=loss, modules={"q": own}, **sizes)


def told(k: Kernel) -> Estimate:
    return estimate(k, HOST, variant="torch")


def test_a_network_is_timed_once_and_its_other_sizes_follow_the_data_sheet() -> None:
    with without_timing("a test"):
        timed, again = told(update()), told(update())
        other = told(update(batch=256))
    assert timed == again
    assert (timed.rung, other.rung) == ("measured", "probed")
    rows = find_row(((update(),), "torch"))
    assert rows is not None
    assert timed.latency_s == rows[0][0]
    assert timed.low_s <= timed.latency_s / 1.3 < timed.latency_s * 1.3 <= timed.high_s
    assert len(stored_rows()) == 1
    assert other.latency_s > timed.latency_s
    assert other.high_s / other.low_s > 1.3**2  # wider for a size that was not timed


def test_a_loss_that_does_not_accept_the_arrays_leaves_the_data_sheet_with_the_reason() -> None:
    found = told(update(loss=f"{__name__}:picky"))
    assert found.rung in ("datasheet", "probed")
    assert "not timed" in found.source
    assert "these rewards are impossible" in found.source


def test_when_the_budget_is_spent_the_data_sheet_says_so() -> None:
    user_code_timing._spent_s[0] = user_code_timing.BUDGET_S
    assert "not timed: the budget of 10 s was spent" in told(update()).source
    assert not stored_rows()


def test_a_damaged_or_edited_row_does_not_count() -> None:
    job = (update(),), "torch"
    told(update())
    file = timed_rows.path()
    text = file.read_text()
    file.write_text(text.replace('"seconds": [[', '"seconds": [[1') + text[:40])
    assert find_row(job) is None


def test_the_key_of_a_row_changes_with_the_file_that_the_kernel_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "mine_timed.py"
    k = kernel("env_step", {"envs": 1, "obs": 2, "act": 0}, program="mine_timed:Env")
    keys = []
    for text in ("first = 1\n", "second = 22\n"):
        file.write_text(text)
        keys.append(describe_job(((k,), "gymnasium"))["key"])
    assert keys[0] != keys[1]
    assert "mine_timed" not in sys.modules  # a look at the file runs none of it


def test_one_process_times_the_user_code_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def child(task: str, seconds: float, **options: Any) -> Any:
        asked.append([row["kernels"][0]["kind"] for row in options["request"]["jobs"]])
        return time_briefly(task, seconds, **options)

    monkeypatch.setattr(user_code_timing, "run_in_child", child)
    network = {"network": "examples.catch_image:cnn", "env": "examples.catch_image:Catch"}
    replay = {"kind": "uniform", "capacity": 500}
    spec = pearl.load({"algorithm": {"name": "dqn", "replay": replay, **network}})
    plan = pearl.plan(spec)
    assert len(asked) == 1
    assert asked[0][0] == "env_step"  # user code without a data sheet comes first
    assert "update.dqn" in asked[0]
    assert plan.task("learn").rung == "measured"
    pearl.plan(spec)
    assert len(asked) == 1
