"""Supervision of workers: collect failures of environments and restart lanes that have died."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pearl.runtime.lanes.workers import GRACE_S, LaneDiedError, ProcessWorker, ThreadWorker, Worker
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.single_lane import LaneError
from pearl.waits import NAMED_S, say

if TYPE_CHECKING:
    from pearl.runtime.lanes.engine import Engine

PATIENCE_S = 120.0
"""Seconds without a firing after which a run fails; the error names the lanes (assumed)."""


class WorkerMonitor:
    """The workers of an engine, by the numbers of their lanes.

    on_failure: called with each failure of an environment: text, transitions lost.
    ended_cpu_s: CPU-seconds of workers that were replaced.
    start_counts: counts when the lanes began.
    """

    def __init__(self, engine: Engine, on_failure: Callable[[str, int], object]) -> None:
        self._engine, self._on_failure = engine, on_failure
        self.workers: dict[int, Worker] = {}
        self.ended_cpu_s = 0.0
        self.start_counts: recovery.StartCounts | None = None
        self._progress: dict[int, tuple[tuple[int, ...], float]] = {}
        self._deaths: dict[int, tuple[tuple[int, ...], int]] = {}
        self._named: dict[int, tuple[int, ...]] = {}
        self.reset_stall_detector()

    def reset_stall_detector(self) -> None:
        """Reset the stall detector: no lane had to fire in the meantime."""
        self._last: tuple[float, tuple[int, ...]] = time.monotonic(), ()

    def poll(self) -> None:
        """Check all workers, and restart those that have died.

        Raises:
            LaneError: a worker has failed and cannot be restarted, or nothing fires any more.
        """
        now, engine = time.monotonic(), self._engine
        for number, worker in list(self.workers.items()):
            try:
                worker.raise_if_failed()
                self._check_environments(number, worker, now)
            except LaneDiedError as death:
                if worker.steps_envs and (where := engine.env_step_under_way(number)):
                    death = LaneDiedError(f"{death} while {where} was due")
                self._restart_lane(number, worker, death)
        counts = engine.counts()
        if counts != self._last[1]:
            self._last = now, counts
            return
        silent_s = now - self._last[0]
        if silent_s > NAMED_S:
            text = f"nothing has fired for {NAMED_S:.0f} s: {engine.describe_blocked_lanes()}"
            self._name(-1, counts, f"{text}; after {PATIENCE_S:.0f} s the run fails")
        if silent_s > PATIENCE_S:
            raise LaneError(
                f"nothing has fired for {PATIENCE_S:.0f} s: {engine.describe_blocked_lanes()}"
            )

    def _name(self, number: int, counts: tuple[int, ...], text: str, *, said: bool = False) -> None:
        """Add a wait to the events, once for its counts, and say it unless another has `said` it.
        number: of the lane; −1: all."""
        if self._named.get(number) == counts:
            return
        self._named[number] = counts
        self._engine.context.log.note(text, restarts=0)
        if not said:
            say(text)

    def _check_environments(self, number: int, worker: Worker, now: float) -> None:
        """Collect environment failures from a worker; end it if a step exceeds its time limit."""
        for text, lost in worker.failures():
            self._on_failure(text, lost)
        engine, context = self._engine, self._engine.context
        at = engine.counts_of(number)
        progressed = self._progress.get(number, ((), 0.0))[0] != at
        if progressed or not (where := engine.env_step_under_way(number)):
            self._progress[number] = at, now
        stalled_s = now - self._progress[number][1]
        if stalled_s > NAMED_S and (worker.steps_envs or isinstance(worker, ThreadWorker)):
            next_s = 1.5 * context.env_time_limit_s + GRACE_S
            text = (
                f"lane {engine.lane_name(number)}: {where} has not answered for {stalled_s:.0f} s"
            )
            text += f"; after {next_s:.0f} s its process is ended (train.env_time_limit)"
            # The watcher of this process names environments of its threads.
            self._name(number, at, text, said=isinstance(worker, ThreadWorker))
        reason = worker.timeout_reason(context.env_time_limit_s, stalled_s=stalled_s)
        if reason is None:
            return
        worker.kill()
        text = f"lane {engine.lane_name(number)}: {reason}"
        if (worker.restartable or isinstance(worker, ProcessWorker)) and context.restart_envs:
            raise LaneDiedError(text)
        raise LaneError(text)

    def _restart_lane(self, number: int, worker: Worker, death: LaneDiedError) -> None:
        """Restart a lane whose process has died, from its first incomplete firing; or lanes of
        another host, from the last pause."""
        context, engine = self._engine.context, self._engine
        obstacle = None if worker.restartable else recovery.restart_obstacle(context, number)
        if obstacle:
            raise LaneError(f"{death}; the lane cannot be restarted: {obstacle}")
        at = engine.counts_of(number)
        before, deaths = self._deaths.get(number, (at, 0))
        deaths = deaths + 1 if before == at else 1
        self._deaths[number] = at, deaths
        if deaths >= recovery.ATTEMPTS:
            raise LaneError(f"{death}, for the {deaths}rd time at one firing")
        self._progress.pop(number, None)
        try:
            if worker.restartable:
                context.log.note(f"{death}; its firings since the last pause were repeated")
                worker.restore_and_replay()
                return
            self.ended_cpu_s += worker.cpu_s()
            engine.add_measurements(*worker.join())
            assert self.start_counts
            lost = recovery.rebuild_counts(context, number, engine.control, self.start_counts)
            context.log.note(f"{death}; the lane was restarted", lost=lost or 0)
            worker = self.workers[number] = engine.process(number, restarted_envs=lost is not None)
            worker.wait_ready()
            worker.begin()
        except LaneDiedError as another:
            self._restart_lane(number, worker, another)
