"""Callbacks: what they are told, how they end a run, and what a run does that one has ended."""

import json

import numpy as np
import pytest

import pearl
from pearl.planning.runs import load_run
from pearl.training import loop
from pearl.training.steering import CallbackList
from pearl.training.trainer import Trainer
from tests.lanes import planned, replay_spec, told
from tests.training.test_interruption import EVALUATED
from tests.training.test_trainer import arrays, assert_equal

MOMENTS = ("on_progress", "on_evaluation", "on_checkpoint", "on_end")


@pytest.fixture(scope="module")
def plan():
    return pearl.plan(pearl.load(EVALUATED))


class Noted(pearl.Callback):
    """Notes each event, and answers as it is told to."""

    def __init__(self, moment="", answer=None, error=None):
        self.events, self._moment, self._answer, self._error = [], moment, answer, error

    def __getattribute__(self, name):
        if name not in MOMENTS:
            return super().__getattribute__(name)
        return lambda event: self._told(name, event)

    def _told(self, moment, event):
        self.events.append((moment, event))
        if moment == self._moment and self._error:
            raise self._error
        return self._answer if moment == self._moment else None

    def of(self, moment):
        return [event for name, event in self.events if name == moment]


def compiled(plan):
    return pearl.compile(EVALUATED, plan=plan)


def test_events_tell_what_the_run_did(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    noted, trainer = Noted(), compiled(plan)
    actions = []

    class Acting(pearl.Callback):
        def on_progress(self, event):
            actions.append(event.policy_last(np.zeros((3, 4))))

    run = trainer.train(out=tmp_path, callbacks=[noted, Acting()])
    steps = [e.env_steps for e in noted.of("on_progress")]
    assert steps == sorted(steps)
    assert steps[-1] == run.env_steps == noted.events[-1][1].env_steps
    assert len(actions) == len(steps)
    assert {a.shape for a in actions} == {(3,)}
    judged = noted.of("on_evaluation")
    assert [e.eval_env_steps for e in judged] == [240, 480, 720, 800]
    assert all(e.eval_mean == np.mean(e.eval_returns) and len(e.eval_returns) == 3 for e in judged)
    assert judged[-1].best_mean == max(e.eval_mean for e in judged)
    assert [e.env_steps for e in noted.of("on_checkpoint")] == [400]
    (end,) = noted.of("on_end")
    assert (end.run, end.folder, end.updates) == (run, tmp_path, run.updates)
    np.testing.assert_array_equal(end.policy.parameters, trainer.policy.parameters)
    np.testing.assert_array_equal(end.policy_last.parameters, trainer.policy_last.parameters)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("moment", ["on_progress", "on_evaluation", "on_checkpoint"])
def test_stop_ends_a_run_whole_and_it_goes_on(moment, plan, tmp_path):
    whole, cut, resumed = (
        pearl.compile(EVALUATED, plan=plan, set={"train.checkpoint_every": 240}) for _ in range(3)
    )
    whole.train()
    first, noted = Noted(moment, pearl.STOP), Noted()
    run = cut.train(out=tmp_path, callbacks=[first, noted])
    assert run.status == "stopped"
    assert 0 < run.env_steps < 800
    assert run.returns["eval_mean"] is not None  # the best was judged as at any end
    told_at = first.of(moment)[0].env_steps
    assert (run.stopped.by, run.stopped.env_steps) == ("Noted", told_at)
    assert len(noted.of("on_end")) == 1
    assert load_run(tmp_path).stopped == run.stopped
    assert "stopped by Noted" in str(cut.report(run))
    assert resumed.train(out=tmp_path, resume=True).status == "done"
    assert_equal(arrays(whole), arrays(resumed))
    assert json.loads((tmp_path / "run.json").read_text())["stopped"] is None


@pytest.mark.sweep(2)
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_callback_raises_ends_the_run_with_a_checkpoint_and_is_raised(
    moment, plan, tmp_path
):
    cut = pearl.compile(EVALUATED, plan=plan, set={"train.checkpoint_every": 240})
    first, last = Noted(moment, error=ValueError("no\nmore")), Noted()
    with pytest.raises(ValueError, match="no\nmore"):
        cut.train(out=tmp_path, callbacks=[first, last])
    run = load_run(tmp_path)
    if moment == "on_end":
        assert run.status == "done"
    else:
        assert run.status == "failed"
        assert run.message == f"Noted.{moment} raised ValueError: no more"
    assert len(last.of("on_end")) == 1  # told all the same
    again = pearl.compile(EVALUATED, plan=plan, set={"train.checkpoint_every": 240})
    assert again.train(out=tmp_path, resume=True).status == "done"


def test_other_answers_and_other_objects_are_refused(plan):
    with pytest.raises(TypeError, match=r"returned False; None or pearl\.STOP is allowed"):
        compiled(plan).train(callbacks=[Noted("on_evaluation", False)])
    with pytest.raises(pearl.SpecError, match=r"callbacks\[1\] is .*not the class"):
        compiled(plan).train(callbacks=[Noted(), Noted])


def test_several_lanes_stop_too_and_say_which_policies_they_have(tmp_path):
    system, plan = planned(replay_spec("dqn", {"policy_lag": 2}))
    refused = []

    class Looks(pearl.Callback):
        def on_progress(self, event):
            assert event.policy.parameters.size
            try:
                event.policy_last  # noqa: B018
            except ValueError as error:
                refused.append(str(error))
            return pearl.STOP

        def on_end(self, event):
            assert event.policy_last.parameters.size

    trainer = Trainer(told(system, lanes="threads"), plan, seed=3)
    run = trainer.train(steps=1600, out=tmp_path, callbacks=[Looks()])
    assert run.status == "stopped"
    assert "the plan has several lanes" in refused[0]


def progress(**numbers):
    plain = {"env_steps": 8, "total_steps": 80, "mean_return": None, "eval_mean": None}
    rates = {"env_steps_per_s": 2.0, "predicted_env_steps_per_s": 4.0, "phase": "training"}
    return pearl.Progress(**{**plain, **rates, **numbers})


def test_callbacks_are_called_in_their_order_up_to_the_first_that_raises_and_all_at_the_end():
    made = []
    stopping, failing, later = (
        Noted("on_progress", pearl.STOP), Noted("on_checkpoint", error=ValueError("a\nb")), Noted()
    )  # fmt: skip

    def make():
        made.append(progress(env_steps=8 * len(made)))
        return made[-1]

    each = CallbackList.from_arguments([stopping, failing], later.on_progress)
    for moment in ("on_progress", "on_progress", "on_checkpoint", "on_evaluation", "on_end"):
        each.notify(moment, make)
    assert [moment for moment, _ in stopping.events] == [
        *("on_progress", "on_progress", "on_checkpoint", "on_end")
    ]
    assert [moment for moment, _ in failing.events] == [moment for moment, _ in stopping.events]
    assert [moment for moment, _ in later.events] == ["on_progress", "on_progress"]
    assert len(made) == 4  # none is made that nobody hears
    assert (each.stopped.by, each.stopped.env_steps) == ("Noted", 0)
    assert each.failure == "Noted.on_checkpoint raised ValueError: a b"
    assert isinstance(each.raised, ValueError)
    alone = CallbackList.from_arguments([Noted("on_end", pearl.STOP)], None)
    alone.notify("on_end", make)
    assert alone.failure.startswith("Noted.on_end raised TypeError: it returned ")
    assert alone.stopped is None
    CallbackList.from_arguments([], None).notify("on_end", lambda: pytest.fail("made for nobody"))
