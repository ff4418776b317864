"""Checkpoints come back whole, or say why not."""

import json
import os
from dataclasses import fields

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save as encode

from pearl.errors import SpecError
from pearl.planning.plans import pearl_version, plain
from pearl.runtime.environments.external_envs import FailureLog
from pearl.training.checkpoints import checkpoint
from pearl.training.checkpoints.state import LATER, RunState

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "key": np.array([2**63 + 1, 5], np.uint64),
    "flag": np.array([1, 0], np.uint8),
}
ABOUT = {"spec": {}, "plan": {}, "emulate": False, "seed": 3, "progress": {}, "environments": {}}


def test_arrays_and_description_come_back_equal(tmp_path):
    size = checkpoint.save(tmp_path / "c", ARRAYS, ABOUT)
    assert size == (tmp_path / "c").stat().st_size
    stored = checkpoint.load(tmp_path / "c")
    assert stored.about["seed"] == 3
    assert stored.about["pearl_version"] == pearl_version()
    others = load_file(tmp_path / "c")  # what everyone reads
    assert stored.places.keys() == others.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        for found in (stored.read(name), others[name]):
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)


def test_former_names_of_tasks_are_read_and_random_streams_keep_theirs(tmp_path):
    arrays = {"version.param_sync": ARRAYS["a"], "rng.env_step": ARRAYS["key"]}
    progress = {"under_way": {"begin": 3, "inference": 4, "replay_insert": 5}}
    spec = {"algorithm": {"name": "dqn"}, "limits": {"pin": {"update": "gpu"}, "max_lanes": 2}}
    about = {
        **ABOUT,
        "format": 2,
        "spec": spec,
        "progress": progress,
        "environments": {"env_step#1": [1]},
    }
    checkpoint.save(tmp_path / "c", arrays, about)
    stored = checkpoint.load(tmp_path / "c")
    assert stored.places.keys() == {"version.sync", "rng.env_step"}
    np.testing.assert_array_equal(stored.read("version.sync"), ARRAYS["a"])
    assert stored.about["progress"] == {"under_way": {"begin": 3, "act": 4, "store": 5}}
    assert stored.about["spec"]["limits"] == {"pin": {"learn": "gpu"}, "max_lanes": 2}
    assert stored.about["environments"] == {"step#1": [1]}


def test_a_failed_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "c", ARRAYS, ABOUT)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path / "c", ARRAYS, {**ABOUT, "seed": 4})
    assert checkpoint.load(tmp_path / "c").about["seed"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("cut", [0, 4, 60, -1])
def test_a_truncated_file_is_named(tmp_path, cut):
    checkpoint.save(tmp_path / "c", ARRAYS, ABOUT)
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[:cut])
    with pytest.raises(SpecError, match=r"c: not a readable checkpoint"):
        checkpoint.load(tmp_path / "c")


@pytest.mark.parametrize("key", ABOUT)
def test_a_description_that_lacks_a_key_or_has_a_wrong_one_is_a_sentence(key, tmp_path):
    for about in ({k: v for k, v in ABOUT.items() if k != key}, {**ABOUT, key: [1]}):
        checkpoint.save(tmp_path / "c", ARRAYS, about)
        with pytest.raises(SpecError, match=f"c: {key} is (missing|.1.); .* is needed") as caught:
            checkpoint.load(tmp_path / "c")
        assert len(caught.value.problems) == 1


def test_another_format_is_refused_with_the_version_that_wrote_it(tmp_path):
    for version, text in (
        ("9.1", "written by pearl 9.1; .* reads format"),
        (None, "older version"),
    ):
        about = {**ABOUT, "format": 1} | ({"pearl_version": version} if version else {})
        text_of = json.dumps({k: v for k, v in about.items() if v is not None})
        (tmp_path / "c").write_bytes(encode(ARRAYS, metadata={"pearl": text_of}))
        with pytest.raises(SpecError, match=f"format 1, .*{text}"):
            checkpoint.load(tmp_path / "c")


def test_a_state_reads_what_it_knows():
    progress = plain(vars(RunState(iteration=7)) | {"log": vars(FailureLog(failure="it failed"))})
    known = RunState.from_json(progress, "c: progress")
    assert (known.iteration, known.log.failure, known.log.events) == (7, None, [])
    later = RunState.from_json({**progress, "colour": "blue"}, "c: progress")
    assert later.iteration == 7
    assert later.log.events == ["c: progress: colour: not known here, left out"]
    assert later.log.restarts == 0


PROGRESS = plain(vars(RunState()) | {"log": vars(FailureLog())})


@pytest.mark.parametrize("key", [f.name for f in fields(RunState)])
def test_a_state_without_a_key_or_with_a_wrong_one_is_a_sentence(key):
    without = {k: v for k, v in PROGRESS.items() if k != key}
    if key in LATER:  # an earlier version did not write it
        assert RunState.from_json(without, "c") == RunState()
    for wrong in ([] if key in LATER else [without]) + [{**PROGRESS, key: {"a": "b"}}]:
        with pytest.raises(SpecError, match=f"^c: .*{key}.* needed|^c: log: key") as caught:
            RunState.from_json(wrong, "c")
        assert all(line.startswith("c: ") for line in caught.value.problems)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((5, 3), [2, 2, 1]), ((4, 3), [2, 2]), ((3, 7), [1, 1, 1]), ((4, 0), [4]), ((0, 3), []),
     ((7,), [6, 1])],
)  # fmt: skip
def test_an_array_is_read_in_pieces_and_by_rows(shape, rows, tmp_path, monkeypatch):
    """Of 24 bytes each, between arrays whose bytes do not end on a multiple of eight."""
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", 24)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    arrays = {"a": np.ones(3, np.uint8), "b": array, "c": np.array(7.5), "d": np.ones(1)}
    size = checkpoint.save(tmp_path / "c", arrays, ABOUT)
    stored = checkpoint.load(tmp_path / "c")
    assert size == (tmp_path / "c").stat().st_size
    for name, place in stored.places.items():
        assert place.at % arrays[name].itemsize == 0, name
    pieces = list(stored.pieces("b"))
    assert [len(piece) for piece in pieces] == rows
    np.testing.assert_array_equal(np.concatenate([*pieces, array[:0]]), array)
    assert [piece.tolist() for piece in stored.pieces("c")] == [7.5]
    out = np.empty_like(array[1:])
    stored.read_into("b", out, 1)
    np.testing.assert_array_equal(out, array[1:])


def test_a_checkpoint_is_due_where_its_share_of_the_time_is_reached():
    """10 MB take 0.05 s and as much again for their bytes: 2 % of 5 s."""
    pace, mega = checkpoint.CheckpointPacer(100.0), 10**6

    def due_at(nbytes, seconds):
        before, after = (pace.due(nbytes, 100.0 + seconds + e) for e in (-1e-6, 1e-6))
        return (before, after) == (False, True)

    assert due_at(10 * mega, 5.0)
    pace.record(10 * mega, 0.04)
    assert due_at(10 * mega, 4.0)
    assert due_at(20 * mega, 6.0)  # twice the bytes take twice as long
    assert due_at(5 * mega, 4.0)  # fewer no less
    pace.record(20 * mega, 0.06)
    assert due_at(20 * mega, 8.0)
