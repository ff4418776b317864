"""A checkpoint holds what is filled, comes back bit for bit, and what is damaged is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pearl.errors import SpecError
from pearl.training.checkpoints import checkpoint
from pearl.training.checkpoints.state import RunState
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices.base import UnsupportedError
from tests.damage import MORE, STEPS, trainer_of
from tests.lanes import cut


@pytest.mark.parametrize("case", ["slack", "frames"])
def test_only_filled_rows_are_written_and_they_come_back_bit_for_bit(case: str, tmp_path: Path):
    trainer = trainer_of(case)
    trainer.train(steps=96, out=tmp_path)
    rows = int(trainer.session.arrays["replay.cursor"][1])
    capacity = len(trainer.session.arrays["replay.reward"])
    assert 0 < rows < capacity / 2
    held = load_file(tmp_path / CHECKPOINT)
    assert {len(held[f"replay.{n}"]) for n in ("action", "reward", "terminated", "tree")} == {rows}
    again = Trainer.load(tmp_path)
    for name, array in trainer.session.arrays.items():
        np.testing.assert_array_equal(again.session.arrays[name], array, err_msg=name)
    assert again.session.arrays["replay.tree"][0] > 0


@pytest.mark.parametrize("case", ["dqn", "frames"])
def test_a_run_goes_on_bit_for_bit_from_a_replay_that_is_not_full(case: str, tmp_path: Path):
    whole, half = trainer_of(case), trainer_of(case)
    whole.train(steps=192)
    cut(half, 96, steps=192, out=tmp_path)
    resumed = trainer_of(case)
    resumed.train(steps=192, out=tmp_path, resume=True)
    passing = ("batch.", "step.", "act.", "version.", "best.")
    for name, array in whole.session.arrays.items():
        if not name.startswith(passing) and "@" not in name:
            np.testing.assert_array_equal(resumed.session.arrays[name], array, err_msg=name)


MEMORY = """
import resource, sys
import numpy as np
from pearl.training.checkpoints import checkpoint
about = {"spec": {}, "plan": {}, "emulate": False, "seed": 0, "progress": {}, "environments": {}}
array = np.ones((40, 2**20), np.float32)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoint.save(sys.argv[1], {"small": array[0, :8]}, about)
checkpoint.load(sys.argv[1]).read("small")
before = peak()
checkpoint.save(sys.argv[1], {"replay": array}, about)
array[:] = 0
checkpoint.load(sys.argv[1]).read_into("replay", array)
assert array.min() == 1
for piece in checkpoint.load(sys.argv[1]).pieces("replay"):
    assert piece.min() == 1
