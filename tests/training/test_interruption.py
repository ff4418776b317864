"""Signals and listeners that raise end a run whole; a stretch of iterations is bounded by time."""

import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import pearl
from pearl.planning.runs import load_run
from pearl.runtime.protocol import single_lane
from pearl.training import loop
from pearl.training.checkpoints.checkpoint import load as load_checkpoint
from pearl.training.interruption import interruptible
from pearl.training.trainer import CHECKPOINT
from pearl_devices.primitives.envs.episodes import NativeEpisodes
from tests.training.test_trainer import SMALL, arrays, assert_equal

EVALUATED = {
    **SMALL,
    "train": {**SMALL["train"], "evaluate_every": 240, "evaluate_episodes": 3, "seed": 2},
}


@pytest.fixture(scope="module")
def plan():
    return pearl.plan(pearl.load(SMALL))


@pytest.fixture(scope="module")
def whole(plan):
    """The arrays of a run that nothing ended before its end."""
    trainer = pearl.compile(SMALL, plan=plan)
    trainer.train()
    return arrays(trainer)


@contextmanager
def handled(number):
    """What the process does about a signal meanwhile: it is noted."""
    seen = []
    before = signal.signal(number, lambda given, _: seen.append(given))
    try:
        yield seen
    finally:
        signal.signal(number, before)


def test_what_may_be_given_up_is_given_up_and_the_second_ctrl_c_is_raised():
    with interruptible() as interruption:
        assert interruption.run_interruptibly(lambda: 3) == 3
        assert not interruption.requested
        signal.raise_signal(signal.SIGINT)  # nothing to give up: noted
        assert interruption.requested
        assert interruption.run_interruptibly(lambda: 3) is None
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with interruptible() as interruption:

        def given_up():
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it went on")

        assert interruption.run_interruptibly(given_up) is None

        def pressed_twice():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)

    with interruptible() as interruption, pytest.raises(KeyboardInterrupt):
        interruption.run_interruptibly(pressed_twice)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_process_are_raised_again_and_ignored_ones_stay_ignored(number):
    with handled(number) as seen:
        with interruptible(), interruptible() as inner:
            signal.raise_signal(number)
            assert (inner.requested, seen) == (True, [])
        assert seen == [number]

        def failing():
            with interruptible():
                signal.raise_signal(number)
                raise ValueError("raised")

        with pytest.raises(ValueError, match="raised"):
            failing()
        assert seen == [number, number]
    before = signal.signal(number, signal.SIG_IGN)  # as under nohup
    try:
        with interruptible() as interruption:
            signal.raise_signal(number)
            assert not interruption.requested
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_such_a_signal_ends_the_run_whole_before_it_is_raised_again(number, plan, whole, tmp_path):
    cut, resumed = (pearl.compile(SMALL, plan=plan) for _ in range(2))
    left = []

    def ended(given, _):
        left.append((given, load_run(tmp_path).status, (tmp_path / ".lock").exists()))
        left.append(load_checkpoint(tmp_path / CHECKPOINT).about["progress"]["iteration"] > 0)

    before = signal.signal(number, ended)
    try:
        run = cut.train(out=tmp_path, progress=lambda _: signal.raise_signal(number))
    finally:
        signal.signal(number, before)
    assert (run.status, left) == ("interrupted", [(number, "interrupted", False), True])
    assert 0 < run.env_steps < 800
    resumed.train(out=tmp_path, resume=True)
    assert_equal(whole, arrays(resumed))


def test_ctrl_c_before_the_first_iteration_ends_the_run_at_once(plan, whole, tmp_path, monkeypatch):
    cut, resumed = (pearl.compile(SMALL, plan=plan) for _ in range(2))
    bind = single_lane.bind

    def pressed(*given):
        signal.raise_signal(signal.SIGINT)
        return bind(*given)

    monkeypatch.setattr(single_lane, "bind", pressed)
    run = cut.train(out=tmp_path)
    assert (run.status, run.env_steps) == ("interrupted", 0)
    monkeypatch.undo()
    resumed.train(out=tmp_path, resume=True)
    assert_equal(whole, arrays(resumed))


@pytest.mark.parametrize("which", ["periodic", "final"])
def test_ctrl_c_amid_an_evaluation_ends_it_at_once_and_it_is_made_when_the_run_goes_on(
    which, tmp_path, monkeypatch
):
    system = pearl.load(EVALUATED)
    plan = pearl.plan(system)
    whole, cut, resumed = (pearl.compile(system, plan=plan) for _ in range(3))
    there = whole.train()
    play, begin, begun = NativeEpisodes.play, NativeEpisodes.begin, []

    def beginning(self, seed):
        begun.append(seed)
        begin(self, seed)

    def pressing(self, steps):
        if len(begun) == (2 if which == "periodic" else 4):
            signal.raise_signal(signal.SIGINT)
        play(self, steps)

    monkeypatch.setattr(NativeEpisodes, "begin", beginning)
    monkeypatch.setattr(NativeEpisodes, "play", pressing)
    run = cut.train(out=tmp_path)
    assert run.status == "interrupted"
    assert run.env_steps == (480 if which == "periodic" else 800)
    assert run.returns["eval_returns"] == []
    monkeypatch.undo()
    again = resumed.train(out=tmp_path, resume=True)
    assert again.status == "done"
    assert again.returns == there.returns
    assert_equal(arrays(whole), arrays(resumed))  # the best policy among them
    with (tmp_path / "metrics.csv").open() as file:
        assert len(file.readlines()) > 3


@pytest.mark.parametrize(("seconds", "fewest", "most"), [(0.0, 11, 64), (0.025, 2, 8)])
def test_stretches_of_slow_iterations_are_short_and_change_no_bit(
    seconds, fewest, most, plan, whole, monkeypatch
):
    """An iteration takes so many seconds of a clock that nothing else moves."""
    now, found, run = [0.0], [], single_lane.SingleLaneRunner.run

    def taking(lane, end, stop, *, timed=False):
        found.append(end - lane.iteration)
        now[0] += found[-1] * seconds
        return run(lane, end, stop, timed=timed)

    monkeypatch.setattr(single_lane.SingleLaneRunner, "run", taking)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr("pearl.training.training_run.METRICS_ROWS", 1)
    trainer = pearl.compile(SMALL, plan=plan)
    trainer.train()
    assert fewest <= max(found) <= most  # 0.2 s and 64 iterations at most
    assert 1 in found[5:]  # where learning starts, one iteration alone again
    assert_equal(whole, arrays(trainer))
