"""Execution of a plan's lanes: serially in this thread, in threads, or in processes.

Each way the same firings happen in the same order on the same slots, so that results are equal bit
for bit. The lane that updates runs in this thread; the other lanes are workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from pearl.runtime import waiting
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.lane_runner import AHEAD, CROWDED, SPINS, Runner
from pearl.runtime.lanes.work import Work
from pearl.runtime.lanes.workers import LaneDied, Process, Thread, Worker
from pearl.runtime.protocol import channels, recovery
from pearl.runtime.protocol.binding import Lags
from pearl.runtime.protocol.control_block import BEGIN, PARKED, Board
from pearl.runtime.protocol.lane_schedule import Protocol
from pearl.runtime.protocol.progress_counters import Bell
from pearl.runtime.protocol.single_lane import LaneError, StopWord

Hosting = Literal["one", "threads", "processes"]

CELLS = "runtime.cells"

PATIENCE_S = 120.0
"""Seconds without a firing after which a run ends, naming the lanes that wait (assumed)."""


class Engine:
    """Lanes hosted in one of three ways. Use it as a context: leaving it ends all workers."""

    alone = False
    pauses = True
    """Whether it may be asked to stop amid a firing."""

    def __init__(self, work: Work, hosting: Hosting) -> None:
        self.work, self.hosting = work, hosting
        p = work.protocol
        words = self.words(p)
        self.cells = channels.Memory([(CELLS, (Board.size(len(words), len(p.lanes)),), "int64")])
        self.board = Board(words, len(p.lanes), self.cells.arrays[CELLS])
        work.bells = [Bell() for _ in p.lanes]
        crowded = hosting != "one" and len(p.lanes) > len(os.sched_getaffinity(0))
        self.spins = CROWDED if crowded else SPINS
        self._hear = external_envs.hearing(work.log, restart=work.restart_envs)
        self._progress: dict[int, tuple[tuple[int, ...], float]] = {}
        self._deaths: dict[int, tuple[tuple[int, ...], int]] = {}
        self._ended_cpu_s = 0.0
        self._workers: dict[int, Worker] = {}
        self._all: list[Runner] = []
        self._last: tuple[float, tuple[int, ...]] = (time.monotonic(), ())
        self._ahead = max(f.offset for k in p.lanes for f in k.firings)
        self._paced = self._reached = 0
        self._word = StopWord(work.arrays)
        self.times_ns: dict[str, list[int]] = {}
        self.lags: Lags = {}

    def __enter__(self) -> Engine:
        p = self.work.protocol
        try:
            for number in range(len(p.lanes)):
                if number == p.home or self.hosting == "one":
                    continue
                if self.hosting == "threads" or self._on_device(number):
                    self._workers[number] = Thread(self.board, partial(self.runner, number))
                else:
                    self._workers[number] = self._process(number)
            self.own = self.runner(p.home, self._look)
            if self.hosting == "one":
                self._all = [
                    self.own if n == p.home else self.runner(n, self._look)
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
    def words(protocol: Protocol) -> tuple[str, ...]:
        """The counts that the lanes share."""
        return tuple(t.name for t in protocol.graph.tasks)

    def called(self, number: int) -> str:
        """A lane by name."""
        return self.work.protocol.lanes[number].name

    def _on_device(self, number: int) -> bool:
        """Whether a lane works on a device's memory: twins are of one process, and so are all such
        lanes."""
        w = self.work
        return any(w.jobs[t].own_memory for t in w.protocol.lanes[number].tasks)

    def bind(self, number: int, look: Callable[[], None]) -> Any:
        """A lane of this process with its calls bound: a `Runner` or an object like one."""
        w = self.work
        return Runner(
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

    def _process(self, number: int, *, anew: bool = False) -> Process:
        """A process for a lane. anew: in the place of one that has died."""
        cells, name = self.cells.handle, self.called(number)
        return Process(self.work, number, name, cells, self.spins, anew=anew)

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
        self._begun = recovery.Begun.of(self.work.arrays, fired)
        cells = {board.count(task): firings for task, firings in fired.items()}
        cells |= {board.flushed(n): begin for n in range(board.lanes)}
        for cell, value in (cells | {board.limit: at, board.flush: begin}).items():
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
        self._reached = end
        self.own.cut, self._word.words[0] = False, 0
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
        """The iteration that this thread's lane has reached, `end` unless it was cut short."""
        if self.own.cut:
            self._reached = end = int(self.own.round + self.own.ahead)
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
                raise LaneError("the plan's lanes wait for each other: " + self._stuck())
            for runner in self._all:
                runner.segment(end)
        else:
            self.own.flush(end)
            if self.own.cut:
                return
            while any(board.read(board.flushed(n)) < end for n in range(board.lanes)):
                self._look()
                time.sleep(0)
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
        while any(self.board.read(self.board.flushed(n)) != PARKED for n in self._workers):
            self._look()
            time.sleep(0)
        self.work.residency.settle()
        return self._came(limit)

    def under_way(self) -> dict[str, int]:
        """Of an iteration cut short: all counts, and at which iteration they were last alike."""
        counts = dict(zip(self.board.tasks, self._counts(), strict=True))
        return {BEGIN: self.own.begin, **counts} if self.own.cut else {}

    def fetch(self, *beginnings: str) -> None:
        """Bring arrays from devices, by the beginnings of their names."""
        self.work.residency.fetch(*beginnings)

    def cpu_s(self) -> float:
        """Seconds of this process and of the lanes in others, so far."""
        others_s = sum(w.cpu_s() for w in self._workers.values())
        return time.process_time() + self._ended_cpu_s + others_s

    def threads(self) -> dict[str, list[waiting.Thread]]:
        """Lane → the threads that run it; where one runs all, it is this one's."""
        others = {self.called(n): [w.thread] for n, w in self._workers.items() if w.thread}
        return {self.called(self.work.protocol.home): waiting.here(), **others}

    def _ring(self) -> None:
        for bell in self.work.bells:
            bell.ring()

    def _serial(self, end: int, *, timed: bool = False) -> None:
        """All lanes in this thread, each as far as it can go before the next."""
        flush = self.board.read(self.board.flush) == end
        limit = end if flush else self.board.read(self.board.limit)
        target = end - (0 if flush else self.own.ahead)
        while sum(
            r.attempt(limit, target if r is self.own else limit, timed and end, flush=flush)
            for r in self._all
        ):
            if self.own.cut or (not flush and self.own.round >= target):
                return

    def _stuck(self) -> str:
        runners = self._runners()
        return "; ".join(f"{r.name} waits for {', '.join(r.waits_for())}" for r in runners)

    def _look(self) -> None:
        """Raise LaneError where a worker has failed, or where nothing fires any more."""
        now = time.monotonic()
        for number, worker in list(self._workers.items()):
            try:
                worker.check()
                self._check_environments(number, worker, now)
            except LaneDied as death:
                self._again(number, worker, death)
        counts = self._counts()
        if counts != self._last[1]:
            self._last = now, counts
        elif now - self._last[0] > PATIENCE_S:
            raise LaneError(f"nothing has fired for {PATIENCE_S:.0f} s: {self._stuck()}")

    def _counts(self) -> tuple[int, ...]:
        return tuple(self.board.read(c) for c in range(len(self.board.tasks)))

    def _counts_of(self, number: int) -> tuple[int, ...]:
        tasks = self.work.protocol.lanes[number].tasks
        return tuple(self.board.read(self.board.count(t)) for t in tasks)

    def _check_environments(self, number: int, worker: Worker, now: float) -> None:
        """Collect environment failures from a worker; end it if a step exceeds its time limit."""
        for text, lost in worker.failures():
            self._hear(text, lost)
        at = self._counts_of(number)
        if self._progress.get(number, ((), 0.0))[0] != at or not self.stalls(number):
            self._progress[number] = at, now
        w, name = self.work, self.called(number)
        why = worker.overdue(w.env_time_limit_s, stalled_s=now - self._progress[number][1])
        if why is None:
            return
        worker.kill()
        if isinstance(worker, Process) and w.restart_envs:
            raise LaneDied(f"lane {name}: {why}")
        raise LaneError(f"lane {name}: {why}")

    def stalls(self, number: int) -> bool:
        """Whether a lane is at an env_step and has all that it needs."""
        return recovery.stalls(self.work.protocol, number, self.board)

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

    def _again(self, number: int, worker: Worker, death: LaneDied) -> None:
        """Start a lane whose process has died again, from its first incomplete firing on."""
        w = self.work
        obstacle = recovery.obstacle(w.protocol, number)
        if obstacle:
            raise LaneError(f"{death}; it is not started again: {obstacle}")
        at = self._counts_of(number)
        before, times = self._deaths.get(number, (at, 0))
        times = times + 1 if before == at else 1
        self._deaths[number] = at, times
        if times >= recovery.ATTEMPTS:
            raise LaneError(f"{death}, for the {times}rd time at one firing")
        self._ended_cpu_s += worker.cpu_s()
        self.take(*worker.end())
        lost = recovery.mend(
            w.protocol, number, w.jobs, w.arrays, self.board, self._begun, w.span, w.learning
        )
        w.log.note(f"{death}; it was started again", lost=lost or 0)
        again = self._workers[number] = self._process(number, anew=lost is not None)
        self._progress.pop(number, None)
        try:
            again.ready()
        except LaneDied as another:
            self._again(number, again, another)
        else:
            again.begin()

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
            for text, lost in worker.failures():
                self._hear(text, lost)
        if hasattr(self, "own"):
            for runner in self._runners():
                self.take(runner.times_ns, runner.lags)
        self._workers = {}
        for bell in self.work.bells:
            bell.close()
        self.work.bells = []
        self.cells.close()
