"""The evaluations of a run: at pauses or in a lane of their own amid it, and the final ones.

One in a lane of its own begins at a pause, of a copy of the policy, and its result is taken at the
next, however long it took. So which policy is the best, and where a callback stops the run, follows
from plan and seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pearl.spec.user_code import reporting_user_errors
from pearl.training.checkpoints.state import RunState
from pearl.training.evaluations.evaluation import Evaluation, Player
from pearl.training.evaluations.evaluation_worker import EvaluationWorker
from pearl.training.policy import Policy
from pearl.training.run_clock import RunClock
from pearl_devices.base import EnvironmentFailed
from pearl_devices.primitives.math.rng import key

if TYPE_CHECKING:
    from pearl.training.session import Session


@dataclass(frozen=True)
class Finals:
    """The final evaluation: of the best policy and of the last, one object where both are equal."""

    best: Evaluation
    last: Evaluation


class Evaluator:
    """Evaluates the policies of a run. Close it.

    session, state: of the run; others after a change of the plan.
    lane: where the plan has one for evaluations and the run is long enough for it; None: pauses.
    """

    def __init__(self, session: Session, state: RunState, spent: RunClock) -> None:
        self.session, self.state, self._spent = session, state, spent
        c = session.compiled
        self._player = Player(c.system, session.policy("last").kernel)
        self.lane: EvaluationWorker | None = None
        placed, every = c.plan.evaluation, c.system.train.evaluate_every
        if placed and placed.apart and every and not c.emulate:
            left = (state.total_steps - state.iteration * c.graph.env_steps) // every
            if left >= placed.pays_from:
                self.lane = EvaluationWorker(c.system, session.evaluated_arrays)

    def close(self) -> None:
        """End the environments, and the lane."""
        self._player.close()
        if self.lane is not None:
            self.lane.close()

    def begin(self) -> None:
        """Begin an evaluation of the current policy in the lane."""
        self.session.copy_for_evaluation()
        self.state.judging = self.state.iteration
        self.again()

    def again(self) -> None:
        """Begin the evaluation that the state says is under way, where it is not."""
        if self.lane is not None and not self.lane.playing:
            episodes = self.session.compiled.system.train.evaluate_episodes
            self.lane.begin(self.session.evaluated_arrays, episodes, self._seed(self._amid))

    @property
    def _amid(self) -> str:
        return f"periodic {self.state.judging or self.state.iteration}"

    def _seed(self, name: str) -> int:
        return key(self.session.seed, f"evaluation {name}")

    def result(self) -> Evaluation:
        """The evaluation that the state says is under way or, at a pause, of the current policy."""
        episodes = self.session.compiled.system.train.evaluate_episodes
        if not self.state.judging:
            return self._judged(self.session.policy("last"), episodes, self._amid)
        if self.lane is None:  # it was begun before the run was resumed
            return self._judged(self.session.evaluated_policy, episodes, self._amid)
        self.again()
        deaths = self.lane.deaths
        try:
            with self._spent.on("evaluation"):
                found, cpu_s = self.lane.result()
        except EnvironmentFailed as error:
            return self._left_out(error)
        finally:
            for _ in range(self.lane.deaths - deaths):
                self.state.log.note("the process of evaluation died and was started again")
        self._spent.elsewhere(cpu_s)
        return found

    def final(self) -> Finals:
        """The evaluations of the best policy and the last, in the same episodes."""
        session = self.session
        episodes = session.compiled.system.train.final_episodes
        best = last = self._judged(session.policy("best"), episodes, "final")
        if not session.best_is_last():
            last = self._judged(session.policy("last"), episodes, "final")
        for found in {id(each): each for each in (best, last)}.values():
            if found.cut:
                self.state.log.note(f"in the final evaluation {found.text}", restarts=0)
        return Finals(best, last)

    def _judged(self, policy: Policy, episodes: int, name: str) -> Evaluation:
        """Episodes of a policy. name: of their random stream.

        Where an environment fails and the spec says `restart`, none, and a note.
        """
        if not episodes:
            return Evaluation((), 0, 0)
        try:
            with (
                self._spent.on("bind"),
                reporting_user_errors(self.session.compiled.system, "the policy"),
            ):
                self._player.ready(episodes)
            with self._spent.on("evaluation"):
                return self._player.evaluate(policy, episodes, self._seed(name))
        except EnvironmentFailed as error:
            return self._left_out(error)

    def _left_out(self, error: EnvironmentFailed) -> Evaluation:
        if self.session.compiled.system.train.on_env_failure != "restart":
            raise error
        self.state.log.note(f"{error}; this evaluation is left out", restarts=0)
        return Evaluation((), 0, 0)

    def keep(self, found: Evaluation, iteration: int) -> None:
        """Note an evaluation amid a run, of the policy of an iteration. The best is kept."""
        state, c, spent = self.state, self.session.compiled, self._spent
        steps = iteration * c.graph.env_steps
        if found.cut and not state.evaluation_cuts:
            state.log.note(f"env step {steps}: in evaluation {found.text}", restarts=0)
        state.evaluation_cuts += found.cut
        if not found.returns:
            return
        mean, threshold = float(np.mean(found.returns)), c.system.env.threshold
        if state.best_mean is None or mean > state.best_mean:
            spent.reached("best", steps)
        if threshold is not None and mean >= threshold and "threshold_s" not in state.spent:
            spent.reached("threshold", steps)
        state.last_mean = mean
        if state.best_mean is None or mean >= state.best_mean:
            state.best_mean = mean
            if iteration == state.judging:
                self.session.mark_evaluated_best()
            else:
                self.session.keep()
