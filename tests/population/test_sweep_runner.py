"""What a sweep refuses before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import pearl
from pearl.population import run_files

SPEC = {"algorithm": {"name": "q_learning", "env": "FrozenLake-v1"}, "train": {"steps": 400}}


def test_a_folder_of_a_sweep_is_a_folder(tmp_path):
    assert run_files.load_sweep_file(tmp_path / "none", resume=True) is None
    assert run_files.load_sweep_file(tmp_path, resume=False) is None
    (tmp_path / "file").touch()
    with pytest.raises(pearl.errors.SpecError, match="file: is a file, not a folder"):
        run_files.load_sweep_file(tmp_path / "file", resume=True)


def test_no_folder_is_needed_for_a_plan_and_one_is_for_a_run():
    with pytest.raises(pearl.errors.SpecError, match="`out`, a folder for the runs, is needed"):
        pearl.sweep(SPEC)
    for restarts in (-1, True, 1.0):
        with pytest.raises(pearl.errors.SpecError, match="restarts is"):
            pearl.sweep(SPEC, out=Path("never"), restarts=restarts)
