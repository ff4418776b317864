"""`RunClock`: the time of a run over all its sessions, by activity."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pearl.planning.runs import TimeToSolution


class RunClock:
    """Wall seconds since `compile` began, without the time between two processes of a run.

    held: the parts, stored in checkpoints:
        wall_s: seconds up to the last `stamp`.
        plan_s, bind_s, evaluation_s, checkpoint_s: seconds of these; evaluation_cpu_s: CPU seconds.
        best_s, best_env_steps: time and env steps of the best policy's evaluation; absent before.
        threshold_s, threshold_env_steps: the same of the first policy that solves the environment.
    """

    def __init__(self, held: dict[str, float], planned_s: float) -> None:
        """planned_s: seconds of `compile` before this run."""
        self.held = held
        self._before_s, self._begin_s = held.get("wall_s", 0.0) + planned_s, time.perf_counter()
        held["plan_s"] = held.get("plan_s", 0.0) + planned_s

    @property
    def now_s(self) -> float:
        """Seconds so far."""
        return self._before_s + time.perf_counter() - self._begin_s

    @property
    def paused_s(self) -> float:
        """Seconds so far in which lanes were bound, or evaluations and checkpoints were made."""
        return sum(self.held.get(f"{what}_s", 0.0) for what in ("bind", "evaluation", "checkpoint"))

    def stamp(self) -> None:
        """Bring `held` up to now, for a checkpoint."""
        self.held["wall_s"] = self.now_s

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Within this context, count the time as activity `what` instead of training."""
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._add(f"{what}_s", time.perf_counter() - begin_s)
            if what == "evaluation":
                self._add("evaluation_cpu_s", time.process_time() - begin_cpu_s)

    def add_worker_cpu_s(self, cpu_s: float) -> None:
        """Add the CPU seconds of an evaluation in a worker."""
        self._add("evaluation_cpu_s", cpu_s)

    def record_milestone(self, what: str, env_steps: int) -> None:
        """Record that the policy of `env_steps` is the best, or solves the environment.

        what: best or threshold.
        """
        self.held[f"{what}_s"], self.held[f"{what}_env_steps"] = self.now_s, env_steps

    def solution(self, threshold: float | None, best_mean: float | None) -> TimeToSolution:
        """Return the times of the run so far.

        threshold: return from which the environment counts as solved; None: no such return.
        best_mean: mean return of the best evaluation; None before one.
        """
        held = self.held
        steps = {w: held.get(f"{w}_env_steps") for w in ("threshold", "best")}
        return TimeToSolution(
            threshold=threshold,
            threshold_s=held.get("threshold_s"),
            threshold_env_steps=None if steps["threshold"] is None else int(steps["threshold"]),
            best_mean=best_mean,
            best_s=held.get("best_s"),
            best_env_steps=None if steps["best"] is None else int(steps["best"]),
            end_s=self.now_s,
            plan_s=held.get("plan_s", 0.0),
            bind_s=held.get("bind_s", 0.0),
            evaluation_s=held.get("evaluation_s", 0.0),
            evaluation_cpu_s=held.get("evaluation_cpu_s", 0.0),
            checkpoint_s=held.get("checkpoint_s", 0.0),
        )

    def _add(self, name: str, seconds: float) -> None:
        self.held[name] = self.held.get(name, 0.0) + seconds
