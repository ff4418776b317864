"""The loop of a training run: iterations of the lanes, evaluation, metrics and checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import numpy as np

from pearl.planning.runs import Status
from pearl.runtime import cpu_wait
from pearl.runtime.protocol import single_lane
from pearl.training.checkpoints.state import RunState
from pearl.training.loop_context import LoopContext
from pearl.training.metrics import Metrics, episode_count, mean_return
from pearl.training.replanning import LOOKS, Window
from pearl.training.steering import Moment, Progress, Which
from pearl_devices import Buffers
from pearl_devices.base import EnvironmentFailed
from pearl_estimators.host import free_cores

if TYPE_CHECKING:
    from pearl.training.policy import Policy

Tell = Callable[[Moment], None]

STRETCH_S = 0.2
"""Seconds between two looks at clock, signals and losses, or one iteration where that is longer."""

ROUNDS = 64
"""Iterations between two looks at most, so that every call is timed often enough."""

POLL_INTERVAL_S = 0.5
"""Seconds after which a call of many gradient steps returns amid them."""

PROGRESS_S = 0.25
"""Seconds between two calls of a progress listener."""


def iterate(loop: LoopContext, state: RunState) -> Status | Literal["off"]:
    """Run iterations from `state` to the last one.

    Returns the status of the run, or `off` right after a checkpoint where the period is off from
    the predicted one (`loop.watch`).
    """
    losses = {name: a for name, a in loop.arrays.items() if name.startswith("loss.")}
    marks, shown, rounds = loop.milestones, 0.0, 1
    rate, phase = 0.0, "warm-up"

    def tell(moment: Moment) -> None:
        loop.steering.tell(moment, lambda: event(loop, state, rate, phase, moment))

    window: Window | None = None
    unpaid_s = 0.0  # of an iteration that is under way
    loop.settled(state.iteration)
    with Metrics(loop, state) as metrics, stopping_at_intervals(loop):
        _go_on(loop, state, tell)
        while state.iteration < marks.total:
            at, stop = state.iteration, loop.ending(state)
            mark = marks.next_look(at)
            cpu, waits = loop.lanes.cpu_s(), cpu_wait.read_waits(loop.lanes.threads())
            stolen_s = free_cores.stolen_s()
            begin_s = time.perf_counter()
            loop.clock.start()
            if not stop:
                end = loop.lanes.run(
                    min(mark, at + rounds), marks.next_stop(at), timed=at >= marks.warm
                )
                stop = loop.ending(state)
            if stop:
                end = loop.lanes.halt()
            wall_s, cpu_s = loop.clock.stop(end), loop.lanes.cpu_s() - cpu
            if end > at:
                rounds = 1 if end == marks.warm else stretch(rounds, end - at, begin_s)
            later = cpu_wait.read_waits(loop.lanes.threads())
            waited_s = cpu_wait.lane_wait_s(waits, later, loop.plan.bottleneck.name)
            stolen_s = free_cores.stolen_s() - stolen_s
            state.iteration, state.under_way = end, loop.lanes.under_way()
            loop.settled(end)
            loop.lanes.fetch("loss.", "episode.", "learner.step")
            _count(loop, state, end - at, wall_s, cpu_s, waited_s, stolen_s)
            if at >= marks.warm:  # the first stretch may still load and compile: it is not counted
                window = window.longer() if window else Window(end, state.wall_s)
            bad = [name for name, loss in losses.items() if not np.isfinite(loss[0])]
            if bad:
                loop.lanes.fetch("learner.")
            if bad and (end == mark or not finite(loop.arrays)):
                state.log.failure = (
                    f"{', '.join(bad)} was not finite by env step {end * loop.graph.env_steps}; "
                    "the last checkpoint is untouched"
                )
                return "failed"
            unpaid_s += wall_s
            if end > at:
                rate, unpaid_s = (end - at) * loop.graph.env_steps / max(unpaid_s, 1e-12), 0.0
            phase = "warm-up" if at < marks.warm else "training"
            every = marks.evaluate_every
            if every and end > at and end % every == 0 and end >= marks.warm:
                phase, state.evaluation_due = "evaluation", True
                _evaluate(loop, state, tell)
                stop = loop.ending(state)
            if end == marks.total or (stop and not loop.interruption.asked):
                _collect(loop, state, tell)
                stop = loop.ending(state)
            now = time.perf_counter()
            if not stop and (now - shown >= PROGRESS_S or end == marks.total):
                shown = now
                tell("on_progress")
            if end == marks.total:
                stop = loop.ending(state)
            if marks.metrics_every and end // marks.metrics_every > at // marks.metrics_every:
                metrics.row(state)
            due = end > at and marks.checkpoint_every and end % marks.checkpoint_every == 0
            off = False
            if loop.save and (stop or (due and end < marks.total and loop.due())):
                try:
                    loop.save(state)
                    tell("on_checkpoint")
                    if loop.drift_monitor and due and window and window.looks >= LOOKS:
                        off = (
                            loop.drift_monitor.due(window, end, state.wall_s) and end < marks.total
                        )
                        window = Window(end, state.wall_s)
                except OSError as error:  # a full disk: the one before is whole, and others follow
                    state.log.note(unwritten(state, loop, error), restarts=0)
            if stop and (status := _ended(loop, state)) != "done":
                return status
            if off:
                return "off"
    return "done" if state.log.failure is None else "failed"


@contextmanager
def stopping_at_intervals(loop: LoopContext) -> Iterator[None]:
    """Meanwhile no call of gradient steps runs for much longer than LOOK_S, or one gradient step
    where that is longer: a thread sets the stop word.
    """
    word = loop.arrays.get(single_lane.STOP)
    if word is None or not loop.lanes.interruptible:
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(POLL_INTERVAL_S):
            word[0] = 1

    looker = threading.Thread(target=look, daemon=True, name="pearl looks")
    looker.start()
    try:
        yield
    finally:
        over.set()
        looker.join()
        word[0] = 0


def _ended(loop: LoopContext, state: RunState) -> Status:
    """The status of a run that is to end now. One that a callback ends at its end is done."""
    if state.log.failure is not None:
        return "failed"
    if loop.interruption.asked:
        return "interrupted"
    return "stopped" if state.iteration < loop.milestones.total else "done"


def stretch(rounds: int, done: int, begin_s: float) -> int:
    """Iterations of the next stretch. Their number changes no results, which depend on iterations
    alone.

    rounds: the most that the last stretch could have.
    done: iterations of the last stretch, since `begin_s`.
    """
    each_s = max(time.perf_counter() - begin_s, 1e-9) / max(done, 1)
    return max(1, min(ROUNDS, 2 * rounds, int(STRETCH_S / each_s)))


def finite(arrays: Buffers) -> bool:
    """Whether all learned arrays are finite.

    A loss that is not finite while these are may be finite again at the next iteration. Whether it
    ends the run must not depend on where a stretch happened to end.
    """
    return all(np.isfinite(a).all() for name, a in arrays.items() if name.startswith("learner."))


def _go_on(loop: LoopContext, state: RunState, tell: Tell) -> None:
    """At the beginning of a session: the evaluation that was under way in the one before."""
    if state.judging:
        if loop.evaluator.lane is None:
            _collect(loop, state, tell)
        else:
            loop.evaluator.again()
    _evaluate(loop, state, tell)


def _evaluate(loop: LoopContext, state: RunState, tell: Tell) -> None:
    """Evaluate the policy if that is due. It stays due where a signal ends the evaluation."""
    if not state.evaluation_due:
        return
    if loop.evaluator.lane is None:
        state.evaluation_due = not _taken(loop, state, tell, state.iteration)
        return
    _collect(loop, state, tell)
    if not state.judging:
        loop.evaluator.begin()
        state.evaluation_due = False


def _collect(loop: LoopContext, state: RunState, tell: Tell) -> None:
    """Wait for the evaluation in a lane of its own, if there is one. It stays under way where a
    signal ends the wait."""
    if state.judging and _taken(loop, state, tell, state.judging):
        state.judging = 0


def _taken(loop: LoopContext, state: RunState, tell: Tell, iteration: int) -> bool:
    """Whether an evaluation, of the policy of this iteration, came to its end."""
    try:
        found = loop.interruption.unless_asked(loop.evaluator.result)
    except EnvironmentFailed as error:
        state.log.failure = str(error)
        return False
    if found is None:
        return False
    loop.evaluator.keep(found, iteration)
    if found.returns:
        loop.latest = found, iteration
        tell("on_evaluation")
    return True


def unwritten(state: RunState, loop: LoopContext, error: OSError) -> str:
    """A sentence about a checkpoint that could not be written."""
    where = f" ({error.filename})" if error.filename else ""
    return (
        f"the checkpoint at env step {state.iteration * loop.graph.env_steps} could not be "
        f"written: {error.strerror}{where}; the one before, if there is one, is whole"
    )


def _count(
    loop: LoopContext,
    state: RunState,
    rounds: int,
    wall_s: float,
    cpu_s: float,
    waited_s: float | None,
    stolen_s: float,
) -> None:
    """Add a stretch to the state. steady.waited_s stays as long as every stretch had a value."""
    state.wall_s += wall_s
    state.cpu_s += cpu_s
    if state.iteration - rounds >= loop.milestones.steady:
        before_s = state.steady.pop("waited_s", None if state.steady["wall_s"] else 0.0)
        if before_s is not None and waited_s is not None and not loop.clock.simulated:
            state.steady["waited_s"] = before_s + min(waited_s, wall_s)
        if not loop.clock.simulated:
            state.steady["stolen_s"] = state.steady.get("stolen_s", 0.0) + stolen_s
        state.steady["wall_s"] += wall_s
        state.steady["cpu_s"] += cpu_s
        state.steady["env_steps"] += rounds * loop.graph.env_steps
        state.steady["updates"] += rounds * loop.graph.updates


def event(
    loop: LoopContext, state: RunState, env_steps_per_s: float, phase: str, moment: Moment
) -> Progress:
    """The run at a moment."""
    found, at = loop.latest or (None, None)
    per = loop.graph.env_steps

    def policies(which: Which) -> Policy:
        if which == "last" and moment == "on_progress" and not loop.lanes.is_single_lane:
            raise ValueError(
                "event.policy_last in on_progress: the plan has several lanes, which train on "
                "meanwhile; take it in on_evaluation, on_checkpoint or on_end, or take event.policy"
            )
        return loop.policies(which)

    return Progress(
        env_steps=state.iteration * per,
        total_steps=loop.milestones.total * per,
        mean_return=mean_return(loop.arrays),
        env_steps_per_s=env_steps_per_s,
        predicted_env_steps_per_s=loop.plan.rates["env_steps_per_s"],
        eval_mean=state.last_mean,
        phase=phase,
        iteration=state.iteration,
        updates=int(loop.arrays["learner.step"][0]),
        episodes=episode_count(loop.arrays),
        wall_s=state.wall_s,
        cpu_s=state.cpu_s,
        losses={
            name.removeprefix("loss."): float(array[0])
            for name, array in loop.arrays.items()
            if name.startswith("loss.")
        },
        eval_returns=found.returns if found else (),
        eval_env_steps=None if at is None else at * per,
        best_mean=state.best_mean,
        folder=loop.metrics.parent if loop.metrics else None,
        policies=policies,
    )
