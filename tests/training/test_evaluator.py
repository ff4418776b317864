"""What is recorded of evaluations, and the process that plays them, on twins of what they use."""

from __future__ import annotations

from types import SimpleNamespace as Given
from typing import Any

import pytest

from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations import evaluator
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.evaluations.evaluator import Evaluator


class Twin:
    """Takes down the calls of its methods."""

    def __init__(self, told: list[Any], **fields: Any) -> None:
        self.told = told
        vars(self).update(fields)

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: self.told.append((name, *given, *more.values()))


def session(told: list[Any], **options: Any) -> Any:
    train = {"evaluate_every": 80, "evaluate_episodes": 3, "on_env_failure": "stop"}
    system = Given(train=Given(**{**train, **options}), env=Given(threshold=9.0))
    plan = Given(evaluation=None)
    compiled = Given(system=system, graph=Given(env_steps=8), plan=plan, emulate=False)
    policy = lambda which: Given(kernel=which)  # noqa: E731
    return Twin(told, compiled=compiled, state=RunState(total_steps=800), seed=3, policy=policy)


def recorded(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Evaluator, list[Any]]:
    told: list[Any] = []
    monkeypatch.setattr(evaluator, "EpisodePlayer", lambda *given: Twin(told))
    clock: Any = Twin(told)
    return Evaluator(session(told, **options), clock), told


def test_the_best_policy_is_the_latest_of_the_best_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    found, told = recorded(monkeypatch)
    state = found.session.state
    for iteration, returns, cut in (
        (10, (1.0, 5.0), 0), (20, (8.0, 10.0), 1), (30, (), 0), (40, (9.0,), 2), (50, (8.0,), 0),
    ):  # fmt: skip
        state.judging = 40
        found.record(Evaluation(returns, cut, 7), iteration)
    assert told == [
        ("record_milestone", "best", 80), ("mark_best",),
        ("record_milestone", "best", 160), ("record_milestone", "threshold", 160), ("mark_best",),
        ("record_milestone", "threshold", 320), ("mark_evaluated_best",),
    ]  # fmt: skip
    assert (state.best_mean, state.last_mean, state.last_low, state.last_high) == (9, 8, 8, 8)
    assert state.evaluation_cuts == 3
    assert state.log.events == [
        "env step 160: in evaluation 1 of 2 episodes had not ended after 7 env steps and were cut "
        "(train.evaluate_max_steps); their returns are of these steps"
    ]
    assert state.log.restarts == 0
    state.spent["threshold_s"] = 1.0
    found.session.compiled.system.env.threshold = None
    found.record(Evaluation((4.0, 2.0), 0, 7), 60)
    assert (state.last_mean, state.last_low, state.last_high) == (3.0, 2.0, 4.0)
    found.session.compiled.system.env.threshold = 9.0
    found.record(Evaluation((9.5,), 0, 7), 70)
    assert told[-2:] == [("record_milestone", "best", 560), ("mark_best",)]
