"""Checkpoints come back whole, or say why not."""

import os

import numpy as np
import pytest

from pearl import checkpoint
from pearl.errors import SpecError

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "key": np.array([2**63 + 1, 5], np.uint64),
    "flag": np.array([1, 0], np.uint8),
}


def test_arrays_and_description_come_back_equal(tmp_path):
    checkpoint.save(tmp_path / "c", ARRAYS, {"seed": 3})
    arrays, about = checkpoint.load(tmp_path / "c")
    assert about["seed"] == 3
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_a_failed_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "c", ARRAYS, {"seed": 3})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path / "c", ARRAYS, {"seed": 4})
    assert checkpoint.load(tmp_path / "c")[1]["seed"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("cut", [0, 4, 60, -1])
def test_a_truncated_file_is_named(tmp_path, cut):
    checkpoint.save(tmp_path / "c", ARRAYS, {"seed": 3})
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[:cut])
    with pytest.raises(SpecError, match=r"c: not a readable checkpoint"):
        checkpoint.load(tmp_path / "c")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match="there is no checkpoint here"):
        checkpoint.load(tmp_path / "none")


def test_arrays_that_do_not_fit_are_listed_and_nothing_is_copied():
    mine = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(1)}
    with pytest.raises(SpecError) as caught:
        checkpoint.restore({"a": ARRAYS["a"]}, mine, "c")
    text = str(caught.value)
    assert "a: checkpoint float32[2, 3], this plan float32[2, 2]" in text
    assert "b: checkpoint none" in text
    assert not mine["a"].any()
