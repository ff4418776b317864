"""Plans of one lane: calls bound in the plan's order, and the hot loop over them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from pearl.errors import SpecError
from pearl.graph.sequential import blocked, fire, program_order
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.runtime import waiting
from pearl.runtime.protocol.residency import Residency
from pearl_devices import Buffers, Call, Device, Kernel, Platform, backend, buffers, offers
from pearl_devices.base import finish
from pearl_devices.kernels import kind_of

TIMES = 2048
"""Most times that are kept of a call, so that a run of days needs no more memory."""


class LaneError(Exception):
    """A lane cannot go on; the text names it and says why."""


@dataclass(frozen=True)
class Job:
    """A kernel to bind.

    tasks: those that the kernel covers: one, or all members of a fused mode.
    number: of the device among those of its kind on the platform, from 0.
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
        """Whether its device has memory of its own."""
        return hasattr(backend(self.device_kind), "memory")

    @property
    def outside(self) -> bool:
        """Whether it steps environments that live outside the arrays."""
        steps = kind_of(self.kernel).structure == "environment"
        return steps and self.variant != "native" and not self.own_memory


@dataclass(frozen=True)
class BoundCall:
    """One call of a lane's round.

    learns: the call passes its tokens without work before learning begins.
    """

    job: Job
    call: Call
    learns: bool


def jobs(plan: Plan, graph: TaskGraph, platform: Platform, *, emulate: bool) -> dict[str, Job]:
    """Task → the job that runs it. Members of a fused mode share one.

    emulate: the host computes what the plan gives to devices that are not here, in the plan's
    variant where the host has it and in the host's first one elsewhere.
    """
    found: dict[str, Job] = {}
    for task in graph.tasks:
        if task.name in found:
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
        found.update(dict.fromkeys(members, job))
    return found


def one_lane_order(plan: Plan, graph: TaskGraph) -> tuple[str, ...]:
    """The order of the plan's only lane, checked: each firing finds its tokens and each channel is
    read before it is written again, since one lane keeps one slot a channel."""
    order = next(lane.order for lane in plan.lanes if lane.width > 0)
    tokens = [e.tokens for e in graph.edges]
    for entry in order:
        why = blocked(graph, tokens, entry.task)
        if why:
            raise SpecError(f"plan: {entry.task} cannot fire at its place in the order: {why}")
        fire(graph, tokens, entry.task)
    counts = Counter(entry.task for entry in order)
    if dict(counts) != dict(graph.repetition):
        raise SpecError(
            f"plan: firings a round are {dict(counts)}; the graph asks {dict(graph.repetition)}"
        )
    return tuple(entry.task for entry in order)


def bind(
    order: Sequence[str],
    by_task: Mapping[str, Job],
    learning: Iterable[str],
    arrays: Buffers,
    residency: Residency | None = None,
) -> tuple[BoundCall, ...]:
    """The calls of one round. A fused mode is called once, at its first member's place."""
    learns, residency = set(learning), residency or Residency(by_task, arrays)
    calls: dict[Job, Call] = {}
    steps: list[BoundCall] = []
    for task in order:
        job = by_task[task]
        if len(job.tasks) > 1 and job in calls:
            continue
        if job not in calls:
            calls[job] = residency.bound(job, arrays)
        steps.append(BoundCall(job, calls[job], job.tasks[0] in learns))
    return tuple(steps)


