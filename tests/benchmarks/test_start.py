"""The bar of a first run, and what is noted of its beginning."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.first_step import watch_firings
from pearl.runtime.protocol.control_block import ControlBlock
from tests.processes import until


def test_the_first_firing_of_any_lane_is_noted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ControlBlock, "reset", ControlBlock.reset)
    watch_firings(file := tmp_path / "seen.json")
    tasks = ("act", "step")
    control = ControlBlock(tasks, 2, np.zeros(ControlBlock.size(2, 2), np.int64))
    begin_s = time.time()
    control.reset({"act": 5, "step": 7}, 1, limit=1)
    assert not file.exists()
    control.write(control.count_cell("step"), 8)
    until(lambda: file.exists() and file.read_text(), "the note")
    found = json.loads(file.read_text())
    assert begin_s <= found["at_s"] <= time.time()
    assert found["cpu_s"] > 0.0
    assert found["workers"] == 0
