"""A run that ends amid the gradient steps of an iteration goes on as if it had not."""

import functools
import signal
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import pearl
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import (
    STOP,
    BoundCall,
    Job,
    LaneError,
    SingleLaneRunner,
)
from pearl.training import loop
from pearl.training.checkpoints import checkpoint
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices import Kernel, cpu
from tests.lanes import SECONDS, planned, replay_spec, told
from tests.training.test_trainer import arrays, assert_equal

STEPS = 320


class Amid(pearl.Callback):
    """Stops the run amid the gradient steps of an iteration, once it has learned a while."""

    def __init__(self, per, after=20):
        self._per, self._after, self.updates = per, after, 0

    def on_progress(self, event):
        if event.updates < self._after or event.updates % self._per == 0:
            return None
        self.updates = event.updates
        return pearl.STOP


@pytest.fixture
def cuts(monkeypatch):
    """The stop word is set at every call that heeds it, once it is in here: before the call, which
    then does one gradient step ("first"), or after it ("last"). Progress is told of all the time,
    and no clock sets the word."""
    bind, when, looping = cpu.bind, [], []

    def binding(kernel, variant, buffers):
        call = bind(kernel, variant, buffers)
        if STOP not in buffers or not kernel.kind.startswith(("update", "iteration")):
            return call

        @functools.wraps(call, updated=("__dict__",) if hasattr(call, "__dict__") else ())
        def cut():
            buffers[STOP][0] |= "first" in when and bool(looping)
            pending = call()
            buffers[STOP][0] |= "last" in when and bool(looping)
            return pending

        return cut

    @contextmanager
    def looked_at(of):
        looping.append(of)
        yield
        looping.clear()
        of.arrays[STOP][0] = 0

    monkeypatch.setattr(cpu, "bind", binding)
    monkeypatch.setattr(loop, "stopping_at_intervals", looked_at)
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    return when


def fused_plan(spec):
    system = pearl.load(spec)
    return system, pearl.plan(system)


def replay_plan(kind="uniform", *, fused=False, late=False, lanes=3, ratio=2):
    limits = {"max_lanes": lanes} | ({"policy_lag": 2, "prefetch": 1} if lanes > 1 else {})
    if kind == "prioritised" and lanes > 1:
        limits["priority_staleness"] = 2
    replay = {"capacity": 1000, "kind": kind}
    spec = replay_spec("dqn", limits, replay_ratio=ratio, replay=replay)
    if fused:
        return fused_plan(spec)
    occupied = {task: 0.9 * seconds for task, seconds in SECONDS.items()} if late else None
    return planned(spec, occupied=occupied, cores=4 if lanes > 1 else 1)


def ppo_plan():
    algorithm = {"name": "ppo", "env": "CartPole-v1", "num_envs": 8, "rollout_steps": 16}
    train = {"steps": STEPS, "evaluate_every": 0, "final_episodes": 0}
    algorithm |= {"hidden": [16]}
    return fused_plan({"algorithm": algorithm, "platform": "host", "train": train})


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("lanes", "plan", "several"),
    [
        ("one", replay_plan, True),
        ("threads", functools.partial(replay_plan, "prioritised"), True),
        # Calls that count as complete later than they return.
        ("processes", functools.partial(replay_plan, late=True), True),
        # A fused call has the gradient steps of several firings where priorities change between.
        ("one", functools.partial(replay_plan, fused=True, lanes=1), False),
        ("one", functools.partial(replay_plan, "prioritised", fused=True, lanes=1), False),
        ("one", functools.partial(replay_plan, lanes=1), False),
        ("one", ppo_plan, False),
    ],
)
def test_a_run_stops_amid_an_iteration_and_goes_on(lanes, plan, several, cuts, tmp_path):
    """It is cut short at every gradient step; no longer run: processes stopped twice."""
    system, plan = plan()
    assert (sum(lane.width > 0 for lane in plan.lanes) > 1) == several
    whole = Trainer(told(system), plan, seed=3)
    per = whole.graph.updates
    assert per >= 4
    through = whole.train(steps=STEPS)
    cuts.append("first")
    stops = 1 if lanes == "processes" else 2
    for n in range(stops):
        amid = Amid(per, 20 * (n + 1))
        trainer = Trainer(told(system, lanes=lanes), plan, seed=3)
        run = trainer.train(steps=STEPS, out=tmp_path, resume=n > 0, callbacks=[amid])
        assert run.status == "stopped"
        assert amid.updates % per
        assert checkpoint.load(tmp_path / CHECKPOINT).about["progress"]["under_way"]
    last = Trainer(told(system, lanes=lanes), plan, seed=3)
    run = last.train(steps=STEPS, out=tmp_path, resume=True)
    assert (run.status, run.updates) == ("done", through.updates)
    assert_equal(arrays(whole), arrays(last))