class OneLane:
    """A plan whose only lane does everything: no waits, one slot a channel.

    iteration: iterations done.
    pace_s: least seconds between the beginnings of two iterations.
    fetch: brings arrays from devices, by the beginnings of their names.
    """

    alone = True

    def __init__(
        self,
        steps: Sequence[BoundCall],
        arrays: Buffers,
        warm: int,
        residency: Residency,
        *,
        iteration: int = 0,
        pace_s: float | None = None,
    ) -> None:
        self.iteration, self.times_ns = iteration, dict[str, list[int]]()
        self.lags: dict[str, dict[int, int]] = {}
        self._steps, self._arrays, self._warm, self._pace_s = steps, arrays, warm, pace_s
        self._residency, self.fetch = residency, residency.fetch
        residency.load()
        self._acting = [s.call for s in steps if not s.learns]
        self._calls = [s.call for s in steps]

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Iterations up to `end`; timed: with a clock around the calls of the last."""
        calls = self._acting if self.iteration < self._warm else self._calls
        whole = end - self.iteration - timed
        if self._pace_s:
            released = time.perf_counter()
            for _ in range(whole):
                run(calls, 1, self._arrays)
                released += self._pace_s
                time.sleep(max(0.0, released - time.perf_counter()))
        else:
            run(calls, whole, self._arrays)
        if timed:
            timed_round(self._steps, self.times_ns)
        self.iteration = end
        if end == stop:
            self._residency.settle()
        return end

    def halt(self) -> int:
        self._residency.settle()
        return self.iteration

    def cpu_s(self) -> float:
        return time.process_time()

    def threads(self) -> dict[str, list[waiting.Thread]]:
        return {"": waiting.here()}


def run(calls: Sequence[Call], rounds: int, arrays: Buffers) -> None:
    """The hot loop: `rounds` iterations of all calls. Where one call is a whole iteration that can
    repeat itself (`loop.more`), it is called once for all of them."""
    more = arrays.get("loop.more")
    if more is not None and len(calls) == 1 and rounds > 0:
        more[0] = rounds - 1
        calls[0]()
        more[0] = 0
        return
    for _ in range(rounds):
        for call in calls:
            call()


def timed_round(steps: Sequence[BoundCall], times_ns: dict[str, list[int]]) -> None:
    """One iteration with a clock around every call; appends nanoseconds by job name."""
    for step in steps:
        begin = perf_counter_ns()
        step.call()
        finish(step.call)
        note(times_ns, step.job.name, perf_counter_ns() - begin)


def note(times_ns: dict[str, list[int]], name: str, spent_ns: int) -> None:
    """One more time of a call; of very many the older half is forgotten."""
    kept = times_ns.setdefault(name, [])
    kept.append(spent_ns)
    if len(kept) >= TIMES:
        del kept[: TIMES // 2]


def medians_s(times_ns: dict[str, list[int]]) -> dict[str, tuple[float, int]]:
    """Job name → (median seconds a call, number of calls timed)."""
    values: dict[str, npt.NDArray[np.int64]] = {k: np.asarray(v) for k, v in times_ns.items()}
    return {name: (float(np.median(v)) * 1e-9, v.size) for name, v in values.items()}


def profile(
    graph: TaskGraph, fused: Job, arrays: Buffers, rounds: int
) -> dict[str, tuple[float, int]]:
    """Median seconds a firing of each member of a fused call, run one by one for `rounds` rounds.

    Works on copies of all arrays that are not storage of transitions, so that training results stay
    as they are; the priorities in the tree are among the copies. Rows of the storage that a member
    overwrites are put back.
    """
    own = {
        name: array if _stored(name, array) else array.copy()
        for name, array in arrays.items()
        if not name.startswith("batch.")
    }
    lent = {name: array for name, array in own.items() if _stored(name, array)}
    written = np.arange(0)
    for task in fused.tasks:
        if kind_of(graph.task(task).kernel).structure != "insert":
            continue
        firings = (rounds + 1) * graph.repetition[task]
        rows = firings * graph.task(task).kernel.dim("envs")
        head, capacity = int(arrays["replay.cursor"][0]), len(arrays["replay.reward"])
        written = (head + np.arange(rows)) % capacity
    kept = {name: array[written] for name, array in lent.items()}
    members, wide = {}, Device(fused.device_kind, fused.device_kind, width=2)
    for t in fused.tasks:
        kernel, variant = graph.task(t).kernel, fused.variant
        if variant not in dict(offers(kernel, wide)):
            variant = variant.removesuffix("-pair")  # of a pair, what one of the two does alone
        members[t] = Job((t,), kernel, fused.device_kind, variant, fused.number)
    buffers.allocate([job.kernel for job in members.values()], own)
    order = [t for t in program_order(graph) if t in members]
    steps = bind(order, members, (), own)
    times_ns: dict[str, list[int]] = {}
    run([s.call for s in steps], 1, own)
    for _ in range(rounds):
        timed_round(steps, times_ns)
    for name, array in lent.items():
        array[written] = kept[name]
    return medians_s(times_ns)


def _stored(name: str, array: npt.NDArray[np.generic]) -> bool:
    """Whether an array is storage of transitions, too large to copy."""
    return name.startswith("replay.") and array.ndim > 1
