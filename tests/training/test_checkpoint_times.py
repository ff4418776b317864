"""When checkpoints are written, and runs that leave the replay out of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl.spec.reading import load
from pearl.training.checkpoints import checkpoint
from pearl.training.evaluations import evaluation
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices.kernels.arrays import ANEW
from tests.damage import trainer_of
from tests.lanes import cut, retold


def saves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The iteration of every checkpoint that is written from now on."""
    found, plain = [], checkpoint.save

    def save(path: Path, arrays: Any, about: Any) -> int:
        found.append(about["progress"]["iteration"])
        return plain(path, arrays, about)

    monkeypatch.setattr(checkpoint, "save", save)
    return found


@pytest.mark.parametrize("every", [0, 80, 100, 160])
def test_an_interval_of_the_user_stays_as_given_and_the_end_is_written_once(
    every: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(checkpoint.CheckpointPacer, "due", None)  # not asked
    trainer = trainer_of("dqn")
    retold(trainer, checkpoint_every=every)
    found, per = saves(monkeypatch), trainer.graph.env_steps
    trainer.train(steps=320, out=tmp_path)
    rounds = -(-every // per)
    between = list(range(rounds, 320 // per, rounds)) if every else []
    assert found == [*between, 320 // per]


def test_without_one_checkpoints_are_written_where_they_are_due(monkeypatch, tmp_path):
    assert load({"algorithm": {"name": "dqn", "env": "CartPole-v1"}}).train.checkpoint_every is None
    monkeypatch.setattr(checkpoint, "EVERY", 80)
    asked, told_of, bytes_of = iter([True, False, True]), [], []

    def due(self: Any, nbytes: int, now_s: float) -> bool:
        bytes_of.append(nbytes)
        return next(asked)

    monkeypatch.setattr(checkpoint.CheckpointPacer, "due", due)
    monkeypatch.setattr(
        checkpoint.CheckpointPacer, "record", lambda self, *given: told_of.append(given)
    )
    trainer = trainer_of("dqn")
    found, per = saves(monkeypatch), trainer.graph.env_steps
    trainer.train(steps=320, out=tmp_path)
    assert found == [80 // per, 240 // per, 320 // per]
    assert [given[0] for given in told_of] == [bytes_of[0], bytes_of[2]]
    assert bytes_of[0] < bytes_of[1] < bytes_of[2]
    assert all(given[1] > 0 for given in told_of)


def leaving_out(case: str) -> Trainer:
    return retold(trainer_of(case), checkpoint_replay=False)


@pytest.mark.parametrize("case", ["dqn", "slack", "frames"])
def test_a_run_without_its_replay_says_so_and_fills_it_anew(case, caplog, tmp_path):
    caplog.set_level(logging.WARNING, "pearl")
    first = leaving_out(case)
    run = cut(first, 160, steps=320, out=tmp_path)  # with work under way
    text = "train.checkpoint_replay is false: a run resumed from a checkpoint refills its replay"
    assert run.events[0].startswith(text)
    assert text in caplog.text
    stored = checkpoint.load(tmp_path / CHECKPOINT)
    assert not [name for name in stored.places if name.startswith("replay.")]
    resumed = leaving_out(case)
    again = resumed.train(steps=320, out=tmp_path, resume=True)
    assert again.status == "done", again.message
    starts = first.system.algorithm.learning_starts
    why = f"holds no replay: learning continues after {starts} env steps have refilled the replay"
    assert why in "".join(again.events)
    rows = int(resumed.session.arrays["replay.cursor"][1])
    assert 0 < rows <= 320 - run.env_steps
    assert again.updates == resumed.session.arrays["learner.step"][0] > run.updates > 0
    per = first.graph.updates / first.graph.env_steps
    assert again.updates <= per * (320 - 2 * starts)
    assert resumed.session.arrays["batch.index"].max() < rows
    if case == "frames":  # environments of others cannot be amid an episode of which frames lack
        envs = first.system.algorithm.num_envs
        assert (resumed.session.arrays["replay.truncated"][:envs] & ANEW).all()


def test_a_run_with_its_replay_says_nothing_of_it(tmp_path: Path):
    assert trainer_of("dqn").train(steps=160, out=tmp_path).events == ()
    on_policy = leaving_out("ppo")
    assert on_policy.train(steps=160, out=tmp_path / "ppo").events == ()


@pytest.mark.parametrize("scores", [(9.0, 5.0, 500.0, 117.0), (5.0, 9.0, 480.0)])
def test_the_last_policy_stands_beside_the_best_and_is_judged_once(scores, monkeypatch):
    trainer = trainer_of("dqn")
    retold(trainer, evaluate_every=160, evaluate_episodes=1, final_episodes=3)
    given, judged = iter(scores), []

    def evaluate(self: Any, policy: Any, episodes: int, seed: int) -> Evaluation:
        judged.append((policy.parameters.copy(), episodes, seed))
        return Evaluation((next(given),) * episodes, 0, 500)

    monkeypatch.setattr(evaluation.EpisodePlayer, "evaluate", evaluate)
    run = trainer.train(steps=320)
    assert next(given, None) is None
    returns = run.returns
    final = judged[2:]
    if len(final) == 2:
        assert (returns["eval_mean"], returns["last_eval_mean"]) == (500.0, 117.0)
        assert returns["last_eval_returns"] == [117.0] * 3
        assert returns["best_is_last"] is False
        (best, *same), (last, *also) = final
        assert same == also
        np.testing.assert_array_equal(best, judged[0][0])
        np.testing.assert_array_equal(last, judged[1][0])
        assert not np.array_equal(best, last)
    else:
        assert returns["eval_mean"] == returns["last_eval_mean"] == 480.0
        assert returns["best_is_last"] is True
