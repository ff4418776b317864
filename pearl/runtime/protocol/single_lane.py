"""Plans of one lane: calls bound in the plan's order, and the hot loop over them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from pearl.errors import SpecError
from pearl.graph.sequential import blocking_reason
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.runtime import cpu_wait
from pearl.runtime.protocol.lane_recorder import UNTIMED, LaneRecorder, Sampling, record_time
from pearl.runtime.protocol.residency import Residency
from pearl_devices import Buffers, Call, Kernel, Platform, backend, offers
from pearl_devices.base import finish
from pearl_devices.kernels import kind_of


class LaneError(Exception):
    """A lane cannot continue; the text names the lane and says why."""


@dataclass(frozen=True)
class Job:
    """A kernel to bind.

    tasks: tasks that the kernel covers: one, or all members of a fused mode.
    kernel: the kernel.
    device_kind: kind of the device that runs the kernel.
    variant: implementation of the kernel.
    number: number of the device among the devices of its kind on the platform, from 0.
    """

    tasks: tuple[str, ...]
    kernel: Kernel
    device_kind: str
    variant: str
    number: int = 0

    @property
    def name(self) -> str:
        return "+".join(self.tasks)

    @property
    def own_memory(self) -> bool:
        """Whether the device of the job has memory of its own."""
        return hasattr(backend(self.device_kind), "memory")

    @property
    def steps_external_envs(self) -> bool:
        """Whether the job steps external environments."""
        steps = kind_of(self.kernel).structure == "environment"
        return steps and self.variant != "native" and not self.own_memory


@dataclass(frozen=True)
class BoundCall:
    """One call of a lane's round.

    job: what was bound.
    call: runs the job once.
    learns: whether the call passes its tokens without work before learning begins.
    """

    job: Job
    call: Call
    learns: bool

    @property
    def interruptible(self) -> bool:
        """Whether the stop word may interrupt the call."""
        return is_interruptible(self.job.kernel)


STOP, PART = "loop.stop", "part"
"""Name of the stop word's array; key of `SingleLaneRunner.under_way`."""


def is_interruptible(kernel: Kernel) -> bool:
    """Whether the stop word may interrupt a call. The next call then continues its firing."""
    return STOP in kind_of(kernel).arrays(kernel)


class StopWord:
    """The stop word among the arrays of a run; it is never set if no kernel of the run has one.

    words: two int64: non-zero to stop; gradient steps done of the interrupted firing.
    """

    def __init__(self, arrays: Buffers) -> None:
        self.words = memoryview(arrays.get(STOP, np.zeros(2, np.int64)))

    @property
    def completed_steps(self) -> int:
        """Gradient steps done of the interrupted firing; 0 if none is interrupted."""
        return int(self.words[1])


def jobs_of_plan(
    plan: Plan, graph: TaskGraph, platform: Platform, *, emulate: bool
) -> dict[str, Job]:
    """Map each task to the job that runs it. Members of a fused mode share a job.

    emulate: the host runs all jobs: in the variant of the plan if the host offers that variant,
        else in the host's first variant.

    Raises:
        SpecError: the plan fuses tasks that the algorithm does not, or the host cannot emulate one.
    """
    by_task: dict[str, Job] = {}
    for task in graph.tasks:
        if task.name in by_task:
            continue
        placed = plan.task(task.name)
        members: tuple[str, ...] = (task.name,)
        kernel = task.kernel
        if placed.fused_with:
            wanted = {task.name, *placed.fused_with}
            for fusion in graph.fusions:
                if set(fusion.tasks) == wanted:
                    members, kernel = fusion.tasks, fusion.kernel
                    break
            else:
                raise SpecError(
                    f"plan: {sorted(wanted)} run as one call, which the algorithm does not allow; "
                    f"it allows {[list(f.tasks) for f in graph.fusions]}"
                )
        device, variant = platform.device(placed.device), placed.variant
        kind = device.kind
        number = [d.name for d in platform.devices if d.kind == kind].index(device.name)
        if emulate:
            host = platform.device(platform.host)
            offered = [name for name, _ in offers(kernel, host)]
            if not offered:
                raise SpecError(
                    f"plan: the host cannot compute {'+'.join(members)} ({kernel.kind}), "
                    f"which the plan gives to {placed.device}; it cannot be emulated here"
                )
            kind, variant = host.kind, variant if variant in offered else offered[0]
            number = 0
        job = Job(members, kernel, kind, variant, number)
        by_task.update(dict.fromkeys(members, job))
    return by_task


