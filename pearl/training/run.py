"""One training run: a session from its first iteration to its report."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl.planning.runs import CHECKPOINT, Run
from pearl.report.report import Report
from pearl.runtime.protocol import single_lane
from pearl.spec.user_code import UserCodeError, blamed
from pearl.training import replanning
from pearl.training.checkpoints import checkpoint
from pearl.training.checkpoints.state import RunState
from pearl.training.contradiction import contradicted
from pearl.training.evaluations.evaluator import Evaluator
from pearl.training.interruption import Interruption
from pearl.training.loop import event, iterate, unwritten
from pearl.training.loop_context import LoopContext
from pearl.training.milestones import Milestones
from pearl.training.outcome import cpu_seconds, outcome, timings
from pearl.training.policy import Policy
from pearl.training.run_clock import RunClock
from pearl.training.run_feedback import calibration_feedback
from pearl.training.session import ResumePoint, Session
from pearl.training.steering import CallbackList, Which
from pearl_devices import torch_threads
from pearl_devices.base import EnvironmentFailed
from pearl_estimators.energy import EnergyMeter
from pearl_estimators.host.calibration_updates import mark_doubtful, record_run

if TYPE_CHECKING:
    from pearl.runtime.lanes.engine import Engine

ROWS = 200
"""Rows of metrics.csv in a whole run, about."""


def end_solvers() -> None:
    """End the processes of solvers, where this process has asked any."""
    if asked := sys.modules.get("pearl.solvers.model.solver_process"):
        asked.end()


class TrainingRun:
    """A run of a session from `state` on.

    session: another one after a change of the plan.
    folder: of the run's files; None: none are written.
    planned_s: seconds of `compile` before this run.
    """

    def __init__(
        self,
        session: Session,
        state: RunState,
        folder: Path | None,
        interruption: Interruption,
        planned_s: float = 0.0,
    ) -> None:
        self.session, self.folder = session, folder
        self._state, self._interruption = state, interruption
        self._spent = RunClock(state.spent, planned_s)
        self._judge = Evaluator(session, state, self._spent)

    @torch_threads.restoring_threads()
    def train(self, resumed: ResumePoint | None, steering: CallbackList, *, replan: bool) -> Run:
        """Run to the end, and write the files of the run.

        resumed: the checkpoint in which the state was read; None: the run begins.
        steering: the callbacks.
        replan: look for another plan where the period is off from the predicted one.
        Raises what a callback raised, once the run has ended.
        """
        with closing(self._judge):
            return self._train(resumed, steering, replan=replan)

    def _train(self, resumed: ResumePoint | None, steering: CallbackList, *, replan: bool) -> Run:
        end_solvers()  # a run is measured, and its processes are its own
        begin_s, begin_cpu_s = time.perf_counter(), cpu_seconds()
        options, emulate = self.session.compiled.system.train, self.session.compiled.emulate
        every, pace = options.checkpoint_every, None
        if every is None:
            every, pace = checkpoint.EVERY, checkpoint.CheckpointPacer(time.monotonic())
        milestones = self._milestones(every)
        meter = EnergyMeter.of(() if emulate else self.session.compiled.system.platform.devices)
        predicted_s = self.session.compiled.plan.period_s
        watch = replanning.DriftMonitor(predicted_s) if replan else None
        times_ns: dict[str, list[int]] = {}
        lags: dict[str, Counter[int]] = {}
        traffic: list[dict[str, Any]] = []
        failing = False
        with meter:
            while True:
                state, session = self._state, self.session
                state.spent = self._spent.held
                with ExitStack() as stack:
                    with self._spent.on("bind"):
                        lanes = stack.enter_context(session.lanes(milestones, state, resumed))
                    loop = self._loop(lanes, milestones, watch, pace, steering)
                    try:
                        status = iterate(loop, state)
                        session.at = state.iteration
                        if status == "done":
                            self._drain(lanes, milestones.total)
                            session.environments = dict(session.environments()).copy
                    except (single_lane.LaneError, EnvironmentFailed) as error:
                        status, state.log.failure = "failed", " ".join(str(error).split())
                    except Exception as error:  # code of the user's own may raise anything
                        told = blamed(error, session.compiled.system, "a call")
                        if told is None:
                            raise
                        status, state.log.failure, failing = "failed", str(told), True
                for text in session.notes():
                    state.log.note(text, restarts=0)
                times_ns = replanning.gathered(times_ns, lanes.times_ns)
                traffic += lanes.traffic
                for name, seen in lanes.lags.items():
                    lags.setdefault(name, Counter()).update(seen)
                if status != "off":
                    break
                from pearl.training import plan_change

                assert self.folder
                changed = plan_change.replan(session, loop, state, lanes.times_ns, self.folder)
                if changed:
                    self.session, self._state = changed
                    self._judge.session, self._judge.state = changed
                    watch, times_ns = (
                        replanning.DriftMonitor(self.session.compiled.plan.period_s),
                        {},
                    )
                resumed = ResumePoint.of(self.folder / CHECKPOINT)
                end_solvers()
        if state.best_mean is None:
            session.keep()
        final, unsaved = None, None
        if status in ("done", "stopped"):
            if status == "done" and self.folder is not None:
                try:
                    self._save(self.folder, state, None)
                except OSError as error:
                    unsaved = unwritten(state, loop, error)
            try:
                final = self._interruption.unless_asked(self._judge.final)
                status = "interrupted" if final is None else status
            except (EnvironmentFailed, UserCodeError) as error:
                status, state.log.failure = "failed", str(error)
        self._judge.close()
        if unsaved and status == "done":
            status, state.log.failure = "failed", unsaved
        c = session.compiled
        rows = timings(loop, c.protocol.plan, {} if emulate or failing else times_ns)
        wall_s, cpu_s = time.perf_counter() - begin_s, cpu_seconds() - begin_cpu_s
        run = outcome(
            loop,
            state,
            status,
            rows,
            wall_s=wall_s,
            cpu_s=cpu_s,
            energy=meter.read({c.system.platform.host: cpu_s}),
            final=final,
            lags=lags,
            traffic=traffic,
            message=state.log.failure if status == "failed" else None,
            spent=self._spent,
            threshold=c.system.env.threshold,
            out=None if self.folder is None else str(self.folder),
        )
        if run.drift is not None and c.plan.problem is not None:  # planned here and now
            made = c.protocol.plan, c.protocol.graph
            mark_doubtful(contradicted(*made, run.drift))
            lessons, said = calibration_feedback(*made, c.system.platform, run.drift, run.steady)
            for lesson in lessons:
                record_run(lesson)
            run = replace(run, drift=replace(run.drift, learned=said))
        if self.folder is not None:
            run.save(self.folder / "run.json")
            Report(c.plan, run, c.system).save(self.folder / "report.html")
        rate, phase = run.env_steps_per_s or 0.0, "evaluation"
        steering.tell("on_end", lambda: replace(event(loop, state, rate, phase, "on_end"), run=run))
        if steering.raised is not None:
            raise steering.raised
        return run

    def _policy(self, lanes: single_lane.SingleLaneRunner | Engine, which: Which) -> Policy:
        """A copy of a policy, for a callback."""
        if lanes.is_single_lane:
            lanes.halt()
        return self.session.policy(which).copy()

    def _milestones(self, checkpoint_every: int) -> Milestones:
        """checkpoint_every: env steps."""
        c, state = self.session.compiled, self._state
        per = c.graph.env_steps
        iterations = -(-state.total_steps // per)
        warm = state.refilled - (-getattr(c.system.algorithm, "learning_starts", 0) // per)
        return Milestones(
            total=iterations,
            warm=warm,
            steady=warm + -(-iterations // 10),
            evaluate_every=-(-c.system.train.evaluate_every // per),
            checkpoint_every=-(-checkpoint_every // per),
            metrics_every=max(iterations // ROWS, 1),
        )

    def _loop(
        self,
        lanes: single_lane.SingleLaneRunner | Engine,
        milestones: Milestones,
        watch: replanning.DriftMonitor | None,
        pace: checkpoint.CheckpointPacer | None,
        steering: CallbackList,
    ) -> LoopContext:
        session, state, folder = self.session, self._state, self.folder
        c = session.compiled

        def settled(iteration: int) -> None:
            session.at = iteration

        return LoopContext(
            graph=c.graph,
            plan=c.plan,
            arrays=session.arrays,
            lanes=lanes,
            jobs=c.calls,
            milestones=milestones,
            clock=c.clock(milestones.total, state.iteration),
            evaluator=self._judge,
            settled=settled,
            save=None if folder is None else lambda now: self._save(folder, now, pace),
            due=lambda: pace is None or pace.due(session.nbytes(state), time.monotonic()),
            metrics=None if folder is None else folder / "metrics.csv",
            steering=steering,
            policies=lambda which: self._policy(lanes, which),
            interruption=self._interruption,
            drift_monitor=watch,
        )

    def _save(self, folder: Path, state: RunState, pace: checkpoint.CheckpointPacer | None) -> None:
        """Write both policies and the checkpoint. pace: is told how long it took."""
        self._spent.stamp()
        with self._spent.on("checkpoint"):
            self.session.save_run(folder, state, pace)

    def _drain(self, lanes: single_lane.SingleLaneRunner | Engine, total: int) -> None:
        """Complete the work that lags behind by slack. total: iterations of the run."""
        drain = self.session.compiled.protocol.drain
        if drain:
            self.session.at = lanes.run(total + drain, total + drain)
            self._state.drained = total
