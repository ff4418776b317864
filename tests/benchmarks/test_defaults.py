"""The benchmark of defaults: what it compares, and what it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import defaults
from benchmarks.defaults_cases import BY_NAME, CASES

CASE = BY_NAME["ppo CartPole-v1"]


def test_a_spec_of_ours_names_the_algorithm_and_the_environment_alone() -> None:
    for case in CASES:
        assert set(case.spec()["algorithm"]) == {"name", "env"}
        assert case.steps <= (300_000 if case.algorithm == "ppo" else 100_000)


def test_runs_of_other_settings_are_not_counted_and_a_case_has_a_bar_once_it_is_whole(
    tmp_path: Path,
) -> None:
    file = tmp_path / "defaults.json"
    for who, final in (("ours", 480.0), ("sb3", 490.0)):
        for seed in range(2):
            run = {"final": final + seed, "cpu_s": 1.0, "wall_s": 1.0, "version": "0"}
            defaults.add(file, CASE, who, seed, run)
    runs = defaults.read(file)
    bars, left_out = defaults.report([CASE], runs, 2)
    assert [bar.met for bar in bars] == [False]
    assert not left_out
    runs[CASE.name]["sb3"]["settings"] = "of another day"
    bars, left_out = defaults.report([CASE], runs, 2)
    assert not bars
    assert left_out == ["ppo CartPole-v1, sb3: 0 of 2 seeds"]


def test_a_file_that_is_none_of_the_benchmarks_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("[]")
    with pytest.raises(SystemExit, match="no results file"):
        defaults.read(file)