def one_lane_order(plan: Plan, graph: TaskGraph) -> tuple[str, ...]:
    """Return the order of the plan's only lane, after a check.

    Each firing must find its tokens, and each channel must be read before it is written again,
    because a single lane has one slot a channel.

    Raises:
        SpecError: the order fails the check.
    """
    order = next(lane.order for lane in plan.lanes if lane.width > 0)
    counts = Counter[str]()
    for entry in order:
        reason = blocking_reason(graph, counts, entry.task)
        if reason:
            raise SpecError(f"plan: {entry.task} cannot fire at its place in the order: {reason}")
        counts[entry.task] += 1
    if dict(counts) != dict(graph.repetition):
        raise SpecError(
            f"plan: firings a round are {dict(counts)}; the graph needs {dict(graph.repetition)}"
        )
    return tuple(entry.task for entry in order)


def bind(
    order: Sequence[str],
    by_task: Mapping[str, Job],
    learning: Iterable[str],
    arrays: Buffers,
    residency: Residency | None = None,
) -> tuple[BoundCall, ...]:
    """Bind the calls of one round. A fused mode is called once, in place of its first member."""
    learns, residency = set(learning), residency or Residency(by_task, arrays)
    calls: dict[Job, Call] = {}
    steps: list[BoundCall] = []
    for task in order:
        job = by_task[task]
        if len(job.tasks) > 1 and job in calls:
            continue
        if job not in calls:
            calls[job] = residency.bind_call(job, arrays)
        steps.append(BoundCall(job, calls[job], job.tasks[0] in learns))
    return tuple(steps)


