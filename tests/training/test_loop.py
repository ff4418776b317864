"""The loop of a run on twins of its lanes and its evaluator: all that it does, in its order."""

from __future__ import annotations

from types import SimpleNamespace as Given
from typing import Any

import numpy as np
import pytest

from pearl.planning.runs import StoppedBy
from pearl.training import loop
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.interruption import Interruption
from pearl.training.milestones import Milestones
from pearl.training.steering import CallbackList
from pearl.training.training_run import TrainingRun
from tests.examples import two_device_plan


class Run(TrainingRun):
    """A run of 20 iterations of 8 env steps; each call of the lanes takes 0.1 s of a clock of the
    test, and each iteration 0.5 s of the clock of the lanes. `told` is what it did."""

    def __init__(self, patch: pytest.MonkeyPatch, **options: Any) -> None:
        self.told: list[Any] = []
        self.now_s = 100.0
        patch.setattr(loop, "time", Given(perf_counter=lambda: self.now_s))
        state = RunState(total_steps=160)
        compiled = Given(graph=Given(env_steps=8, updates=4), plan=two_device_plan())
        arrays = {"loss.q": np.zeros(1), "learner.q": np.zeros(2), "episode.count": np.zeros(1)}
        arrays["episode.returns"] = np.zeros(4)
        self.session: Any = Given(state=state, compiled=compiled, arrays=arrays, at=0)
        self.milestones = Milestones(20, 3, 6, 8, 6, 5)
        self.lane_clock: Any = Given(
            simulated=False, start=lambda: None,
            stop=lambda reached: 0.5 * (reached - state.iteration),
        )  # fmt: skip
        self.lanes: Any = Given(
            run=self.run, halt=self.halt, interruptible=False, cpu_s=lambda: 0.25 * state.iteration,
            threads=dict, under_way=dict, fetch=lambda *names: None,
        )  # fmt: skip
        self.callbacks, self.interruption = CallbackList([]), Interruption()
        self.evaluator: Any = Given(
            worker=options.get("worker"), result=self.judge, begin=self.begin,
            record=lambda evaluation, at: self.told.append(("judged", at)),
            restart_pending=lambda: self.told.append("restarted"),
        )  # fmt: skip
        self.folder = options.get("folder", "there")
        self.pacer, self.latest = None, None
        self.due = iter(options.get("due", [True] * 9))
        self.drift_monitor = options.get("drift_monitor")
        self.rate, self.phase, self.in_lanes_s = 0.0, "", 0.0
        self.on = options.get("on", {})

    metrics_file = None  # type: ignore[assignment]

    def run(self, end: int, stop: int, *, timed: bool) -> int:
        self.told.append(("run", end, stop, timed))
        self.now_s += 0.1
        self.on.get(("run", end), lambda run: None)(self)
        return end

    def halt(self) -> int:
        self.told.append("halt")
        return self.state.iteration + 1

    def judge(self) -> Evaluation:
        return Evaluation((1.0,), 0, 9)

    def begin(self) -> None:
        self.told.append(("begun", self.state.iteration))
        self.state.judging = self.state.iteration

    def checkpoint_due(self) -> bool:
        return next(self.due)

    def save(self, pacer: Any = None) -> None:
        self.told.append(("save", self.state.iteration))
        self.on.get("save", lambda run: None)(self)

    def notify(self, moment: Any, outcome: Any = None) -> None:
        self.told.append((moment, self.state.iteration, self.phase, round(self.rate, 6)))
        self.on.get((moment, self.state.iteration), lambda run: None)(self)

    def end(self, **fields: Any) -> None:
        vars(self.callbacks).update(fields)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Metrics:
        def __init__(self, run: Any) -> None:
            self.run = run

        def __enter__(self) -> Metrics:
            return self

        def __exit__(self, *error: object) -> None:
            self.run.told.append("closed")

        def append_row(self) -> None:
            self.run.told.append(("row", self.run.state.iteration))

    monkeypatch.setattr(loop, "Metrics", Metrics)


WHOLE = [
    ("run", 1, 6, False), ("on_progress", 1, "warm-up", 16.0),
    ("run", 3, 6, False),
    ("run", 4, 6, True),  # alone, because learning starts
    ("run", 5, 6, True), ("on_progress", 5, "training", 16.0), ("row", 5),
    ("run", 6, 6, True), ("save", 6), ("on_checkpoint", 6, "training", 16.0),
    ("run", 8, 8, True), ("judged", 8), ("on_evaluation", 8, "evaluation", 16.0),
    ("run", 10, 12, True), ("on_progress", 10, "training", 16.0), ("row", 10),
    ("run", 12, 12, True),  # no checkpoint is due
    ("run", 15, 16, True), ("row", 15),
    ("run", 16, 16, True), ("judged", 16), ("on_evaluation", 16, "evaluation", 16.0),
    ("on_progress", 16, "evaluation", 16.0),
    ("run", 18, 18, True), ("save", 18), ("on_checkpoint", 18, "training", 16.0),
    ("run", 20, 20, True), ("judged", 20), ("on_evaluation", 20, "evaluation", 16.0),
    ("on_progress", 20, "evaluation", 16.0), ("row", 20), "closed",
]  # fmt: skip
"""Progress is told every 0.25 s, the third stretch of lanes or later."""


def test_a_run_does_everything_at_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, due=[True, False, True])
    assert loop.iterate(run) == "done"
    assert run.told == WHOLE
    state = run.state
    assert (state.iteration, state.wall_s, run.session.at) == (20, 10.0, 20)
    # from iteration 6 on: 14 of them
    assert state.steady["env_steps"] == 14 * 8
    assert state.steady["updates"] == 14 * 4
    assert run.in_lanes_s == pytest.approx(0.1 * sum(t[0] == "run" for t in WHOLE))
    assert run.latest == (Evaluation((1.0,), 0, 9), 20)