def test_a_checkpoint_amid_an_iteration_goes_on_with_its_own_plan_alone(cuts, tmp_path):
    cuts.append("first")
    system, plan = planned(replay_spec("dqn", {"policy_lag": 2}, replay_ratio=2))
    first = Trainer(told(system, lanes="one"), plan, seed=3)
    first.train(steps=STEPS, out=tmp_path, callbacks=[Amid(first.graph.updates)])
    other = replace(plan, note="another")
    given = pearl.compile(told(system, lanes="one"), plan=other, seed=3)
    with pytest.raises(pearl.SpecError, match="during an iteration, which only its own plan"):
        given.train(steps=STEPS, out=tmp_path, resume=True)


def test_ctrl_c_ends_an_iteration_of_many_gradient_steps_at_once(tmp_path, monkeypatch):
    """A thread sets the stop word again and again; however fast an iteration of 512 gradient steps
    is, three of a million end amid them."""
    monkeypatch.setattr(loop, "POLL_INTERVAL_S", 1e-3)
    monkeypatch.setattr(loop, "PROGRESS_S", 0.0)
    given = {"num_envs": 64, "replay_ratio": 8, "learning_starts": 256}
    system = pearl.load(replay_spec("dqn", {"max_lanes": 1}, **given))
    seen = []

    def press(event):
        if event.updates and event.updates % 512:
            seen.append(event.updates)
            if len(seen) == 3:
                signal.raise_signal(signal.SIGINT)

    trainer = pearl.compile(system)
    run = trainer.train(steps=10**8, out=tmp_path, progress=press)
    assert run.status == "interrupted"
    assert len(set(seen)) >= 3
    assert np.all(trainer.session.arrays["loop.stop"][1] > 0)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(
    ("stops", "calls"),
    [
        ([(1, 0), (0, 0)], ["a", "b"]),  # between two calls
        ([(1, 3), (1, 5), (0, 0), (0, 0)], ["a", "a", "ab"]),  # amid the first, twice
        ([(0, 0), (1, 3), (0, 0)], ["ab", "b"]),
        ([(0, 0), (1, 0)], ["ab"]),  # after the last, the iteration is over
    ],
)
def test_an_iteration_ends_at_the_stop_and_goes_on_with_the_same_call(
    stops, calls, timed, monkeypatch
):
    """stops: the stop word and the gradient steps done after each call. calls: of each run."""
    monkeypatch.setattr(single_lane, "is_interruptible", lambda kernel: True)
    arrays, called, stops = {STOP: np.zeros(2, np.int64)}, [], iter(stops)

    def call(name):
        called.append(name)
        arrays[STOP][:] = next(stops)

    jobs = [Job((name,), Kernel(name), "cpu", "") for name in "ab"]
    steps = [BoundCall(job, functools.partial(call, job.name), False) for job in jobs]
    runner = SingleLaneRunner(steps, arrays, 0, Residency({}, arrays))
    for number, expected in enumerate(calls, 1):
        called.clear()
        assert runner.run(1, 1, timed=timed) == (number == len(calls))
        assert "".join(called) == expected
    assert runner.under_way() == {}
    with pytest.raises(LaneError, match="in part 2 of an iteration that has 2 parts"):
        SingleLaneRunner(steps, arrays, 0, Residency({}, arrays), under_way={"part": 2})
