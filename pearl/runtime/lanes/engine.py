"""Execution of a plan's lanes: serially in this thread, in threads, in processes, or on Ray.

Every hosting does the same firings in the same order on the same slots, so results are equal bit
for bit. The lane that updates runs in this thread; workers run the other lanes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from pearl.runtime import cpu_wait
from pearl.runtime.environments import external_envs
from pearl.runtime.lanes.async_actor import AsyncActor, grant_counters
from pearl.runtime.lanes.lane_runner import (
    MAX_ITERATIONS_AHEAD,
    SPINS,
    SPINS_OVERSUBSCRIBED,
    LaneRunner,
)
from pearl.runtime.lanes.worker_monitor import WorkerMonitor
from pearl.runtime.lanes.workers import ProcessWorker, ThreadWorker
from pearl.runtime.protocol import channels, recovery
from pearl.runtime.protocol.binding import Lags, add_lags
from pearl.runtime.protocol.control_block import BEGIN, PARKED, ControlBlock, wake_all
from pearl.runtime.protocol.run_context import RunContext
from pearl.runtime.protocol.single_lane import LaneError, StopWord
from pearl_devices.system import host_system

Hosting = Literal["one", "threads", "processes", "ray"]

CELLS = "runtime.cells"


def shared_counters(context: RunContext) -> tuple[str, ...]:
    """Names of the counters that the lanes share, in the order of their cells."""
    tasks = tuple(t.name for t in context.protocol.graph.tasks)
    return tasks + grant_counters(context.protocol) if context.any_order else tasks


def bind_lane(
    context: RunContext,
    number: int,
    control: ControlBlock,
    poll: Callable[[], None],
    *,
    spins: int,
    restarted_envs: bool = False,
) -> LaneRunner | AsyncActor:
    """Bind the calls of a lane; of an any-order plan, the lane of an actor."""
    kind = AsyncActor if context.any_order else LaneRunner
    return kind(context, number, control, poll, spins=spins, restarted_envs=restarted_envs)


def restore_envs(context: RunContext, environments: external_envs.Environments) -> list[str]:
    """Restore environments from the snapshots of a run, if there are any; see
    `external_envs.restore`."""
    if not context.env_snapshots:
        return []
    passing = external_envs.first_pass(context.protocol.graph, context.arrays)
    return external_envs.restore(environments, context.env_snapshots, passing)


class Engine:
    """Lanes hosted in one of four ways. Use it as a context: leaving it ends all workers.

    interruptible: whether the stop word may end a firing before it is complete.
    """

    is_single_lane = False
    interruptible = True

    def __init__(self, context: RunContext, hosting: Hosting) -> None:
        self.context, self.hosting = context, hosting
        p, groups = context.protocol, context.remote_groups
        counters = shared_counters(context)
        size = ControlBlock.size(len(counters), len(p.lanes), len(groups))
        self.cells = channels.SharedArrays([(CELLS, (size,), "int64")])
        self.control = ControlBlock(counters, len(p.lanes), self.cells.arrays[CELLS], len(groups))
        context.wake_events = [host_system.new_wake_event() for _ in range(self.control.sleepers)]
        self._remote = {n for group in groups for n in group.lanes}
        self._message_iterations = max((group.iterations for group in groups), default=0)
        crowded = hosting != "one" and len(p.lanes) > len(host_system.usable_cpus())
        self.spins = SPINS_OVERSUBSCRIBED if crowded else SPINS
        self._on_failure = external_envs.failure_listener(context.log, restart=context.restart_envs)
        self.monitor = WorkerMonitor(self, self._on_failure)
        self._workers = self.monitor.workers
        self._all: list[LaneRunner] = []
        self._ahead = max(f.offset for k in p.lanes for f in k.firings)
        self._paced = self._reached = 0
        self._stop_word = StopWord(context.arrays)
        self.times_ns: dict[str, list[int]] = {}
        self.lags: Lags = {}
        self.traffic: list[dict[str, Any]] = []
        self.records: list[Mapping[str, Any]] = []

    def __enter__(self) -> Engine:
        p = self.context.protocol
        try:
            for number in range(len(p.lanes)):
                if number == p.home or self.hosting == "one" or number in self._remote:
                    continue
                if self.hosting == "threads" or self._on_device(number):
                    self._workers[number] = ThreadWorker(self.control, partial(self.runner, number))
                else:
                    self._workers[number] = self.process(number)
            for group in self.context.remote_groups:
                self._workers[group.lanes[0]] = group.worker(self.context, self.control)
            self.own = self.runner(p.home, self.monitor.poll)
            if self.hosting == "one":
                self._all = [
                    self.own if n == p.home else self.runner(n, self.monitor.poll)
                    for n in range(len(p.lanes))
                ]
            for worker in self._workers.values():
                worker.wait_ready()
            # A worker that is restarted later begins with new environments, not with these.
            self.context.env_snapshots = {}
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def lane_name(self, number: int) -> str:
        """Return the name of a lane."""
        return self.context.protocol.lanes[number].name

    def _on_device(self, number: int) -> bool:
        """Whether a lane works on a device's memory. Device mirrors belong to one process, so all
        such lanes run in this process."""
        context = self.context
        return any(context.jobs[t].own_memory for t in context.protocol.lanes[number].tasks)

    def bind(self, number: int, poll: Callable[[], None]) -> Any:
        """Bind the calls of a lane of this process."""
        return bind_lane(self.context, number, self.control, poll, spins=self.spins)

    def process(self, number: int, *, restarted_envs: bool = False) -> ProcessWorker:
        """Start a process for a lane.

        restarted_envs: native environments of the lane were restarted in the middle of episodes.
        """
        cells, name = self.cells.handle, self.lane_name(number)
        return ProcessWorker(
            self.context, number, name, cells, self.spins, restarted_envs=restarted_envs
        )

    def runner(self, number: int, poll: Callable[[], None]) -> Any:
        """Bind a lane of this process, restore its environments and listen to their failures."""
        runner = self.bind(number, poll)
        for env in runner.environments.values():
            env.on_failure = self._on_failure
        for text in restore_envs(self.context, runner.environments):
            self.context.log.announce(text)
        return runner

    def start(self, at: int, under_way: Mapping[str, int] | None = None) -> None:
        """Begin with iteration `at`: all tasks have fired exactly for the iterations before it.

        under_way: the counts of a run that stopped in the middle of an iteration, as `under_way`
            returned them; `at` is then the iteration that this thread's lane had reached.
        """
        p, control = self.context.protocol, self.control
        self.context.residency.upload_all()
        begin = under_way[BEGIN] if under_way else at
        fired = {t: (under_way[t] if under_way else at * n) for t, n in p.graph.repetition.items()}
        self.monitor.start_counts = recovery.StartCounts.from_arrays(self.context.arrays, fired)
        control.reset(fired, begin, limit=at)
        self._paced = self._reached = at
        for runner in self._runners():
            runner.resume_segment(begin) if under_way else runner.begin_segment(at)
        for worker in self._workers.values():
            worker.begin()

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Run iterations up to `end`, at most to `stop`, or until the stop word interrupts one.

        Only at `stop` are all tasks at the same iteration. Before, the other lanes may be ahead of
        this thread's lane as far as tokens allow, by as many iterations as this call runs and at
        most `MAX_ITERATIONS_AHEAD`. So `halt` takes no longer than such a stretch.

        Returns: the iteration that this thread's lane has reached.
        """
        control = self.control
        ahead = max(min(end - self._reached, MAX_ITERATIONS_AHEAD), self._ahead, 1)
        ahead += self._message_iterations  # iterations of a remote group in one message
        control.write(control.end_cell, stop)
        self._reached = end
        self.own.interrupted, self._stop_word.words[0] = False, 0
        if any(worker.needs_pause for worker in self._workers.values()):
            self._settle(control.read(control.limit_cell), timed=timed)
            return self._iteration_reached(control.read(control.limit_cell))
        if end + self._ahead >= stop:
            self._settle(stop, timed=timed)
            return self._iteration_reached(stop)
        limit = max(control.read(control.limit_cell), min(stop, end + ahead))
        control.write(control.limit_cell, limit)
        wake_all(self.context.wake_events)
        self._advance(end, timed=timed)
        self._report_failures()
        return self._iteration_reached(end)

    def _report_failures(self) -> None:
        for worker in self._workers.values():
            for text, lost in worker.failures():
                self._on_failure(text, lost)

    def _iteration_reached(self, end: int) -> int:
        """Return the iteration that this thread's lane has reached: `end` unless interrupted.

        A lane that was interrupted at its very last call is not at the end of the segment, because
        other lanes may not be there.
        """
        if self.own.interrupted:
            reached = int(self.own.round + self.own.ahead)
            limit = self.control.read(self.control.limit_cell)
            self._reached = end = min(reached, limit - 1)
        return end

    def _advance(self, end: int, *, timed: bool) -> None:
        """Run this thread's lanes up to iteration `end`; with a pace, one iteration at a time."""
        pace_s, run = self.context.pace_s, self._serial if self.hosting == "one" else self.own.run
        if pace_s is None:
            run(end, timed=timed)
            return
        released = time.perf_counter()
        for each in range(self._paced + 1, end + 1):
            run(each, timed=timed and each == end)
            if self.own.interrupted:
                return
            self._paced = each
            released += pace_s
            time.sleep(max(0.0, released - time.perf_counter()))

    def _settle(self, end: int, *, timed: bool) -> None:
        """End the segment at iteration `end`: all lanes come there, and arrays reach this host."""
        control = self.control
        # A worker that sees the flush must see a limit that lets it get there: the limit is first.
        control.write(control.limit_cell, end)
        control.write(control.flush_cell, end)
        wake_all(self.context.wake_events)
        self._advance(end, timed=timed)
        if self.own.interrupted:
            return
        if self.hosting == "one":
            if min(r.round for r in self._all) < end:
                raise LaneError(
                    f"the plan's lanes wait for each other: {self.describe_blocked_lanes()}"
                )
            for runner in self._all:
                runner.begin_segment(end)
        else:
            self.own.finish_segment(end)
            if self.own.interrupted:
                return
            self._wait_for_lanes(range(control.lanes), lambda flushed: flushed >= end)
        for worker in self._workers.values():
            worker.on_pause()
        self.context.residency.download_all()

    def _wait_for_lanes(self, lanes: Collection[int], arrived: Callable[[int], bool]) -> None:
        """Wait until the iteration that each lane has flushed to satisfies `arrived`."""
        control = self.control
        while not all(arrived(control.read(control.flushed_cell(n))) for n in lanes):
            self.monitor.poll()
            time.sleep(0)

    def halt(self) -> int:
        """Bring all lanes to the limit that the workers have; if a call was interrupted, park all
        lanes where they are. Returns the iteration that this thread's lane has reached."""
        control = self.control
        limit = control.read(control.limit_cell)
        if not self.own.interrupted and control.read(control.flush_cell) < limit:
            self._settle(limit, timed=False)
        if not self.own.interrupted:
            return limit
        control.write(control.park_cell, 1)
        wake_all(self.context.wake_events)
        self._wait_for_lanes({*self._workers, *self._remote}, lambda flushed: flushed == PARKED)
        self.context.residency.download_all()
        return self._iteration_reached(limit)

    def under_way(self) -> dict[str, int]:
        """Return all counts of an interrupted iteration, and the iteration at which all lanes were
        last at the same one; empty if none is interrupted."""
        counts = dict(zip(self.control.tasks, self.counts(), strict=True))
        return {BEGIN: self.own.begin, **counts} if self.own.interrupted else {}

    def fetch(self, *prefixes: str) -> None:
        """Copy arrays from devices to the host, by prefixes of their names."""
        self.context.residency.download(*prefixes)

    def cpu_s(self) -> float:
        """Return the CPU-seconds of this process and of the workers so far."""
        others_s = sum(worker.cpu_s() for worker in self._workers.values())
        return time.process_time() + self.monitor.ended_cpu_s + others_s

    def threads(self) -> dict[str, list[cpu_wait.Thread]]:
        """Map each lane to the threads that run it; this thread stands for lanes that it runs."""
        others = {self.lane_name(n): [w.thread] for n, w in self._workers.items() if w.thread}
        return {self.lane_name(self.context.protocol.home): cpu_wait.current_threads(), **others}

    def _serial(self, end: int, *, timed: bool = False) -> None:
        """Run all lanes in this thread: each as far as it can go, then the next."""
        flush = self.control.read(self.control.flush_cell) == end
        limit = end if flush else self.control.read(self.control.limit_cell)
        target = end - (0 if flush else self.own.ahead)
        while sum(
            r.try_advance(limit, target if r is self.own else limit, timed and end, flush=flush)
            for r in self._all
        ):
            if self.own.interrupted or (not flush and self.own.round >= target):
                return

    def describe_blocked_lanes(self) -> str:
        """Name the lanes of this thread and the tasks that they wait for."""
        runners = self._runners()
        return "; ".join(f"{r.name} waits for {', '.join(r.waits_for())}" for r in runners)

    def counts(self) -> tuple[int, ...]:
        """Return the counts of all tasks."""
        return tuple(self.control.read(c) for c in range(len(self.control.tasks)))

    def counts_of(self, number: int) -> tuple[int, ...]:
        """Return the counts of a lane's tasks."""
        tasks = self.context.protocol.lanes[number].tasks
        return tuple(self.control.read(self.control.count_cell(t)) for t in tasks)

    def env_step_under_way(self, number: int) -> str | None:
        """Describe the step that is the next firing of a lane, if it has all its tokens, with
        its environment, its episode and its step; else None."""
        task = recovery.env_step_under_way(self.context.protocol, number, self.control)
        return self._describe_env_step(task) if task else None

    def env_steps_under_way(self) -> list[str]:
        """Describe the env_steps of workers that have all their tokens."""
        found = [self.env_step_under_way(n) for n, w in self._workers.items() if w.steps_envs]
        return [text for text in found if text]

    def _describe_env_step(self, task: str) -> str:
        context, control = self.context, self.control
        program = context.protocol.graph.task(task).kernel.program
        name = channels.array_name(context.protocol, task, "episode.count")
        episode, step = int(context.arrays[name][0]) + 1, control.read(control.count_cell(task))
        return f"environment {program!r} of {task}, episode {episode}, step {step},"

    def environments(self) -> dict[str, Any]:
        """Return snapshots of the external environments, between two segments."""
        snapshots = external_envs.snapshot(self.thread_environments)
        for number, worker in self._workers.items():
            at = self.control.read(self.control.flushed_cell(number))
            snapshots |= worker.environments(at)
        return snapshots

    @property
    def thread_environments(self) -> dict[str, Any]:
        """The external environments that this thread steps."""
        return {name: env for r in self._runners() for name, env in r.environments.items()}

    @property
    def process_environments(self) -> dict[str, Any]:
        """The external environments that the threads of this process step."""
        threads = [w.runner for w in self._workers.values() if isinstance(w, ThreadWorker)]
        others = {name: env for r in threads for name, env in r.environments.items()}
        return self.thread_environments | others

    def _runners(self) -> list[Any]:
        """The lanes of this thread."""
        return self._all or [self.own]

    def add_measurements(
        self, times_ns: Mapping[str, list[int]], lags: Lags, records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add what a lane has measured."""
        self.records += records
        for name, values in times_ns.items():
            self.times_ns.setdefault(name, []).extend(values)
        add_lags(self.lags, lags)

    def close(self) -> None:
        """End all workers and collect their measurements."""
        self.control.write(self.control.stop_cell, 1)
        wake_all(self.context.wake_events)
        for worker in self._workers.values():
            self.add_measurements(*worker.join())
            self.traffic += worker.traffic()
        self._report_failures()
        if hasattr(self, "own"):
            for runner in self._runners():
                self.add_measurements(runner.times_ns, runner.lags, [runner.record()])
                external_envs.close(runner.environments)
        self._workers.clear()
        for event in self.context.wake_events:
            event.close()
        self.context.wake_events = []
        self.cells.close()
