"""The benchmark of defaults: what it compares, and what it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bars import ABSENT
from benchmarks.defaults import BY_NAME, DEFAULTS
from benchmarks.kept_runs import read

CASE = BY_NAME["ppo CartPole-v1"]


def test_runs_of_other_settings_are_not_counted_and_a_bar_needs_all_seeds_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "defaults.json"
    given = ["--cases", CASE.name, "--results", str(file), "--show"]
    for who, final in (("ours", 480.0), ("sb3", 490.0)):
        for seed in range(CASE.seeds):
            run = {"final": final + seed, "cpu_s": 1.0, "version": "0"}
            DEFAULTS.add(file, CASE, who, seed, run)
    assert DEFAULTS.main(None, given) == 1
    said = capsys.readouterr().out
    assert "bar: ppo CartPole-v1: mean of the middle half, 5 seeds | 482.0 | at least" in said
    runs = read(file)
    runs[CASE.name]["sb3"]["settings"] = "of another day"
    DEFAULTS.write(file, runs)
    assert DEFAULTS.main(None, given) == ABSENT
    said = capsys.readouterr().out
    assert "bar:" not in said
    assert "absent: sb3, 5 runs (ppo CartPole-v1 seed 0 …)" in said
