"""Evaluations in a lane of their own: what they say, when it is known, and what may go wrong."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

import pearl
from pearl.planner import planner
from pearl.planning.plans import EvaluationPlacement
from pearl.report.tables import assignment
from pearl.spec.user_code import build_graph
from pearl.training.checkpoints.checkpoint import load as load_checkpoint
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations import evaluation_worker
from pearl.training.evaluations.evaluation_worker import EvaluationWorker
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices import Device, Platform
from tests import faulty_envs
from tests.lanes import planned, replay_spec
from tests.processes import workers
from tests.runtime.test_faults import WALK
from tests.training.test_interruption import EVALUATED
from tests.training.test_trainer import arrays, assert_equal


class Heard(pearl.Callback):
    """The evaluations of a run, and the env step at which each was told. stop: after so many."""

    def __init__(self, stop: int = 0) -> None:
        self.told: list[tuple[int | None, tuple[float, ...]]] = []
        self.at: list[int] = []
        self.stop = stop

    def on_evaluation(self, event: pearl.Progress) -> Any:
        self.told.append((event.eval_env_steps, tuple(event.eval_returns)))
        self.at.append(event.env_steps)
        return pearl.STOP if len(self.told) == self.stop else None


def compiled(where: str, **changes: Any) -> Trainer:
    """A trainer whose evaluations are at pauses or in a lane."""
    system = pearl.load(EVALUATED, set={"train.evaluate_in": where, **changes})
    return pearl.compile(system, plan=pearl.plan(system))


@pytest.fixture(scope="module")
def waited() -> tuple[Trainer, Heard, Any]:
    """A run whose evaluations are at pauses."""
    trainer, heard = compiled("pauses"), Heard()
    return trainer, heard, trainer.train(callbacks=[heard])


@pytest.fixture(scope="module")
def beside() -> tuple[Trainer, Heard, Any]:
    """The same run with its evaluations in a lane."""
    trainer, heard = compiled("lane"), Heard()
    return trainer, heard, trainer.train(callbacks=[heard])


def test_a_lane_of_their_own_says_what_pauses_say_one_interval_later(waited, beside):
    (at_pauses, first, run), (apart, second, other) = waited, beside
    assert second.told == first.told
    assert len(first.told) == 4, "the policy of the end is the last"
    assert first.at == [240, 480, 720, 800]
    assert second.at == [480, 720, 800, 800]
    assert other.returns == run.returns
    one, two = (
        {n: a for n, a in arrays(t).items() if not n.startswith("judged.")}
        for t in (at_pauses, apart)
    )
    assert_equal(one, two)  # the best policy among them
    assert (other.solution.best_mean, other.solution.best_env_steps) == (
        run.solution.best_mean,
        run.solution.best_env_steps,
    )
    assert other.solution.evaluation_cpu_s > 0
    assert not other.restarts
    assert not workers()


def test_a_run_that_a_callback_stops_has_heard_of_all_its_policies(tmp_path):
    trainer, heard = compiled("lane"), Heard(stop=1)
    run = trainer.train(out=tmp_path, callbacks=[heard])
    assert run.status == "stopped"
    assert heard.at == [480, 480]  # the one that was begun there too
    assert load_checkpoint(tmp_path / CHECKPOINT).about["progress"]["judging"] == 0


@pytest.mark.parametrize("how", ["dies", "is silent"])
def test_a_process_that_dies_or_is_silent_is_started_again_and_plays_the_same(
    how, beside, monkeypatch
):
    """It stops before it hears what to play; then it is killed, or a minute goes by."""
    begin, look, lost = EvaluationWorker.begin, EvaluationWorker._restart_if_dead, []

    def beginning(self, *given):
        stop = len(lost) < 2
        if stop:
            lost.append(self._child.pid)
            os.kill(lost[-1], signal.SIGSTOP)
        begin(self, *given)
        if stop and how == "dies":
            os.kill(lost[-1], signal.SIGKILL)

    def looking(self, died):
        if self._child.pid in lost:
            self._heard_s -= 1.5 * evaluation_worker.SILENCE_S
        return look(self, died)

    monkeypatch.setattr(EvaluationWorker, "begin", beginning)
    monkeypatch.setattr(EvaluationWorker, "_restart_if_dead", looking)
    trainer, heard = compiled("lane"), Heard()
    run = trainer.train(callbacks=[heard])
    assert heard.told == beside[1].told
    assert run.restarts == len(lost) == 2
    assert "the process of evaluation died and was started again" in run.events
    assert_equal(arrays(beside[0]), arrays(trainer))


def test_one_that_dies_whenever_it_is_started_ends_the_run_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_worker, "PROGRAM", "pearl.no_such_program")
    run = compiled("lane").train(out=tmp_path)
    assert run.status == "failed"
    assert run.message.startswith("evaluation: its process ")
    assert run.message.endswith("exit status 1, the 3 times that it was tried")
    assert not workers()


def test_ctrl_c_amid_an_evaluation_leaves_it_under_way_and_it_is_played_again(
    beside, tmp_path, monkeypatch
):
    result = EvaluationWorker.result

    def pressed(self):
        signal.raise_signal(signal.SIGINT)
        return result(self)

    monkeypatch.setattr(EvaluationWorker, "result", pressed)
    heard = Heard()
    cut, resumed = compiled("lane"), compiled("lane")
    run = cut.train(out=tmp_path, callbacks=[heard])
    assert (run.status, run.env_steps, heard.told) == ("interrupted", 480, [])
    assert not workers()
    stored = load_checkpoint(tmp_path / CHECKPOINT)
    assert stored.about["progress"]["judging"] == 60
    assert stored.about["progress"]["evaluation_due"]
    monkeypatch.undo()
    run = resumed.train(out=tmp_path, resume=True, callbacks=[heard])
    assert heard.told == beside[1].told
    assert_equal(arrays(beside[0]), arrays(resumed))
    again = compiled("pauses")  # one that has no lane for them plays it before it goes on
    state = RunState.from_json(stored.about["progress"], "checkpoint")
    cut.session.save(tmp_path / CHECKPOINT, state)
    other = Heard()
    again.train(out=tmp_path, resume=True, callbacks=[other])
    assert other.told == beside[1].told


@pytest.mark.sweep(2)
@pytest.mark.parametrize("fault", ["raise", "hard"])
def test_an_environment_that_fails_in_the_process_is_told_and_one_that_hangs_ends_it(
    fault, beside, tmp_path
):
    armed = tmp_path / "armed"
    args = {"fault": fault, "at": 5, "which": 1, "armed": str(armed)}
    spec = replay_spec("dqn", env=WALK, env_args=args, num_envs=1)
    changes = {"evaluate_every": 240, "evaluate_episodes": 3, "env_time_limit": "300 ms"}
    spec["train"] |= changes
    system, plan = planned(spec, variants=("native", "gymnasium"))
    plan = replace(plan, evaluation=beside[0].plan.evaluation)
    trainer = Trainer(system, plan)
    armed.touch()
    faulty_envs.BORN[0] = 0  # the environment that trains is none that fails
    run = trainer.train(steps=480, out=tmp_path / "run")
    assert not armed.exists()
    assert not workers()
    if fault == "raise":
        assert run.status == "failed"
        assert run.message.startswith(f"environment '{WALK}', evaluation episode 2, step ")
        assert run.message.endswith("RuntimeError: the simulator has diverged")
        run = trainer.train(steps=480, out=tmp_path / "run", resume=True)
        assert (run.status, run.restarts) == ("done", 0)
    else:
        assert (run.status, run.restarts) == ("done", 1)
    assert run.solution.best_mean is not None


def test_where_evaluations_are_played_follows_from_what_they_cost_and_what_is_free():
    system = pearl.load(EVALUATED)
    graph = build_graph(system)
    plan = pearl.plan(system)
    assert isinstance(plan.evaluation, EvaluationPlacement)
    assert plan.evaluation.every == 60
    assert plan.evaluation.episodes == 3
    host = replace(system.platform.devices[0], width=2)
    system = replace(system, platform=replace(system.platform, devices=(host,)))

    def apart(period_s: float, **changes: Any) -> bool:
        given = replace(plan, period_s=period_s, **changes)
        return planner.place_evaluation(given, graph, system).apart

    seconds = plan.evaluation.seconds
    border_s = seconds / 60 / planner.LANE_SHARE
    assert apart(border_s / 1.01)
    assert not apart(border_s * 1.01)
    assert not apart(border_s / 1.01, lanes=(*plan.lanes, replace(plan.lanes[0], lane="cpu.1")))
    never = replace(graph, evaluation=None)
    assert planner.place_evaluation(plan, never, system) is None
    assert "evaluation" in {row[0] for row in assignment(plan).rows}


def test_a_host_that_says_nothing_of_evaluations_is_planned_without_and_asked_for_a_lane_refused():
    system = pearl.load(EVALUATED)
    graph = build_graph(system)
    kernels = [each.kernel for each in (*graph.tasks, *graph.fusions)]
    figures = {f"latency_s.{kernel.kind}": 1e-5 for kernel in kernels}
    host = Device("box", "null", width=1, max_lanes=1, figures=figures)
    system = replace(system, platform=Platform("odd", (host,)))
    assert pearl.plan(system).evaluation is None
    asked = replace(system, train=replace(system.train, evaluate_in="lane"))
    with pytest.raises(pearl.SpecError, match=r"lane: box, of kind null, has no estimate"):
        pearl.plan(asked)
