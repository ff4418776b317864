"""One lane: the firings of a plan in their order, bound to calls, executed round after round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from pearl.errors import SpecError
from pearl.graph import TaskGraph
from pearl.plans import Plan
from pearl_devices import Buffers, Call, Kernel, Platform, backend, buffers


@dataclass(frozen=True)
class Job:
    """A kernel to bind: the tasks it covers (one, or all members of a fused mode), on which device
    kind and in which variant."""

    tasks: tuple[str, ...]
    kernel: Kernel
    device_kind: str
    variant: str

    @property
    def name(self) -> str:
        return "+".join(self.tasks)


@dataclass(frozen=True)
class Step:
    """One call of a lane's round. learns: it passes its tokens without work before learning."""

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
        kind, variant = platform.device(placed.device).kind, placed.variant
        if emulate:
            host = platform.device(platform.host)
            offered = [name for name, _ in backend(host.kind).offers(kernel, host)]
            if not offered:
                raise SpecError(
                    f"plan: the host cannot compute {'+'.join(members)} ({kernel.kind}), "
                    f"which the plan gives to {placed.device}; it cannot be emulated here"
                )
            kind, variant = host.kind, variant if variant in offered else offered[0]
        job = Job(members, kernel, kind, variant)
        found.update(dict.fromkeys(members, job))
    return found


def program_order(graph: TaskGraph) -> tuple[str, ...]:
    """The firings of one iteration in the order of the sequential program: always the first task,
    in the graph's order, that can fire."""
    tokens = [e.tokens for e in graph.edges]
    left = dict(graph.repetition)
    order: list[str] = []
    while any(left.values()):
        able = (n for n, count in left.items() if count and not _blocked(graph, tokens, n))
        name = next(able, None)
        if name is None:
            raise SpecError(
                f"graph {graph.name!r}: no task can fire after {order}; firings left are {left}"
            )
        _fire(graph, tokens, name)
        left[name] -= 1
        order.append(name)
    return tuple(order)


def _blocked(graph: TaskGraph, tokens: Sequence[int], name: str) -> str | None:
    """Why `name` cannot fire now, or None. A data channel has the least capacity that its rates
    allow: one slot where a firing gives what a firing takes."""
    for e, here in zip(graph.edges, tokens, strict=True):
        if e.dst == name and here < e.consumption:
            return f"{e.src} has not given it what it needs"
        if e.src == name and e.is_channel and here + e.production > e.least_capacity:
            return f"{e.dst} has not yet read what it gave before"
    return None


def _fire(graph: TaskGraph, tokens: list[int], name: str) -> None:
    for i, e in enumerate(graph.edges):
        tokens[i] += (e.production if e.src == name else 0) - (
            e.consumption if e.dst == name else 0
        )


def refuse_slack(plan: Plan) -> None:
    """A plan with slack is a SpecError: what runs here, or is emulated, is the sequential program,
    and calling that a plan with a policy lag or a prefetch would be untrue."""
    slack = [f"{e.src} → {e.dst} ({e.slack})" for e in plan.edges if e.slack]
    if slack:
        raise SpecError(
            f"the plan has slack on {', '.join(slack)}; this version plans with slack but trains "
            "and emulates without: leave the slack limits at 0"
        )


def one_lane_order(plan: Plan, graph: TaskGraph) -> tuple[str, ...]:
    """The order of the plan's only lane, checked: each firing finds its tokens and each channel is
    read before it is written again, since one lane keeps one slot a channel.

    A plan with more lanes or with entries that run ahead is a SpecError saying so.
    """
    lanes = [lane for lane in plan.lanes if lane.width > 0]
    if len(lanes) > 1:
        raise SpecError(
            f"the plan has {len(lanes)} lanes ({', '.join(lane.lane for lane in lanes)}); this "
            "version trains on one lane: set limits.max_lanes to 1, or emulate the plan"
        )
    order = lanes[0].order
    if any(entry.offset for entry in order):
        raise SpecError("the plan's lane runs entries ahead of their iteration; one lane cannot")
    tokens = [e.tokens for e in graph.edges]
    for entry in order:
        why = _blocked(graph, tokens, entry.task)
        if why:
            raise SpecError(f"plan: {entry.task} cannot fire at its place in the order: {why}")
        _fire(graph, tokens, entry.task)
    counts = Counter(entry.task for entry in order)
    if dict(counts) != dict(graph.repetition):
        raise SpecError(
            f"plan: firings a round are {dict(counts)}; the graph asks {dict(graph.repetition)}"
        )
    return tuple(entry.task for entry in order)


def bind(
    order: Sequence[str], by_task: dict[str, Job], learning: Iterable[str], arrays: Buffers
) -> tuple[Step, ...]:
    """The calls of one round. A fused mode is called once, at its first member's place."""
    learns = set(learning)
    calls: dict[Job, Call] = {}
    steps: list[Step] = []
    for task in order:
        job = by_task[task]
        if len(job.tasks) > 1 and job in calls:
            continue
        if job not in calls:
            calls[job] = backend(job.device_kind).bind(job.kernel, job.variant, arrays)
        steps.append(Step(job, calls[job], job.tasks[0] in learns))
    return tuple(steps)


def run(calls: Sequence[Call], rounds: int) -> None:
    """The hot loop: `rounds` iterations of all calls."""
    for _ in range(rounds):
        for call in calls:
            call()


def timed_round(steps: Sequence[Step], times_ns: dict[str, list[int]]) -> None:
    """One iteration with a clock around every call; appends nanoseconds by job name."""
    for step in steps:
        begin = perf_counter_ns()
        step.call()
        times_ns.setdefault(step.job.name, []).append(perf_counter_ns() - begin)


def medians_s(times_ns: dict[str, list[int]]) -> dict[str, tuple[float, int]]:
    """Job name → (median seconds a call, number of calls timed)."""
    values: dict[str, npt.NDArray[np.int64]] = {k: np.asarray(v) for k, v in times_ns.items()}
    return {name: (float(np.median(v)) * 1e-9, v.size) for name, v in values.items()}


def profile(
    graph: TaskGraph, fused: Job, arrays: Buffers, rounds: int
) -> dict[str, tuple[float, int]]:
    """Median seconds a firing of each member of a fused call, run one by one for `rounds` rounds.

    Works on copies of all arrays that are not storage of transitions, so that training results stay
    as they are; the priorities in the tree are among the copies.
    """
    own = {
        name: array if name.startswith("replay.") and array.ndim > 1 else array.copy()
        for name, array in arrays.items()
        if not name.startswith("batch.")
    }
    members = {
        t: Job((t,), graph.task(t).kernel, fused.device_kind, fused.variant) for t in fused.tasks
    }
    buffers.allocate([job.kernel for job in members.values()], own)
    order = [t for t in program_order(graph) if t in members]
    steps = bind(order, members, (), own)
    times_ns: dict[str, list[int]] = {}
    run([s.call for s in steps], 1)
    for _ in range(rounds):
        timed_round(steps, times_ns)
    return medians_s(times_ns)
