"""A run that ends amid the gradient steps of an iteration goes on as if it had not."""

import signal
import time
from dataclasses import replace

import numpy as np
import pytest

import pearl
from pearl.runtime.lanes.engine import Engine
from pearl.training import loop
from pearl.training.checkpoints import checkpoint
from pearl.training.trainer import CHECKPOINT, Trainer
from tests.lanes import SECONDS, planned, replay_spec, told
from tests.training.test_trainer import arrays, assert_equal

STEPS = 640


class Amid(pearl.Callback):
    """Stops the run amid the gradient steps of an iteration, once it has learned a while."""

    def __init__(self, per, after=60):
        self._per, self._after, self.updates = per, after, 0

    def on_progress(self, event):
        if event.updates < self._after or event.updates % self._per == 0:
            return None
        self.updates = event.updates
        return pearl.STOP


class Judged(pearl.Callback):
    """Notes the returns of every evaluation amid a run; stops it after so many gradient steps."""

    def __init__(self, updates=None):
        self.returns, self._updates, self.stopped_at = {}, updates, None

    def on_progress(self, event):
        if event.updates != self._updates:
            return None
        self.stopped_at = event.iteration
        return pearl.STOP

    def on_evaluation(self, event):
        self.returns[event.eval_env_steps] = event.eval_returns


@pytest.fixture
def often(monkeypatch):
    """The stop word is set all the time, and progress told of."""
    monkeypatch.setattr(loop, "LOOK_S", 1e-3)
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)


def same_amid(system, plan, tmp_path, monkeypatch, cuts=2, **hosting):
    """A run that was stopped amid an iteration equals one that went through."""
    whole = Trainer(told(system), plan, seed=3)
    per = whole.graph.updates
    assert per >= 4
    with monkeypatch.context() as patch:
        patch.setattr(loop, "LOOK_S", 1e9)
        through = whole.train(steps=STEPS)
    for n in range(cuts):
        amid = Amid(per, 60 + 40 * n)
        trainer = Trainer(told(system, **hosting), plan, seed=3)
        run = trainer.train(steps=STEPS, out=tmp_path, resume=n > 0, callbacks=[amid])
        assert run.status == "stopped"
        assert amid.updates % per
        stored = checkpoint.load(tmp_path / CHECKPOINT)
        assert stored.about["progress"]["under_way"]
    last = Trainer(told(system, **hosting), plan, seed=3)
    run = last.train(steps=STEPS, out=tmp_path, resume=True)
    assert (run.status, run.updates) == ("done", through.updates)
    assert_equal(arrays(whole), arrays(last))


@pytest.mark.parametrize(
    ("lanes", "kind", "late"),
    [
        ("one", "uniform", False),
        ("threads", "prioritised", False),
        ("processes", "uniform", True),  # calls that count as complete later than they return
    ],
)
def test_several_lanes_stop_amid_an_iteration_and_go_on(
    lanes, kind, late, often, tmp_path, monkeypatch
):
    limits = {"policy_lag": 2, "prefetch": 1}
    if kind == "prioritised":
        limits["priority_staleness"] = 2
    replay = {"capacity": 1000, "kind": kind}
    sizes = {"hidden": [64, 64], "batch_size": 64, "replay_ratio": 2}
    occupied = {task: 0.9 * seconds for task, seconds in SECONDS.items()} if late else None
    system, plan = planned(replay_spec("dqn", limits, **sizes, replay=replay), occupied=occupied)
    assert sum(lane.width > 0 for lane in plan.lanes) > 1
    same_amid(system, plan, tmp_path, monkeypatch, 1 + (lanes == "threads"), lanes=lanes)


@pytest.mark.parametrize("lanes", ["one", "threads", "processes"])
def test_cut_short_at_its_last_call_a_segment_is_not_over(lanes, often, tmp_path, monkeypatch):
    """The others have yet to come: the policy that is judged and kept is that of its end, also
    where the run stops just there and another goes on."""
    limits = {"policy_lag": 2, "prefetch": 1}
    spec = replay_spec("dqn", limits, batch_size=64, replay_ratio=2)
    spec["train"] |= {"evaluate_every": 160, "evaluate_episodes": 2}
    system, plan = planned(spec)
    through = Trainer(told(system), plan, seed=3)
    expected, found = Judged(), Judged()
    through.train(steps=STEPS, callbacks=[expected])
    assert len(expected.returns) > 2
    before = (320 - 64) // 8 * through.graph.updates  # gradient steps of the second segment's end
    bind, cuts = Engine.bind, []

    def bound(self, number, look):
        runner = bind(self, number, look)

        def after(call):
            def stopped():
                call()
                runner.word.words[0] = 1
                cuts.append(number)

            return stopped

        for step in runner.steps:
            if step.pauses:
                step.calls = [after(call) for call in step.calls]
        return runner

    monkeypatch.setattr(Engine, "bind", bound)
    trainer = Trainer(told(system, lanes=lanes), plan, seed=3)
    trainer.train(steps=STEPS, callbacks=[found])
    assert len(cuts) > 50
    assert found.returns == expected.returns
    assert_equal(arrays(through), arrays(trainer))
    first, then = Judged(before), Judged()
    trainer = Trainer(told(system, lanes=lanes), plan, seed=3)
    assert trainer.train(steps=STEPS, out=tmp_path, callbacks=[first]).status == "stopped"
    assert first.stopped_at == 320 // 8 - 1
    assert checkpoint.load(tmp_path / CHECKPOINT).about["progress"]["under_way"]
    trainer = Trainer(told(system, lanes=lanes), plan, seed=3)
    trainer.train(steps=STEPS, out=tmp_path, resume=True, callbacks=[then])
    assert first.returns | then.returns == expected.returns
    assert_equal(arrays(through), arrays(trainer))


