"""Execution of a plan's lanes: serially in this thread, in threads, in processes, or on Ray.

Each way the same firings happen in the same order on the same slots, so that results are equal bit
for bit. The lane that updates runs in this thread; the other lanes are workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from pearl.runtime import cpu_wait
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.lane_runner import AHEAD, CROWDED, SPINS, LaneRunner
from pearl.runtime.lanes.run_context import RunContext
from pearl.runtime.lanes.worker_monitor import WorkerMonitor
from pearl.runtime.lanes.workers import ProcessWorker, Thread
from pearl.runtime.protocol import channels, recovery
from pearl.runtime.protocol.binding import Lags
from pearl.runtime.protocol.control_block import BEGIN, PARKED, ControlBlock
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.runtime.protocol.progress_counters import WakeEvent
from pearl.runtime.protocol.single_lane import LaneError, StopWord

Hosting = Literal["one", "threads", "processes", "ray"]

CELLS = "runtime.cells"


class Engine:
    """Lanes hosted in one of four ways. Use it as a context: leaving it ends all workers."""

    alone = False
    pauses = True
    """Whether it may be asked to stop amid a firing."""

    def __init__(self, work: RunContext, hosting: Hosting) -> None:
        self.work, self.hosting = work, hosting
        p = work.protocol
        words = self.words(p)
        sizes = len(words), len(p.lanes), len(work.islands)
        self.cells = channels.SharedArrays([(CELLS, (ControlBlock.size(*sizes),), "int64")])
        self.board = ControlBlock(words, len(p.lanes), self.cells.arrays[CELLS], len(work.islands))
        work.bells = [WakeEvent() for _ in range(self.board.sleepers)]
        self._away = {n for island in work.islands for n in island.lanes}
        self._message = max((island.iterations for island in work.islands), default=0)
        crowded = hosting != "one" and len(p.lanes) > len(os.sched_getaffinity(0))
        self.spins = CROWDED if crowded else SPINS
        self._hear = external_envs.hearing(work.log, restart=work.restart_envs)
        self.lookout = WorkerMonitor(self, self._hear)
        self._workers = self.lookout.workers
        self._all: list[LaneRunner] = []
        self._ahead = max(f.offset for k in p.lanes for f in k.firings)
        self._paced = self._reached = 0
        self._word = StopWord(work.arrays)
        self.times_ns: dict[str, list[int]] = {}
        self.lags: Lags = {}
        self.traffic: list[dict[str, Any]] = []

    def __enter__(self) -> Engine:
        p = self.work.protocol
        try:
            for number in range(len(p.lanes)):
                if number == p.home or self.hosting == "one" or number in self._away:
                    continue
                if self.hosting == "threads" or self._on_device(number):
                    self._workers[number] = Thread(self.board, partial(self.runner, number))
                else:
                    self._workers[number] = self.process(number)
            for island in self.work.islands:
                self._workers[island.lanes[0]] = island.worker(self.work, self.board)
            self.own = self.runner(p.home, self.lookout.poll)
            if self.hosting == "one":
                self._all = [
                    self.own if n == p.home else self.runner(n, self.lookout.poll)
                    for n in range(len(p.lanes))
                ]
            for worker in self._workers.values():
                worker.ready()
            self.work.restored = {}  # who takes the place of a worker begins with new environments
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @staticmethod
    def words(protocol: ExecutionSchedule) -> tuple[str, ...]:
        """The counts that the lanes share."""
        return tuple(t.name for t in protocol.graph.tasks)

    def lane_name(self, number: int) -> str:
        """A lane by name."""
        return self.work.protocol.lanes[number].name

    def _on_device(self, number: int) -> bool:
        """Whether a lane works on a device's memory: twins are of one process, and so are all such
        lanes."""
        w = self.work
        return any(w.jobs[t].own_memory for t in w.protocol.lanes[number].tasks)

    def bind(self, number: int, look: Callable[[], None]) -> Any:
        """A lane of this process with its calls bound: a `LaneRunner` or an object like one."""
        w = self.work
        return LaneRunner(
            w.protocol,
            number,
            w.jobs,
            w.arrays,
            self.board,
            w.bells,
            w.learning,
            w.span,
            w.residency,
            look,
            spins=self.spins,
            jitter_s=w.jitter_s,
        )

    def process(self, number: int, *, anew: bool = False) -> ProcessWorker:
        """A process for a lane. anew: in the place of one that has died."""
        cells, name = self.cells.handle, self.lane_name(number)
        return ProcessWorker(self.work, number, name, cells, self.spins, anew=anew)

    def runner(self, number: int, look: Callable[[], None]) -> Any:
        """The same, its environments restored, and their failures heard by this engine."""
        w, found = self.work, self.bind(number, look)
        for env in found.environments.values():
            env.on_failure = self._hear
        if w.restored:
            external_envs.restore(found.environments, w.restored)
        return found

    def start(self, at: int, under_way: Mapping[str, int] | None = None) -> None:
        """Begin with iteration `at`: all tasks have fired for just the iterations before it.

        under_way: as other lanes left off (`under_way`); `at` is then how far this thread's came.
        """
        p, board = self.work.protocol, self.board
        self.work.residency.load()
        begin = under_way[BEGIN] if under_way else at
        fired = {t: (under_way[t] if under_way else at * n) for t, n in p.graph.repetition.items()}
        self.lookout.begun = recovery.Begun.of(self.work.arrays, fired)
        cells = {board.count(task): firings for task, firings in fired.items()}
        cells |= {board.flushed(n): begin for n in range(board.lanes)}
        cells |= {board.limit: at, board.flush: begin, board.end: begin}
        for cell, value in cells.items():
            board.write(cell, value)
        self._paced = self._reached = at
        for runner in self._runners():
            runner.resume(begin) if under_way else runner.segment(at)
        for worker in self._workers.values():
            worker.begin()

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Iterations up to `end`, at `stop` at the latest, or until the stop word cuts one short;
        returns how far this thread's lane came.

        Only at `stop` is every task as far as every other; until then the other lanes may be ahead
        of this one as far as tokens allow, by as many iterations as it is asked for here and
        `AHEAD` at most, so that `halt` takes no longer than such a stretch.
        """
        board, ahead = self.board, max(min(end - self._reached, AHEAD), self._ahead, 1)
        ahead += self._message  # those of an island come with a message
        board.write(board.end, stop)
        self._reached = end
        self.own.cut, self._word.words[0] = False, 0
        if any(w.full for w in self._workers.values()):
            self._settle(board.read(board.limit), timed=timed)
            return self._came(board.read(board.limit))
        if end + self._ahead >= stop:
            self._settle(stop, timed=timed)
            return self._came(stop)
        board.write(board.limit, max(board.read(board.limit), min(stop, end + ahead)))
        self._ring()
        self._advance(end, timed=timed)
        for worker in self._workers.values():
            for text, lost in worker.failures():
                self._hear(text, lost)
        return self._came(end)

    def _came(self, end: int) -> int:
        """The iteration that this thread's lane has reached, `end` unless it was cut short.

        Cut short at its very last call it is not at the end of the segment: others may not be.
        """
        if self.own.cut:
            came = int(self.own.round + self.own.ahead)
            self._reached = end = min(came, self.board.read(self.board.limit) - 1)
        return end

    def _advance(self, end: int, *, timed: bool) -> None:
        """This thread's lanes up to iteration `end`, with a pace one iteration at a time."""
        pace_s, go = self.work.pace_s, self._serial if self.hosting == "one" else self.own.run
        if pace_s is None:
            go(end, timed=timed)
            return
        released = time.perf_counter()
        for each in range(self._paced + 1, end + 1):
            go(each, timed=timed and each == end)
            if self.own.cut:
                return
            self._paced = each
            released += pace_s
            time.sleep(max(0.0, released - time.perf_counter()))

    def _settle(self, end: int, *, timed: bool) -> None:
        board = self.board
        board.write(board.limit, end)
        board.write(board.flush, end)
        self._ring()
        self._advance(end, timed=timed)
        if self.own.cut:
            return
        if self.hosting == "one":
            if min(r.round for r in self._all) < end:
                raise LaneError("the plan's lanes wait for each other: " + self.stuck())
            for runner in self._all:
                runner.segment(end)
        else:
            self.own.flush(end)
            if self.own.cut:
                return
            while any(board.read(board.flushed(n)) < end for n in range(board.lanes)):
                self.lookout.poll()
                time.sleep(0)
        for worker in self._workers.values():
            worker.settled()
        self.work.residency.settle()

    def halt(self) -> int:
        """Bring all lanes to the limit that the others were last given, or, where a call has been
        cut short, let all stay where they are; which iteration this thread's has reached."""
        limit = self.board.read(self.board.limit)
        if not self.own.cut and self.board.read(self.board.flush) < limit:
            self._settle(limit, timed=False)
        if not self.own.cut:
            return limit
        self.board.write(self.board.park, 1)
        self._ring()
        others = {*self._workers, *self._away}
        while any(self.board.read(self.board.flushed(n)) != PARKED for n in others):
            self.lookout.poll()
            time.sleep(0)
        self.work.residency.settle()
        return self._came(limit)

    def under_way(self) -> dict[str, int]:
        """Of an iteration cut short: all counts, and at which iteration they were last alike."""
        counts = dict(zip(self.board.tasks, self.counts(), strict=True))
        return {BEGIN: self.own.begin, **counts} if self.own.cut else {}

    def fetch(self, *beginnings: str) -> None:
        """Bring arrays from devices, by the beginnings of their names."""
        self.work.residency.fetch(*beginnings)

    def cpu_s(self) -> float:
        """Seconds of this process and of the lanes in others, so far."""
        others_s = sum(w.cpu_s() for w in self._workers.values())
        return time.process_time() + self.lookout.ended_cpu_s + others_s

    def threads(self) -> dict[str, list[cpu_wait.Thread]]:
        """Lane → the threads that run it; where one runs all, it is this one's."""
        others = {self.lane_name(n): [w.thread] for n, w in self._workers.items() if w.thread}
        return {self.lane_name(self.work.protocol.home): cpu_wait.current_threads(), **others}

    def _ring(self) -> None:
        for bell in self.work.bells:
            bell.ring()

    def _serial(self, end: int, *, timed: bool = False) -> None:
        """All lanes in this thread, each as far as it can go before the next."""
        flush = self.board.read(self.board.flush) == end
        limit = end if flush else self.board.read(self.board.limit)
        target = end - (0 if flush else self.own.ahead)
        while sum(
            r.try_advance(limit, target if r is self.own else limit, timed and end, flush=flush)
            for r in self._all
        ):
            if self.own.cut or (not flush and self.own.round >= target):
                return

    def stuck(self) -> str:
        """The lanes of this thread, and the tasks that they wait for."""
        runners = self._runners()
        return "; ".join(f"{r.name} waits for {', '.join(r.waits_for())}" for r in runners)

    def counts(self) -> tuple[int, ...]:
        """The counts of all tasks."""
        return tuple(self.board.read(c) for c in range(len(self.board.tasks)))

    def counts_of(self, number: int) -> tuple[int, ...]:
        """The counts of a lane's tasks."""
        tasks = self.work.protocol.lanes[number].tasks
        return tuple(self.board.read(self.board.count(t)) for t in tasks)

    def waits_in_env_step(self, number: int) -> bool:
        """Whether a lane is at an env_step and has all that it needs."""
        return recovery.waits_in_env_step(self.work.protocol, number, self.board)

    def environments(self) -> dict[str, Any]:
        """Snapshots of the environments outside the arrays, between two segments."""
        found = external_envs.snapshot(self.environments_here)
        for number, worker in self._workers.items():
            found |= worker.environments(self.board.read(self.board.flushed(number)))
        return found

    @property
    def environments_here(self) -> dict[str, Any]:
        """The environments outside the arrays that this thread steps."""
        return {name: env for r in self._runners() for name, env in r.environments.items()}

    @property
    def environments_in_process(self) -> dict[str, Any]:
        """Those too that other threads of this process step."""
        threads = [w.runner for w in self._workers.values() if isinstance(w, Thread)]
        others = {name: env for r in threads for name, env in r.environments.items()}
        return self.environments_here | others

    def _runners(self) -> list[Any]:
        """The lanes of this thread."""
        return self._all or [self.own]

    def take(
        self, times_ns: Mapping[str, list[int]], lags: Mapping[str, Mapping[Any, int]]
    ) -> None:
        """Add the times and lags that a lane has measured."""
        for name, values in times_ns.items():
            self.times_ns.setdefault(name, []).extend(values)
        for name, seen in lags.items():
            mine = self.lags.setdefault(name, {})
            for lag, count in seen.items():
                mine[int(lag)] = mine.get(int(lag), 0) + count

    def close(self) -> None:
        """End all workers."""
        self.board.write(self.board.stop, 1)
        for bell in self.work.bells:
            bell.ring()
        for worker in self._workers.values():
            self.take(*worker.end())
            self.traffic += worker.traffic()
            for text, lost in worker.failures():
                self._hear(text, lost)
        if hasattr(self, "own"):
            for runner in self._runners():
                self.take(runner.times_ns, runner.lags)
        self._workers.clear()
        for bell in self.work.bells:
            bell.close()
        self.work.bells = []
        self.cells.close()