def test_without_a_folder_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, folder=None)
    assert loop.iterate(run) == "done"
    assert run.told == [t for t in WHOLE if t[0] not in ("save", "on_checkpoint")]
    assert run.state.iteration == 20


@pytest.mark.parametrize(
    ("moment", "at", "end", "status", "last"),
    [
        # lanes that are ahead halt together
        ("on_progress", 10, {"stopped": StoppedBy("x", 80)}, "stopped",
         [("row", 10), "halt", ("save", 11), ("on_checkpoint", 11, "training", 16.0), "closed"]),
        ("on_evaluation", 8, {"stopped": StoppedBy("x", 64)}, "stopped",
         [("save", 8), ("on_checkpoint", 8, "evaluation", 16.0), "closed"]),
        ("on_checkpoint", 6, {"failure": "it broke"}, "failed",
         ["halt", ("save", 7), ("on_checkpoint", 7, "training", 16.0), "closed"]),
        ("on_progress", 20, {"failure": "late"}, "failed",
         [("row", 20), ("save", 20), ("on_checkpoint", 20, "evaluation", 16.0), "closed"]),
        ("on_progress", 20, {"stopped": StoppedBy("x", 160)}, "done",
         [("row", 20), ("save", 20), ("on_checkpoint", 20, "evaluation", 16.0), "closed"]),
    ],
)  # fmt: skip
def test_a_callback_ends_the_run_at_its_moment(moment, at, end, status, last, monkeypatch):
    run = Run(monkeypatch, on={(moment, at): lambda run: run.end(**end)})
    assert loop.iterate(run) == status
    begin = next(n for n, t in enumerate(run.told) if t[:2] == (moment, at))
    assert run.told[begin + 1 :] == last


@pytest.mark.parametrize(
    ("end", "learnt", "status"),
    [(6, 0.0, "failed"), (4, 0.0, "done"), (4, np.nan, "failed"), (20, 0.0, "failed")],
)
def test_a_loss_that_is_not_finite_ends_the_run_at_a_mark_or_with_its_networks(
    end: int, learnt: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(run: Run) -> None:
        run.arrays["loss.q"][0], run.arrays["learner.q"][1] = np.inf, learnt

    mend = {("run", 5): lambda run: run.arrays["loss.q"].fill(0)}
    run = Run(monkeypatch, on={**mend, ("run", end): spoil})
    assert loop.iterate(run) == status
    if status == "failed":
        assert run.state.log.failure == (
            f"loss.q was not finite by env step {end * 8}; the last checkpoint is untouched"
        )
        assert run.state.iteration == end
        assert ("save", end) not in run.told


def test_a_checkpoint_that_cannot_be_written_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run: Run) -> None:
        raise OSError(28, "No space left on device", "/there/c")

    run = Run(monkeypatch, on={"save": full})
    assert loop.iterate(run) == "done"
    assert run.state.log.events == [
        f"the checkpoint at env step {steps} could not be written: No space left on device "
        "(/there/c); an earlier checkpoint, if there is one, is complete"
        for steps in (48, 96, 144)
    ]
    assert run.state.log.restarts == 0
    assert "on_checkpoint" not in [t[0] for t in run.told]


def test_a_period_that_is_off_ends_the_loop_at_a_checkpoint(monkeypatch):
    looked = []

    def due(window: Any, iteration: int, wall_s: float) -> bool:
        looked.append((window.iteration, window.wall_s, window.looks, iteration, wall_s))
        return len(looked) == 2

    run = Run(monkeypatch, drift_monitor=Given(due=due))
    monkeypatch.setattr(loop, "LOOKS", 2)
    assert loop.iterate(run) == "off"
    # the first stretch of learning ends at 4; a window begins anew where one was looked at
    assert looked == [(4, 2.0, 2, 6, 3.0), (6, 3.0, 3, 12, 6.0)]
    run = Run(monkeypatch, drift_monitor=Given(due=lambda *given: pytest.fail("looked too soon")))
    monkeypatch.setattr(loop, "LOOKS", 99)
    assert loop.iterate(run) == "done"


def test_a_worker_tells_of_a_policy_one_evaluation_later_and_of_all_at_the_end(monkeypatch):
    run = Run(monkeypatch, worker="there", folder=None)
    assert loop.iterate(run) == "done"
    told = [t for t in run.told if t[0] in ("begun", "judged", "on_evaluation")]
    moments = [(t[0], t[1]) for t in told]
    assert moments == [
        ("begun", 8), ("judged", 8), ("on_evaluation", 16), ("begun", 16), ("judged", 16),
        ("on_evaluation", 20), ("begun", 20), ("judged", 20), ("on_evaluation", 20),
    ]  # fmt: skip
    assert (run.state.judging, run.state.evaluation_due) == (0, False)
    run = Run(monkeypatch, worker="there", folder=None)
    run.state.judging = 2
    loop._restart_evaluation(run)
    assert run.told == ["restarted"]
    run.evaluator.worker, run.state.evaluation_due = None, True
    loop._restart_evaluation(run)
    assert [t[:2] for t in run.told[1:]] == [
        ("judged", 2), ("on_evaluation", 0), ("judged", 0), ("on_evaluation", 0)
    ]  # fmt: skip
    assert not run.state.evaluation_due


def test_an_evaluation_without_episodes_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    run.evaluator.result = lambda: Evaluation((), 0, 9)
    assert loop._record_result(run, 3)
    assert (run.told, run.latest) == ([("judged", 3)], None)
    run.interruption._heard.append(2)
    assert not loop._record_result(run, 3)