print((peak() - before) // 1024)
"""


def test_arrays_go_to_the_file_and_back_without_a_copy(tmp_path: Path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "c")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ran.stdout) <= 64  # MiB, of an array of 160


def damaged(trainer: Trainer, folder: Path, name: str, at: Any, value: float) -> None:
    stored = checkpoint.load(folder / CHECKPOINT)
    arrays = {n: stored.read(n) for n in stored.places}
    arrays[name][at] = value
    checkpoint.save(folder / CHECKPOINT, arrays, stored.about)


WRONG = [
    ("dqn", "replay.cursor", 0, 10**9, r"replay.cursor is \[1000000000, 400\]; the next row"),
    ("dqn", "replay.action", 7, 2, r"replay.action has 2; from 0 to 1 is allowed"),
    ("dqn", "replay.tree", 7, np.nan, r"replay.tree has nan"),
    ("dqn", "replay.tree", 7, -1, r"replay.tree has -1"),
    ("dqn", "episode.count", 0, -1, r"episode.count has -1"),
    ("dqn", "env.state", (1, 0), 1e7, r"env.state has 1e\+07; from -1e\+06 to 1e\+06"),
    ("slack", "batch.index@1", (0, 3), 400, r"batch.index@1 has 400; from 0 to 399"),
    ("frames", "replay.clock", 0, 10**9, r"replay.clock is \[1000000000"),
    ("frames", "replay.depth", 0, 200, r"replay.depth has 200; from 0 to 2"),
    ("ppo", "rollout.at", 0, 16, r"rollout.at has 16; from 0 to 15"),
    ("ppo", "rollout.action", (0, 0), -1, r"rollout.action has -1"),
    ("sarsa", "env.obs", 0, 16, r"env.obs has 16; from 0 to 15"),
    ("sarsa", "learner.q.visits", 0, -1, r"learner.q.visits has -1"),
]


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("case", "name", "at", "value", "text"), WRONG)
def test_a_number_that_a_kernel_must_not_see_is_refused_by_name(
    case: str, name: str, at: Any, value: float, text: str, tmp_path: Path
):
    trainer = trainer_of(case)
    trainer.train(steps=STEPS, out=tmp_path)
    damaged(trainer, tmp_path, name, at, value)
    before = {n: a.copy() for n, a in Trainer(trainer.system, trainer.plan).session.arrays.items()}
    fresh = Trainer(trainer.system, trainer.plan)
    with pytest.raises(SpecError, match=text) as caught:
        fresh.train(steps=STEPS + MORE, out=tmp_path, resume=True)
    assert len(caught.value.problems) == 1
    assert str(tmp_path / CHECKPOINT) in str(caught.value)
    with pytest.raises(SpecError, match=text):
        Trainer.load(tmp_path)
    for array, name in ((a, n) for n, a in before.items() if not n.startswith("rng.")):
        np.testing.assert_array_equal(fresh.session.arrays[name], array)


def test_a_policy_is_in_the_file_while_it_is_judged(tmp_path: Path):
    session = trainer_of("ppo").session
    for judging, held in ((0, False), (3, True)):
        session.arrays["judged.policy"][:] = 5
        session.save(tmp_path / "c", RunState(judging=judging))
        assert ("judged.policy" in load_file(tmp_path / "c")) == held
        session.load_checkpoint(checkpoint.load(tmp_path / "c"))
        assert (session.arrays["judged.policy"] == 5).all() == held


def test_arrays_that_do_not_fit_are_listed_and_nothing_is_copied(tmp_path: Path):
    trainer_of("ppo").save(tmp_path / "c")
    other = trainer_of("a2c")
    before = {n: a.copy() for n, a in other.session.arrays.items()}
    with pytest.raises(SpecError) as caught:
        other.session.load_checkpoint(checkpoint.load(tmp_path / "c"))
    what = f"{tmp_path / 'c'}: does not fit this spec and plan: rollout."
    assert f"{what}at: checkpoint int64[1]" not in str(caught.value)
    assert f"{what}obs: checkpoint float32[16, 4, 4], here float32[8, 4, 4]" in str(caught.value)
    for name, array in before.items():
        np.testing.assert_array_equal(other.session.arrays[name], array)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"step": [{}, {}]}, {"step": 3},
     {"step": [{"origin": {"seed": "x"}, "actions": [], "observation": 1}] * 2},
     {"step": [{"origin": {"bit_generator": "PCG64"}, "actions": {}, "observation": {}}] * 2}],
)  # fmt: skip
def test_environments_that_cannot_come_back_are_a_sentence(wrong: Any, tmp_path: Path):
    trainer = trainer_of("frames")
    trainer.train(steps=96, out=tmp_path)
    stored = checkpoint.load(tmp_path / CHECKPOINT)
    arrays = {n: stored.read(n) for n in stored.places}
    checkpoint.save(tmp_path / CHECKPOINT, arrays, {**stored.about, "environments": wrong})
    with pytest.raises(UnsupportedError, match=r"step|environment") as caught:
        trainer.train(steps=192, out=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("count", "cases"),
    [(20, "sac ppo q_learning"), pytest.param(60, "slack frames", marks=pytest.mark.slow)],
)
def test_no_damaged_number_crashes_the_process(count: int, cases: str, tmp_path: Path):
    # These have arrays of every kind; `python -m tests.damage FOLDER 60 CASE …` tries the others.
    command = [sys.executable, "-m", "tests.damage", str(tmp_path), str(count), *cases.split()]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