@pytest.mark.parametrize(
    ("fused", "kind"), [(True, "uniform"), (True, "prioritised"), (False, "uniform")]
)
def test_so_does_one_lane(fused, kind, often, tmp_path, monkeypatch):
    """A fused call has the gradient steps of several firings where priorities change between."""
    replay = {"capacity": 1000, "kind": kind}
    spec = replay_spec("dqn", {"max_lanes": 1}, replay_ratio=2, replay=replay)
    if fused:
        system = pearl.load(spec)
        plan = pearl.plan(system)
        assert any(len(t.fused_with) > 3 for t in plan.tasks)
    else:
        system, plan = planned(spec, cores=1)
    same_amid(system, plan, tmp_path, monkeypatch, lanes="one")


def test_so_does_ppo(often, tmp_path, monkeypatch):
    algorithm = {"name": "ppo", "env": "CartPole-v1", "num_envs": 8, "rollout_steps": 16}
    algorithm |= {"hidden": [256, 256]}
    train = {"steps": STEPS, "evaluate_every": 0, "final_episodes": 0}
    spec = {"algorithm": algorithm, "platform": "host", "train": train}
    system = pearl.load(spec)
    same_amid(system, pearl.plan(system), tmp_path, monkeypatch, cuts=1)


def test_a_checkpoint_amid_an_iteration_goes_on_with_its_own_plan_alone(often, tmp_path):
    spec = replay_spec("dqn", {"policy_lag": 2}, replay_ratio=2)
    system, plan = planned(spec)
    first = Trainer(told(system, lanes="one"), plan, seed=3)
    first.train(steps=STEPS, out=tmp_path, callbacks=[Amid(first.graph.updates)])
    other = replace(plan, note="another")
    given = pearl.compile(told(system, lanes="one"), plan=other, seed=3)
    with pytest.raises(pearl.SpecError, match="amid an iteration, which its own plan alone"):
        given.train(steps=STEPS, out=tmp_path, resume=True)


def test_more_gradient_steps_done_than_a_firing_of_the_plan_has_are_refused(tmp_path):
    """A fused call could have as many; here each step is a firing, as priorities change between."""
    replay = {"capacity": 1000, "kind": "prioritised"}
    system, plan = planned(
        replay_spec("dqn", {"max_lanes": 1}, replay_ratio=2, replay=replay), cores=1
    )
    Trainer(told(system, lanes="one"), plan, seed=3).train(steps=STEPS, out=tmp_path)
    stored = checkpoint.load(tmp_path / CHECKPOINT)
    arrays = {name: stored.read(name) for name in stored.places}
    arrays["loop.stop"] = np.array([0, 3])
    progress = {**stored.about["progress"], "under_way": {"part": 0}}
    checkpoint.save(tmp_path / CHECKPOINT, arrays, {**stored.about, "progress": progress})
    again = Trainer(told(system, lanes="one"), plan, seed=3)
    with pytest.raises(pearl.SpecError, match="says that 3 gradient steps of a firing are done"):
        again.train(steps=2 * STEPS, out=tmp_path, resume=True)


def test_ctrl_c_ends_an_iteration_of_many_gradient_steps_at_once(tmp_path, monkeypatch):
    """An iteration takes about two seconds; the run ends within one and goes on."""
    monkeypatch.setattr(loop, "LOOK_S", 0.05)
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    spec = replay_spec(
        "dqn",
        {"max_lanes": 1},
        **dict.fromkeys(("batch_size", "learning_starts"), 256),
        num_envs=64,
        replay_ratio=8,
        hidden=[128, 128],
    )
    system = pearl.load(spec)
    told_at = []

    def press(event):
        if event.updates and event.updates % 512:
            told_at.append((event.updates, time.monotonic()))
            if len(told_at) == 3:
                signal.raise_signal(signal.SIGINT)

    trainer = pearl.compile(system)
    run = trainer.train(steps=10**6, out=tmp_path, progress=press)
    assert run.status == "interrupted"
    assert len({updates for updates, _ in told_at}) >= 3
    assert np.all(trainer.session.arrays["loop.stop"][1] > 0)
