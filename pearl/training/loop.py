"""The loop of a training run: iterations of the lanes, evaluation, metrics and checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np

from pearl.planning.plans import Plan
from pearl.planning.runs import Status
from pearl.runtime import cpu_wait
from pearl.runtime.protocol import single_lane
from pearl.training.metrics import Metrics
from pearl.training.replanning import LOOKS, Window
from pearl.training.training_run import TrainingRun
from pearl_devices import Buffers
from pearl_devices.base import EnvironmentFailed
from pearl_devices.system import host_system

STRETCH_S = 0.2
"""Target seconds between two polls of clock, signals and losses; one iteration may take longer."""

ROUNDS = 64
"""Maximum iterations between two polls, so that every call is timed often enough."""

POLL_INTERVAL_S = 0.5
"""Seconds after which a call of many gradient steps returns between two of them."""

PROGRESS_S = 0.25
"""Minimum seconds between two calls of `on_progress`."""


def iterate(run: TrainingRun) -> Status | Literal["off"]:
    """Run iterations from the state of `run` to the last one.

    Return the status of the run, or `off` right after a checkpoint if the period is off from the
    predicted one (`run.drift_monitor`).
    """
    marks, state = run.milestones, run.state
    losses = {n: a for n, a in run.arrays.items() if n.startswith("loss.")}
    shown_s, rounds = 0.0, 1
    window: Window | None = None
    unpaid_s = 0.0  # of an unfinished iteration
    run.session.at = state.iteration
    with Metrics(run) as metrics, stopping_at_intervals(run):
        _restart_evaluation(run)
        while state.iteration < marks.total:
            at, mark = state.iteration, marks.next_poll(state.iteration)
            stop, wall_s, rounds = _run_stretch(run, mark, rounds)
            end = state.iteration
            if at >= marks.warm:  # the first stretch may still load and compile: it is not counted
                window = window.extend() if window else Window(end, state.wall_s)
            bad = [name for name, loss in losses.items() if not np.isfinite(loss[0])]
            if bad:
                run.lanes.fetch("learner.")
            if bad and (end == mark or not finite(run.arrays)):
                state.log.failure = (
                    f"{', '.join(bad)} was not finite by env step {end * run.graph.env_steps}; "
                    "the last checkpoint is untouched"
                )
                return "failed"
            unpaid_s += wall_s
            if end > at:
                run.rate = (end - at) * run.graph.env_steps / max(unpaid_s, 1e-12)
                unpaid_s = 0.0
            run.phase = "warm-up" if at < marks.warm else "training"
            every = marks.evaluate_every
            at_mark = end > at and (end % max(every, 1) == 0 or end == marks.total)
            if every and at_mark and end >= marks.warm:
                run.phase, state.evaluation_due = "evaluation", True
                _evaluate(run)
                stop = run.must_end()
            if end == marks.total or (stop and not run.interruption.requested):
                _collect_evaluation(run)
                stop = run.must_end()
            now_s = time.perf_counter()
            if not stop and (now_s - shown_s >= PROGRESS_S or end == marks.total):
                shown_s = now_s
                run.notify("on_progress")
            if end == marks.total:
                stop = run.must_end()
            if end // marks.metrics_every > at // marks.metrics_every or end == marks.total:
                metrics.append_row()
            due = end > at and marks.checkpoint_every and end % marks.checkpoint_every == 0
            off = False
            if run.folder and (stop or (due and end < marks.total and run.checkpoint_due())):
                try:
                    run.save(run.pacer)
                    run.notify("on_checkpoint")
                    if run.drift_monitor and due and window and window.looks >= LOOKS:
                        off = run.drift_monitor.due(window, end, state.wall_s) and end < marks.total
                        window = Window(end, state.wall_s)
                except OSError as error:  # of a full disk: the checkpoint before is whole
                    state.log.note(checkpoint_error_text(run, error), restarts=0)
            if stop and (status := _status_if_ending(run)) != "done":
                return status
            if off:
                return "off"
    return "done" if state.log.failure is None else "failed"


def _run_stretch(run: TrainingRun, mark: int, rounds: int) -> tuple[bool, float, int]:
    """Run at most `rounds` iterations, and none after `mark`, and count them.

    If the run is to end, only halt the lanes.

    Return whether the run is to end, the seconds of the stretch by the clock of the lanes, and the
    maximum iterations of the next stretch.
    """
    state, lanes, marks, at = run.state, run.lanes, run.milestones, run.state.iteration
    stop = run.must_end()
    begin_cpu_s, waits = lanes.cpu_s(), cpu_wait.read_waits(lanes.threads())
    begin_stolen_s = host_system.stolen_s()
    begin_s = time.perf_counter()
    run.lane_clock.start()
    if not stop:
        reached = lanes.run(min(mark, at + rounds), marks.next_stop(at), timed=at >= marks.warm)
        if changed := run.interruption.keep_handlers():
            state.log.note(changed, restarts=0)
        stop = run.must_end()
    if stop:
        reached = lanes.halt()
    run.in_lanes_s += time.perf_counter() - begin_s
    wall_s, cpu_s = run.lane_clock.stop(reached), lanes.cpu_s() - begin_cpu_s
    if reached > at:
        rounds = 1 if reached == marks.warm else next_stretch(rounds, reached - at, begin_s)
    later = cpu_wait.read_waits(lanes.threads())
    waited_s = cpu_wait.lane_wait_s(waits, later, _pacing_lane(run.plan))
    stolen_s = host_system.stolen_s()
    stolen_s = None if stolen_s is None or begin_stolen_s is None else stolen_s - begin_stolen_s
    state.iteration, state.under_way = reached, lanes.under_way()
    run.session.at = reached
    lanes.fetch("loss.", "episode.", "learner.step")
    _count(run, reached - at, wall_s, cpu_s, waited_s, stolen_s)
    return stop, wall_s, rounds


def _pacing_lane(plan: Plan) -> str:
    """Return the lane that bounds the period, or, if a link or a cycle does, the busiest lane."""
    if plan.bottleneck.kind == "lane":
        return plan.bottleneck.name
    return max((k for k in plan.lanes if k.width), key=lambda k: k.load).lane


@contextmanager
def stopping_at_intervals(run: TrainingRun) -> Iterator[None]:
    """Within this context, make calls of gradient steps return about every POLL_INTERVAL_S.

    A thread sets the stop word. A call returns after the gradient step that it is in.
    """
    word = run.arrays.get(single_lane.STOP)
    if word is None or not run.lanes.interruptible:
        yield
        return
    over = threading.Event()

    def poll() -> None:
        while not over.wait(POLL_INTERVAL_S):
            word[0] = 1

    thread = threading.Thread(target=poll, daemon=True, name="pearl polls")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        word[0] = 0


def _status_if_ending(run: TrainingRun) -> Status:
    """The status of a run that is to end now.

    A run that a callback ends at its last iteration is done.
    """
    if run.state.log.failure is not None:
        return "failed"
    if run.interruption.requested:
        return "interrupted"
    return "stopped" if run.state.iteration < run.milestones.total else "done"


def next_stretch(rounds: int, done: int, begin_s: float) -> int:
    """Return the iterations of the next stretch. Results do not depend on this number.

    rounds: maximum iterations of the last stretch.
    done: iterations of the last stretch, since `begin_s`.
    """
    each_s = max(time.perf_counter() - begin_s, 1e-9) / max(done, 1)
    return max(1, min(ROUNDS, 2 * rounds, int(STRETCH_S / each_s)))


def finite(arrays: Buffers) -> bool:
    """Return whether all learned arrays are finite.

    While they are, a loss that is not finite may be finite again at the next iteration. Whether
    such a loss ends the run must not depend on where a stretch happened to end.
    """
    return all(np.isfinite(a).all() for name, a in arrays.items() if name.startswith("learner."))


def _restart_evaluation(run: TrainingRun) -> None:
    """Continue the evaluation that was under way when the last session ended."""
    if run.state.judging:
        if run.evaluator.worker is None:
            _collect_evaluation(run)
        else:
            run.evaluator.restart_pending()
    _evaluate(run)


def _evaluate(run: TrainingRun) -> None:
    """Evaluate the policy if that is due. It stays due if a signal ends the evaluation."""
    state = run.state
    if not state.evaluation_due:
        return
    if run.evaluator.worker is None:
        state.evaluation_due = not _record_result(run, state.iteration)
        return
    _collect_evaluation(run)
    if not state.judging:
        run.evaluator.begin()
        state.evaluation_due = False


def _collect_evaluation(run: TrainingRun) -> None:
    """Wait for the evaluation in a worker, if there is one.

    The evaluation stays under way if a signal ends the wait.
    """
    if run.state.judging and _record_result(run, run.state.judging):
        run.state.judging = 0


def _record_result(run: TrainingRun, iteration: int) -> bool:
    """Record the evaluation of the policy of an iteration; return whether it was completed."""
    try:
        evaluation = run.interruption.run_interruptibly(run.evaluator.result)
    except EnvironmentFailed as error:
        run.state.log.failure = str(error)
        return False
    if evaluation is None:
        return False
    run.evaluator.record(evaluation, iteration)
    if evaluation.returns:
        run.latest = evaluation, iteration
        run.notify("on_evaluation")
    return True


def checkpoint_error_text(run: TrainingRun, error: OSError) -> str:
    """Return a sentence about a checkpoint that could not be written."""
    where = f" ({error.filename})" if error.filename else ""
    return (
        f"the checkpoint at env step {run.state.iteration * run.graph.env_steps} could not be "
        f"written: {error.strerror}{where}; an earlier checkpoint, if there is one, is complete"
    )


def _count(
    run: TrainingRun,
    rounds: int,
    wall_s: float,
    cpu_s: float,
    waited_s: float | None,
    stolen_s: float | None,
) -> None:
    """Add a stretch of `rounds` iterations to the state.

    `steady.waited_s` is dropped once a stretch has no value for it.
    """
    state, simulated = run.state, run.lane_clock.simulated
    state.wall_s += wall_s
    state.cpu_s += cpu_s
    if state.iteration - rounds >= run.milestones.steady:
        before_s = state.steady.pop("waited_s", None if state.steady["wall_s"] else 0.0)
        if before_s is not None and waited_s is not None and not simulated:
            state.steady["waited_s"] = before_s + min(waited_s, wall_s)
        if stolen_s is not None and not simulated:
            state.steady["stolen_s"] = state.steady.get("stolen_s", 0.0) + stolen_s
        state.steady["wall_s"] += wall_s
        state.steady["cpu_s"] += cpu_s
        state.steady["env_steps"] += rounds * run.graph.env_steps
        state.steady["updates"] += rounds * run.graph.updates
