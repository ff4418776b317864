"""The evaluations of a run: during training, at pauses or in a worker, and at the end.

An evaluation in a worker begins at a pause, with a copy of the policy. The run takes the result at
the next pause, however long the evaluation took. Therefore plan and seed alone decide which policy
is the best and where a callback stops the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pearl.spec.user_code import reporting_user_errors
from pearl.training.evaluations.evaluation import EpisodePlayer, Evaluation
from pearl.training.evaluations.evaluation_worker import EvaluationWorker
from pearl.training.policy import Policy
from pearl.training.run_clock import RunClock
from pearl_devices.base import EnvironmentFailed
from pearl_devices.primitives.math.rng import key

if TYPE_CHECKING:
    from pearl.training.session import Session


@dataclass(frozen=True)
class FinalEvaluations:
    """The final evaluations of the best policy and the last; one object if both are equal.

    best, last: of the best policy and of the last.
    """

    best: Evaluation
    last: Evaluation


class Evaluator:
    """Evaluates the policies of a run. The user must close the evaluator.

    session: of the run; a change of the plan replaces it.
    worker: plays evaluations during training, if the plan has a place for that and the run is long
        enough; None: training pauses for evaluations.
    """

    def __init__(self, session: Session, clock: RunClock) -> None:
        self.session, self._clock = session, clock
        c, state = session.compiled, session.state
        self._player = EpisodePlayer(c.system, session.policy("last").kernel)
        self.worker: EvaluationWorker | None = None
        placed, every = c.plan.evaluation, c.system.train.evaluate_every
        if placed and placed.apart and every and not c.emulate:
            left = (state.total_steps - state.iteration * c.graph.env_steps) // every
            if left >= placed.pays_from:
                self.worker = EvaluationWorker(c.system, session.evaluated_arrays)

    def close(self) -> None:
        """End the environments and the worker."""
        self._player.close()
        if self.worker is not None:
            self.worker.close()

    def begin(self) -> None:
        """Begin an evaluation of the current policy in the worker."""
        self.session.copy_for_evaluation()
        self.session.state.judging = self.session.state.iteration
        self.restart_pending()

    def restart_pending(self) -> None:
        """Begin the evaluation that the state names, unless the worker already plays it."""
        if self.worker is not None and not self.worker.playing:
            self.worker.begin(self.session.evaluated_arrays, self._episodes, self._seed(self._name))

    @property
    def _episodes(self) -> int:
        return self.session.compiled.system.train.evaluate_episodes

    @property
    def _name(self) -> str:
        """The name of the evaluation during training, which decides its random stream."""
        return f"periodic {self.session.state.judging or self.session.state.iteration}"

    def _seed(self, name: str) -> int:
        return key(self.session.seed, f"evaluation {name}")

    def result(self) -> Evaluation:
        """Complete and return the running evaluation.

        If none is running, evaluate the current policy.

        Raises:
            EnvironmentFailed: an environment failed, and the spec has no `restart`.
            LaneError: the worker cannot play the evaluation.
        """
        if not self.session.state.judging:
            return self._evaluate(self.session.policy("last"), self._episodes, self._name)
        if self.worker is None:  # the evaluation began before the run was resumed
            return self._evaluate(self.session.evaluated_policy, self._episodes, self._name)
        self.restart_pending()
        deaths = self.worker.deaths
        try:
            with self._clock.timing("evaluation"):
                evaluation, cpu_s = self.worker.result()
        except EnvironmentFailed as error:
            return self._omit(error)
        finally:
            for _ in range(self.worker.deaths - deaths):
                self.session.state.log.note("the process of evaluation died and was started again")
        self._clock.add_worker_cpu_s(cpu_s)
        return evaluation

    def final(self) -> FinalEvaluations:
        """Evaluate the best policy and the last in the same episodes.

        Raises:
            EnvironmentFailed: an environment failed, and the spec has no `restart`.
        """
        session = self.session
        episodes = session.compiled.system.train.final_episodes
        best = last = self._evaluate(session.policy("best"), episodes, "final")
        if not session.best_is_last():
            last = self._evaluate(session.policy("last"), episodes, "final")
        for evaluation in {id(each): each for each in (best, last)}.values():
            if evaluation.cut:
                session.state.log.note(f"in the final evaluation {evaluation.text}", restarts=0)
        return FinalEvaluations(best, last)

    def _evaluate(self, policy: Policy, episodes: int, name: str) -> Evaluation:
        """Play episodes of a policy here. name: decides their random stream."""
        if not episodes:
            return Evaluation((), 0, 0)
        try:
            with (
                self._clock.timing("bind"),
                reporting_user_errors(self.session.compiled.system, "the policy"),
            ):
                self._player.bind(episodes)
            with self._clock.timing("evaluation"):
                return self._player.evaluate(policy, episodes, self._seed(name))
        except EnvironmentFailed as error:
            return self._omit(error)

    def _omit(self, error: EnvironmentFailed) -> Evaluation:
        """Return an evaluation without episodes, and log why; raise `error` without `restart`."""
        if self.session.compiled.system.train.on_env_failure != "restart":
            raise error
        self.session.state.log.note(f"{error}; this evaluation is skipped", restarts=0)
        return Evaluation((), 0, 0)

    def record(self, evaluation: Evaluation, iteration: int) -> None:
        """Record an evaluation during training, and its policy if that is the best so far.

        iteration: of the policy.
        """
        session, state, clock = self.session, self.session.state, self._clock
        steps = iteration * session.compiled.graph.env_steps
        if evaluation.cut and not state.evaluation_cuts:
            state.log.note(f"env step {steps}: in evaluation {evaluation.text}", restarts=0)
        state.evaluation_cuts += evaluation.cut
        if not evaluation.returns:
            return
        mean, threshold = float(np.mean(evaluation.returns)), session.compiled.system.env.threshold
        if state.best_mean is None or mean > state.best_mean:
            clock.record_milestone("best", steps)
        if threshold is not None and mean >= threshold and "threshold_s" not in state.spent:
            clock.record_milestone("threshold", steps)
        state.last_mean = mean
        state.last_low, state.last_high = min(evaluation.returns), max(evaluation.returns)
        if state.best_mean is None or mean >= state.best_mean:
            state.best_mean = mean
            if iteration == state.judging:
                session.mark_evaluated_best()
            else:
                session.mark_best()
