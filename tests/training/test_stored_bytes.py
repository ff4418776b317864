"""Observations that are uint8 are stored as uint8, with the bits of a run that stores float32."""

from unittest.mock import patch

import numpy as np
import pytest

import pearl
from pearl.algorithms import environments, initial_values
from pearl.planning.runs import CHECKPOINT
from pearl.spec.user_code import build_graph
from tests.lanes import differing

PICTURES = "tests.picture_envs:Pictures"


def trainer(kind, *, floats=False, **more):
    """A run on such an environment; with `floats`, stored as before."""
    spec = {
        "algorithm": {
            "name": "dqn", "env": PICTURES, "env_args": {"kind": kind}, "num_envs": 2,
            "hidden": [8], "batch_size": 4, "learning_starts": 16, "n_step": 3,
            "replay": {"capacity": 40, "kind": "prioritised"}, **more,
        },
        "train": {"steps": 120, "calibrate_after": False, "evaluate_episodes": 1},
    }  # fmt: skip
    with patch.object(initial_values, "stored_units", (lambda system: 0) if floats else UNITS):
        return pearl.compile(spec)


UNITS = environments.stored_units


@pytest.mark.parametrize(
    ("kind", "more"),
    [("image", {}), ("stack", {"replay": {"capacity": 40, "kind": "uniform"}}), ("bytes", {})],
)
def test_a_replay_of_bytes_computes_what_one_of_floats_computes(kind, more):
    small, large = trainer(kind, **more), trainer(kind, floats=True, **more)
    small.train()
    large.train()
    a, b = small.session.arrays, large.session.arrays
    assert a["replay.obs"].dtype == a["replay.next_obs"].dtype == np.uint8
    assert b["replay.obs"].nbytes == 4 * a["replay.obs"].nbytes
    units = small.system.env.units
    for name in ("replay.obs", "replay.next_obs"):
        np.testing.assert_array_equal(a[name] * np.float32(1 / units), b[name])
    assert [n for n in differing(small, large) if n not in ("replay.obs", "replay.next_obs")] == []
    assert len({int(v) for v in a["replay.obs"].ravel()}) > 100


def test_a_run_of_bytes_resumes_and_takes_what_was_stored_as_floats(tmp_path):
    whole, old = trainer("image"), trainer("image", floats=True)
    whole.train()
    old.train(steps=60, out=tmp_path)
    resumed = trainer("image")
    assert resumed.train(steps=120, out=tmp_path, resume=True).status == "done"
    a, b = whole.session.arrays, resumed.session.arrays
    assert a["replay.obs"].dtype == b["replay.obs"].dtype == np.uint8
    np.testing.assert_array_equal(a["replay.obs"], b["replay.obs"])
    assert (tmp_path / CHECKPOINT).exists()


def test_numbers_that_are_no_bytes_are_refused():
    run = trainer("image", env_args={"kind": "image", "wrong": True}).train()
    assert run.status == "failed"
    assert "uint8" in run.message


def test_the_memory_that_is_asked_for_is_that_of_bytes():
    spec = trainer("stack").system
    rows = 40
    wanted = rows * (2 * 100 + 4 + 8 + 2)
    held = build_graph(spec).states["replay"]
    assert 0 < held - wanted < 60 * rows  # the tree of priorities, the cursor
