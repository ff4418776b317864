"""What is recorded of evaluations, and the process that plays them, on twins of what they use."""

from __future__ import annotations

from types import SimpleNamespace as Given
from typing import Any

import numpy as np
import pytest

from pearl.runtime.protocol.single_lane import LaneError
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations import evaluation_worker, evaluator
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.evaluations.evaluation_worker import EvaluationWorker
from pearl.training.evaluations.evaluator import Evaluator
from pearl_devices.base import EnvironmentFailed


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


@pytest.mark.parametrize(("apart", "every", "emulate", "pays_from", "iteration", "works"),
                         [(True, 80, False, 10, 0, True), (True, 80, False, 11, 0, False),
                          (True, 80, False, 9, 10, True), (True, 80, False, 9, 11, False),
                          (False, 80, False, 1, 0, False), (True, 0, False, 1, 0, False),
                          (True, 80, True, 1, 0, False),
                          (None, 80, False, 1, 0, False)])  # fmt: skip
def test_a_worker_plays_where_the_run_has_evaluations_enough(
    apart, every, emulate, pays_from, iteration, works, monkeypatch
):
    given = session([], evaluate_every=every)
    given.compiled.emulate, given.state.iteration = emulate, iteration
    if apart is not None:
        given.compiled.plan.evaluation = Given(apart=apart, pays_from=pays_from)
    made, told = [], list[Any]()
    monkeypatch.setattr(evaluator, "EpisodePlayer", lambda *given: Twin(told))
    monkeypatch.setattr(evaluator, "EvaluationWorker", lambda *a: made.append(a) or Twin(told))
    found = Evaluator(given, Given())  # type: ignore[arg-type]
    assert (found.worker is not None, len(made)) == (works, int(works))
    found.close()
    assert told == [("close",)] * (1 + works)


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


def test_random_streams_follow_the_iteration_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = recorded(monkeypatch)
    found.session.state.iteration = 7
    assert found._name == "periodic 7"
    found.session.state.judging = 5
    assert found._name == "periodic 5"
    assert len({found._seed(name) for name in ("periodic 5", "periodic 7", "final")}) == 3


class Child:
    """A twin of the process: `answers` come when they are waited for, one for each `begin`."""

    made: list[Child]

    def __init__(self, program: str, handles: Any, about: Any, receive: Any) -> None:
        self.about, self.receive, self.told = about, receive, list[Any]()
        self.answers: list[dict[str, Any]] = []
        self.ended: str | None = None
        self.is_closed, self.pid = False, 40 + len(Child.made)
        Child.made.append(self)

    def send(self, orders: Any) -> None:
        self.told.append(orders)

    def wait_for(self, condition: Any, timeout_s: float) -> bool:
        assert not condition()
        if self.answers:
            self.receive(self.answers.pop(0))
        return bool(condition())

    def exit_reason(self) -> str | None:
        return self.ended

    def kill(self) -> None:
        self.told.append("kill")

    def end(self) -> None:
        self.told.append("end")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    now = [50.0]
    Child.made = []
    monkeypatch.setattr(evaluation_worker, "ChildProcess", Child)
    monkeypatch.setattr(evaluation_worker, "monotonic", lambda: now[0])
    monkeypatch.setattr(evaluation_worker.platform_json, "to_json", lambda platform: platform)
    arrays = {"judged.policy": np.arange(3.0), "judged.x": np.ones(2)}
    system: Any = Given(raw={"name": "a"}, platform="p")
    return EvaluationWorker(system, arrays), arrays, now


ORDERS = {"episodes": 3, "seed": 7}
ANSWER = {"returns": [1.0, 2.0], "cut": 1, "max_steps": 9, "cpu_s": 0.5}


def test_a_worker_plays_what_it_is_given_and_says_so_once(worker: Any) -> None:
    made, arrays, _ = worker
    (child,) = Child.made
    assert (child.about["spec"], child.about["platform"]) == ({"name": "a"}, "p")
    assert not made.playing
    arrays["judged.policy"] += 1
    made.begin(arrays, 3, 7)
    np.testing.assert_array_equal(made._memory.arrays["judged.policy"], arrays["judged.policy"])
    assert (made.playing, child.told) == (True, [ORDERS])
    child.answers = [{"alive": True}, ANSWER]
    assert made.result() == (Evaluation((1.0, 2.0), 1, 9), 0.5)
    assert (made.playing, made.deaths) == (False, 0)
    child.receive(ANSWER)  # of an evaluation that was given up
    made.begin(arrays, 3, 7)
    child.answers = [{"failure": "it broke"}]
    with pytest.raises(EnvironmentFailed, match="it broke"):
        made.result()
    assert not made.playing
    child.receive({"error": "no start"})  # it could not start, which the next evaluation says
    made.begin(arrays, 3, 7)
    with pytest.raises(LaneError, match="evaluation: no start"):
        made.result()
    made.close()
    assert child.told[-1] == "end"
    made.begin(arrays, 3, 7)
    made.close()
    assert child.told[-2:] == ["kill", "end"]
    assert not made.playing


def test_a_silent_process_is_started_again_after_a_minute_and_thrice_is_the_end(worker, capsys):
    made, arrays, now = worker
    made.begin(arrays, 3, 7)
    now[0] += 60.0
    assert not made._restart_if_dead(0)
    assert not made._restart_if_dead(0)
    assert capsys.readouterr().err.count("has not answered for 60 s; after 60 s") == 1  # once
    now[0] += 0.5
    assert made._restart_if_dead(0)
    first, second = Child.made
    assert first.told == [ORDERS, "kill", "end"]
    assert (second.told, made.deaths) == ([ORDERS], 1)
    now[0] += 60.0
    second.receive({"alive": True})  # a sign of life
    now[0] += 60.0
    assert not made._restart_if_dead(1)
    second.ended = "its process ended"
    assert made._restart_if_dead(1)
    assert "kill" not in second.told
    third = Child.made[-1]
    third.ended = "it ended too"
    made._answer = ANSWER  # its last word came first
    assert not made._restart_if_dead(2)
    made._answer = None
    with pytest.raises(LaneError, match=r"evaluation: it ended too, the 3 times that it was tried"):
        made._restart_if_dead(2)
    now[0] += 61.0
    third.ended = None
    with pytest.raises(LaneError, match="its process 42 gave no sign for 61 s, the 3 times"):
        made._restart_if_dead(2)