class SingleLaneRunner:
    """A plan whose only lane does everything: no waits, one slot a channel.

    iteration: number of complete iterations.
    times_ns: name of a call → its times.
    fetch: copies arrays from devices to the host, by prefixes of their names.
    """

    is_single_lane = True
    interruptible = True

    def __init__(
        self,
        steps: Sequence[BoundCall],
        arrays: Buffers,
        warm: int,
        residency: Residency,
        *,
        iteration: int = 0,
        pace_s: float | None = None,
        under_way: Mapping[str, int] | None = None,
        sampling: Sampling = UNTIMED,
    ) -> None:
        self.iteration, self.times_ns = iteration, dict[str, list[int]]()
        self.lags: dict[str, dict[int, int]] = {}
        self.traffic: list[dict[str, Any]] = []
        self._warm, self._pace_s = warm, pace_s
        self._residency, self.fetch = residency, residency.download
        residency.upload_all()
        self._stop, self._more = StopWord(arrays), arrays.get("loop.more")
        self.recorder = LaneRecorder.of_calls([s.job.name for s in steps], sampling)
        self._places = {id(s): place for place, s in enumerate(steps)}
        self._acting = split_at_stop_points([s for s in steps if not s.learns])
        self._steps = split_at_stop_points(steps)
        self._part, self._spent_ns = (under_way or {}).get(PART, 0), None if under_way else 0
        if self._part >= len(self._steps):
            raise LaneError(
                f"the checkpoint is in part {self._part} of an iteration that has "
                f"{len(self._steps)} parts"
            )

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Run iterations up to `end`, or until the stop word interrupts one. Returns the iteration.

        timed: time the calls of the last iteration.
        """
        self._stop.words[0] = 0
        if self._stop.completed_steps or self._part:
            self._timed_round()
        released = time.perf_counter()
        while not self._stop.words[0] and self.iteration < end - timed:
            rounds = end - timed - self.iteration
            alike = self.recorder.rounds_alike(self.iteration, rounds)
            self._rounds(1 if self._pace_s else alike)
            if self._pace_s and not self._stop.words[0]:
                released += self._pace_s
                self.recorder.hold(released)
        if timed and not self._stop.words[0] and self.iteration < end:
            self._timed_round()
        if self.iteration == stop:
            self._residency.download_all()
        return self.iteration

    def _rounds(self, rounds: int) -> None:
        """Run `rounds` iterations of all calls: the hot loop. If one call is a whole iteration and
        can repeat it (`loop.more`), one call does all iterations."""
        words, recorder = self._stop.words, self.recorder
        steps = self._acting if self.iteration < self._warm else self._steps
        if self._more is not None and len(steps) == 1 and len(steps[0]) == 1:
            self._more[0], begin = rounds - 1, perf_counter_ns()
            steps[0][0].call()
            recorder.add(0, self.iteration, begin, perf_counter_ns())
            done = rounds - int(self._more[0]) - bool(words[1])
            recorder.count(done)
            self.iteration += done
            self._more[0] = 0
        else:
            places, time_call = self._places, recorder.time_call
            calls = [[(s.call, places[id(s)]) for s in part] for part in steps]
            due, kept = recorder.next_timed(self.iteration), False
            for _ in range(rounds):
                stamped = self.iteration == due
                if stamped:
                    due, kept = recorder.next_timed(due + 1), recorder.keeps(due)
                    recorder.timed_rounds += 1
                recorder.rounds += 1
                for number, part in enumerate(calls):
                    for call, place in part:
                        if stamped:
                            time_call(place, call, self.iteration, kept)
                        else:
                            call()
                    if words[0]:
                        self._on_stop_word(number, len(calls))
                        return
                self.iteration += 1
        if words[1]:
            self._spent_ns = None

    def _on_stop_word(self, number: int, count: int) -> None:
        """The stop word was set in part `number` of `count`, or after it: record where to
        continue."""
        if self._stop.completed_steps:
            self._part, self._spent_ns = number, None
        elif number + 1 < count:
            self._part = number + 1
        else:
            self._part = 0
            self.iteration += 1

    def _timed_round(self) -> None:
        """Run one iteration, or the rest of an interrupted one, and time every call."""
        parts = self._acting if self.iteration < self._warm else self._steps
        self.recorder.begin_timed()
        for number in range(self._part, len(parts)):
            for step in parts[number][-1:] if self._stop.completed_steps else parts[number]:
                begin = perf_counter_ns()
                step.call()
                finish(step.call)
                end, before_ns = perf_counter_ns(), self._spent_ns
                spent_ns = end - begin
                self.recorder.add(self._places[id(step)], self.iteration, begin, end)
                if self._stop.completed_steps:
                    self._part = number
                    self._spent_ns = None if before_ns is None else before_ns + spent_ns
                    return
                if before_ns is not None:
                    record_time(self.times_ns, step.job.name, before_ns + spent_ns)
                self._spent_ns = 0
            if self._stop.words[0]:
                self._on_stop_word(number, len(parts))
                return
        self._part = 0
        self.iteration += 1

    def env_steps_under_way(self) -> list[str]:
        return []

    def halt(self) -> int:
        self._residency.download_all()
        return self.iteration

    def under_way(self) -> dict[str, int]:
        """Return the part in which the stop word interrupted an iteration; empty if it did not."""
        return {PART: self._part} if self._stop.completed_steps or self._part else {}

    def cpu_s(self) -> float:
        return time.process_time()

    def threads(self) -> dict[str, list[cpu_wait.Thread]]:
        return {"": cpu_wait.current_threads()}

    @property
    def records(self) -> list[dict[str, Any]]:
        """The measurements of the lane's recorder."""
        calls = [(s.job.name, s.call) for part in self._steps for s in part]
        return [self.recorder.to_json(calls)]


def split_at_stop_points(steps: Sequence[BoundCall]) -> list[list[BoundCall]]:
    """Split the calls of an iteration after each call that the stop word may interrupt."""
    parts: list[list[BoundCall]] = [[]]
    for step in steps:
        parts[-1].append(step)
        if step.interruptible:
            parts.append([])
    return [part for part in parts if part]
