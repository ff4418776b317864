"""`TrainingRun`: everything that the loop of a run works with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pearl import run_folder
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.planning.runs import CHECKPOINT, Run
from pearl.runtime.clock import Clock
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.channels import count_episodes, mean_return
from pearl.training.checkpoints import checkpoint
from pearl.training.checkpoints.state import RunState
from pearl.training.checkpoints.trial import Trial
from pearl.training.evaluations.evaluation import Evaluation
from pearl.training.evaluations.evaluator import Evaluator
from pearl.training.interruption import Interruption
from pearl.training.lane_binding import Lanes, bind_lanes
from pearl.training.milestones import Milestones
from pearl.training.policy import Policy
from pearl.training.replanning import DriftMonitor
from pearl.training.run_clock import RunClock
from pearl.training.session import ResumePoint, Session
from pearl.training.steering import CallbackList, Moment, Progress, Which
from pearl_devices import Buffers

METRICS_ROWS = 200
"""Approximate number of rows of metrics.csv in a whole run."""


class TrainingRun:
    """A run of a session, from the session's state on.

    session: arrays and progress; a change of the plan replaces it.
    folder: of the run's files; None: none are written.
    callbacks: of the user.
    interruption: the signals received so far.
    clock: the time of the run by activity.
    evaluator: evaluates policies.
    trial: tries whether environments come back from a checkpoint.
    milestones: the iterations at which the run does more than train.
    pacer: decides when checkpoints may be written; None: by the interval of the spec.
    drift_monitor: decides at checkpoints whether to search another plan; None: never.
    lanes: lanes of the present plan, once they are bound.
    lane_clock: times iterations: the host's clock, or the virtual clock of an emulated run.
    latest: the latest evaluation of this process, and the iteration of its policy.
    rate: env steps per second in the last segment.
    phase: warm-up, training or evaluation.
    loop_s, in_lanes_s, paused_s: seconds of the loop of this process, its part in lanes, and its
        part in evaluations and checkpoints.
    """

    lanes: Lanes
    lane_clock: Clock

    def __init__(
        self,
        session: Session,
        folder: Path | None,
        callbacks: CallbackList,
        interruption: Interruption,
        *,
        replan: bool = False,
        planned_s: float = 0.0,
    ) -> None:
        """planned_s: seconds of `compile` before this run."""
        self.session, self.folder = session, folder
        self.callbacks, self.interruption = callbacks, interruption
        self.clock = RunClock(session.state.spent, planned_s)
        self.evaluator = Evaluator(session, self.clock)
        self.trial = Trial()
        every = session.compiled.system.train.checkpoint_every
        self.pacer = checkpoint.CheckpointPacer(time.monotonic()) if every is None else None
        self.milestones = _milestones(session, checkpoint.EVERY if every is None else every)
        self.drift_monitor = DriftMonitor(self.plan.period_s) if replan else None
        self.latest: tuple[Evaluation, int] | None = None
        self.rate, self.phase = 0.0, "warm-up"
        self.loop_s = self.in_lanes_s = self.paused_s = 0.0

    @property
    def state(self) -> RunState:
        """The progress of the run."""
        return self.session.state

    @property
    def graph(self) -> TaskGraph:
        """The task graph, in which the replicas of a task are one task."""
        return self.session.compiled.graph

    @property
    def plan(self) -> Plan:
        """The present plan, of `graph`."""
        return self.session.compiled.plan

    @property
    def arrays(self) -> Buffers:
        """All arrays of the run, by name."""
        return self.session.arrays

    @property
    def jobs(self) -> Sequence[single_lane.Job]:
        """Every call of an iteration, once."""
        return self.session.compiled.calls

    @property
    def metrics_file(self) -> Path | None:
        """The file of the metrics; None without a run folder."""
        return None if self.folder is None else self.folder / "metrics.csv"

    def bind_lanes(self) -> AbstractContextManager[Lanes]:
        """Bind the lanes of the present plan; see `lane_binding.bind_lanes`."""
        iteration = self.session.state.iteration
        self.lane_clock = self.session.compiled.clock(self.milestones.total, iteration)
        return bind_lanes(self.session, self.milestones)

    def switch_session(self, session: Session) -> None:
        """Continue under the plan of another session."""
        self.session = self.evaluator.session = session
        self.drift_monitor = DriftMonitor(self.plan.period_s)

    @contextmanager
    def timing_loop(self) -> Iterator[None]:
        """Within this context, the loop of the run continues."""
        begin_s, paused_s = time.perf_counter(), self.clock.paused_s
        try:
            yield
        finally:
            self.loop_s += time.perf_counter() - begin_s
            self.paused_s += self.clock.paused_s - paused_s

    def resume_from_checkpoint(self) -> None:
        """Let the next lanes start from the last checkpoint in the folder."""
        assert self.folder
        file = run_folder.file_of(self.folder, CHECKPOINT)
        self.session.resume_point = ResumePoint.from_file(checkpoint.load(file))

    def must_end(self) -> bool:
        """Return whether the run is to end before its last iteration."""
        log = self.state.log
        log.failure = log.failure or self.callbacks.failure
        stopped = self.interruption.requested or self.callbacks.stopped is not None
        return stopped or log.failure is not None

    def checkpoint_due(self) -> bool:
        """Return whether a checkpoint may be written at a milestone of checkpoints."""
        if self.pacer is None:
            return True
        return self.pacer.due(self.session.checkpoint_bytes(), time.monotonic())

    def save(self, pacer: checkpoint.CheckpointPacer | None = None) -> None:
        """Write both policies and the checkpoint. pacer: records the time that this takes."""
        assert self.folder
        self.clock.stamp()
        with self.clock.timing("checkpoint"):
            self.session.save_run(self.folder, pacer)
        if pacer and not self.interruption.requested:
            self.trial.begin(self.jobs, self.session.saved_environments, self.state.log)

    def drain(self) -> None:
        """Complete the work that lags behind by slack at the end of the run."""
        total, drain = self.milestones.total, self.session.compiled.protocol.drain
        if drain:
            begin_s = time.perf_counter()
            self.session.at = self.lanes.run(total + drain, total + drain)
            self.state.drained = total
            self.in_lanes_s += time.perf_counter() - begin_s

    def notify(self, moment: Moment, outcome: Run | None = None) -> None:
        """Call the callbacks. outcome: of the run, at its end."""
        self.callbacks.notify(moment, lambda: self._event(moment, outcome))

    def _event(self, moment: Moment, outcome: Run | None) -> Progress:
        """Describe the run at a moment, for callbacks."""
        state, arrays, per = self.state, self.arrays, self.graph.env_steps
        evaluation, iteration = self.latest or (None, None)
        losses = {n: float(a[0]) for n, a in arrays.items() if n.startswith("loss.")}

        def copy_policy(which: Which) -> Policy:
            if self.lanes.is_single_lane:
                self.lanes.halt()
            elif which == "last" and moment == "on_progress":
                raise ValueError(
                    "event.policy_last in on_progress: the plan has several lanes, which continue "
                    "to train during the callback; read event.policy_last in on_evaluation, "
                    "on_checkpoint or on_end, or read event.policy"
                )
            return self.session.policy(which).copy()

        return Progress(
            env_steps=state.iteration * per,
            total_steps=self.milestones.total * per,
            mean_return=mean_return(arrays),
            env_steps_per_s=self.rate,
            predicted_env_steps_per_s=self.plan.rates["env_steps_per_s"],
            eval_mean=state.last_mean,
            phase=self.phase,
            iteration=state.iteration,
            updates=int(arrays["learner.step"][0]),
            episodes=count_episodes(arrays),
            wall_s=state.wall_s,
            cpu_s=state.cpu_s,
            losses={name.removeprefix("loss."): loss for name, loss in losses.items()},
            eval_returns=evaluation.returns if evaluation else (),
            eval_env_steps=None if iteration is None else iteration * per,
            best_mean=state.best_mean,
            folder=self.folder,
            run=outcome,
            policies=copy_policy,
        )


def _milestones(session: Session, checkpoint_every: int) -> Milestones:
    """The milestones of a run. checkpoint_every: env steps."""
    system, state = session.compiled.system, session.state
    per = session.compiled.graph.env_steps
    total = -(-state.total_steps // per)
    warm = state.refilled - (-getattr(system.algorithm, "learning_starts", 0) // per)
    return Milestones(
        total=total,
        warm=warm,
        steady=warm + -(-total // 10),
        evaluate_every=-(-system.train.evaluate_every // per),
        checkpoint_every=-(-checkpoint_every // per),
        metrics_every=max(total // METRICS_ROWS, 1),
    )
