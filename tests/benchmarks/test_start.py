"""The bar of a first run, and what is noted of its beginning."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.first_step import watch_firings
from benchmarks.start import Start, whole_run
from pearl.runtime.protocol.control_block import ControlBlock
from tests.processes import until


@pytest.mark.parametrize(
    ("cpu_s", "timed", "met"), [(19.0, True, True), (21.0, True, False), (19.0, False, False)]
)
def test_a_whole_first_run_counts_only_with_the_timing_after_it(
    cpu_s: float, timed: bool, met: bool
) -> None:
    bar = whole_run("ppo_cartpole", [Start(12.0, 11.0, 20.0, cpu_s, timed)])
    assert bar.met is met
    assert ("the host was busy" in bar.measured) is not timed


def test_the_first_firing_of_any_lane_is_noted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ControlBlock, "reset", ControlBlock.reset)
    watch_firings(file := tmp_path / "seen.json")
    tasks = ("inference", "env_step")
    control = ControlBlock(tasks, 2, np.zeros(ControlBlock.size(2, 2), np.int64))
    begin_s = time.time()
    control.reset({"inference": 5, "env_step": 7}, 1, limit=1)
    assert not file.exists()
    control.write(control.count_cell("env_step"), 8)
    until(lambda: file.exists() and file.read_text(), "the note")
    found = json.loads(file.read_text())
    assert begin_s <= found["at_s"] <= time.time()
    assert found["cpu_s"] > 0.0
    assert found["workers"] == 0
