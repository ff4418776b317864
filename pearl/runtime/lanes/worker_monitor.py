"""Looking after the workers of a run: failures are told, and lanes that died started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pearl.runtime.lanes.workers import LaneDied, ProcessWorker, Worker
from pearl.runtime.protocol import recovery
from pearl.runtime.protocol.single_lane import LaneError

if TYPE_CHECKING:
    from pearl.runtime.lanes.engine import Engine

PATIENCE_S = 120.0
"""Seconds without a firing after which a run ends, naming the lanes that wait (assumed)."""


class WorkerMonitor:
    """The workers of an engine, by the numbers of their lanes.

    hear: is told failures of environments: text, transitions lost.
    ended_cpu_s: CPU seconds of workers whose place others have taken.
    begun: counts when the lanes began.
    """

    def __init__(self, engine: Engine, hear: Callable[[str, int], None]) -> None:
        self._engine, self._hear = engine, hear
        self.workers: dict[int, Worker] = {}
        self.ended_cpu_s = 0.0
        self.begun: recovery.Begun | None = None
        self._progress: dict[int, tuple[tuple[int, ...], float]] = {}
        self._deaths: dict[int, tuple[tuple[int, ...], int]] = {}
        self.reset_stall_detector()

    def reset_stall_detector(self) -> None:
        """What was seen last does not count any more: nothing had to fire meanwhile."""
        self._last: tuple[float, tuple[int, ...]] = time.monotonic(), ()

    def poll(self) -> None:
        """Raise LaneError where a worker has failed, or where nothing fires any more."""
        now, engine = time.monotonic(), self._engine
        for number, worker in list(self.workers.items()):
            try:
                worker.check()
                self._check_environments(number, worker, now)
            except LaneDied as death:
                self._restart_lane(number, worker, death)
        counts = engine.counts()
        if counts != self._last[1]:
            self._last = now, counts
        elif now - self._last[0] > PATIENCE_S:
            raise LaneError(f"nothing has fired for {PATIENCE_S:.0f} s: {engine.stuck()}")

    def _check_environments(self, number: int, worker: Worker, now: float) -> None:
        """Collect environment failures from a worker; end it if a step exceeds its time limit."""
        for text, lost in worker.failures():
            self._hear(text, lost)
        at = self._engine.counts_of(number)
        if self._progress.get(number, ((), 0.0))[0] != at or not self._engine.waits_in_env_step(
            number
        ):
            self._progress[number] = at, now
        w, name = self._engine.work, self._engine.lane_name(number)
        why = worker.timeout_reason(w.env_time_limit_s, stalled_s=now - self._progress[number][1])
        if why is None:
            return
        worker.kill()
        if (worker.restartable or isinstance(worker, ProcessWorker)) and w.restart_envs:
            raise LaneDied(f"lane {name}: {why}")
        raise LaneError(f"lane {name}: {why}")

    def _restart_lane(self, number: int, worker: Worker, death: LaneDied) -> None:
        """Start a lane whose process has died again, from its first incomplete firing on, or the
        lanes of another host from the last pause on."""
        w, engine = self._engine.work, self._engine
        obstacle = None if worker.restartable else recovery.obstacle(w.protocol, number)
        if obstacle:
            raise LaneError(f"{death}; it is not started again: {obstacle}")
        at = engine.counts_of(number)
        before, times = self._deaths.get(number, (at, 0))
        times = times + 1 if before == at else 1
        self._deaths[number] = at, times
        if times >= recovery.ATTEMPTS:
            raise LaneError(f"{death}, for the {times}rd time at one firing")
        self._progress.pop(number, None)
        try:
            if worker.restartable:
                w.log.note(f"{death}; its firings since the last pause were done again")
                worker.again()
                return
            self.ended_cpu_s += worker.cpu_s()
            engine.take(*worker.end())
            assert self.begun
            lost = recovery.rebuild_counts(
                w.protocol, number, w.jobs, w.arrays, engine.board, self.begun, w.span, w.learning
            )
            w.log.note(f"{death}; it was started again", lost=lost or 0)
            worker = self.workers[number] = engine.process(number, anew=lost is not None)
            worker.ready()
            worker.begin()
        except LaneDied as another:
            self._restart_lane(number, worker, another)
