"""How long a run took to its environment's threshold, to its best policy and to its end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pearl.planning.runs import load_run
from pearl.training import run_clock
from pearl.training.evaluations import evaluation
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.trainer import Trainer
from tests.damage import trainer_of
from tests.lanes import retold

MEANS = (9.0, 480.0, 490.0, 490.0)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A clock that each look moves on by a second."""
    found = count()
    looks = dict.fromkeys(("perf_counter", "process_time"), lambda: float(next(found)))
    monkeypatch.setattr(run_clock, "time", SimpleNamespace(**looks))
    return found


@pytest.fixture
def trainer(seconds: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Its evaluations, every 80 env steps, have MEANS."""
    trainer, given = trainer_of("dqn"), iter(MEANS * 2)
    retold(trainer, evaluate_every=80, evaluate_episodes=1, final_episodes=0)

    def evaluate(self: Any, policy: Any, episodes: int, seed: int) -> Evaluation:
        return Evaluation((next(given),) * episodes, 0, 500) if episodes else Evaluation((), 0, 0)

    monkeypatch.setattr(evaluation.EpisodePlayer, "evaluate", evaluate)
    return trainer


def test_the_first_evaluation_at_the_threshold_and_the_first_of_the_best_are_told(
    trainer: Trainer, seconds: Iterator[int], tmp_path: Path
):
    assert trainer.system.env.threshold == 475.0
    trainer.planned_s = 1000.0
    run = trainer.train(steps=320, out=tmp_path)
    found = run.solution
    assert found is not None
    assert (found.threshold_env_steps, found.best_env_steps) == (160, 240)
    assert found.best_mean == 490.0
    assert found.threshold_s is not None
    assert found.best_s is not None
    assert 1000.0 < found.threshold_s < found.best_s < found.end_s < 1000.0 + next(seconds)
    parts = found.bind_s + found.evaluation_s + found.checkpoint_s
    assert found.plan_s == 1000.0
    assert found.bind_s >= 1.0
    assert found.checkpoint_s >= 1.0
    assert parts < found.end_s - 1000.0
    assert load_run(tmp_path).solution == found
