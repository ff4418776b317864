"""Recovery after a lane's process dies: find the incomplete firing and decide whether it can be
replayed.

The counts say which firings of the lane are complete. The next firing may be half done. It is
repeated if the result is the same: tasks that send messages write the same slot, the replay's rows
lie where the cursor was, and random streams return to the number of their firing. A gradient step
cannot be repeated: its parameters and moments would change twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pearl.runtime.protocol import channels
from pearl.runtime.protocol.control_block import ControlBlock, WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule, Firing
from pearl.runtime.protocol.run_context import RunContext
from pearl_devices import Buffers, Call, backend
from pearl_devices.buffers import specs
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.kernels.interface import OBSERVED, changes

ATTEMPTS = 3
"""Deaths of a lane at one firing after which the lane is not restarted."""

RESET = 2**63
"""Added to a firing's number for the random stream from which its environments restart."""


@dataclass(frozen=True)
class StartCounts:
    """Counts when the lanes began.

    fired: task → its firings.
    counted: name of a random stream or cursor → its values.
    """

    fired: Mapping[str, int]
    counted: Mapping[str, tuple[int, ...]]

    @classmethod
    def from_arrays(cls, arrays: Buffers, fired: Mapping[str, int]) -> StartCounts:
        """Read the counts in the arrays as they are now."""
        names = [n for n in arrays if n.startswith("rng.") or n == "replay.cursor"]
        return cls(fired, {n: tuple(int(v) for v in arrays[n]) for n in names})


def restart_obstacle(context: RunContext, number: int) -> str | None:
    """Describe why a lane cannot be restarted in another process; None if it can.

    A call that works in the host's memory is complete when it returns, also where the plan shows
    its result to other lanes later (`handoff_s`).
    """
    protocol = context.protocol
    stored = any(kind_of(t.kernel).structure == "insert" for t in protocol.graph.tasks)
    for firing in protocol.lanes[number].firings:
        for task in firing.tasks:
            kernel = protocol.graph.task(task).kernel
            kind = kind_of(kernel)
            own_memory = hasattr(backend(context.jobs[task].device_kind), "memory")
            if firing.asynchronous and own_memory:
                return f"several firings of {task} may have been under way"
            if not kind.repeatable or len(firing.tasks) > 1:
                return f"{'+'.join(firing.tasks)} may be half done, and cannot be done twice"
            if kind.side == "acts" and not stored:
                return (
                    f"{task} belongs to a rollout of the policy's own episodes, which would be "
                    "torn (only algorithms with a replay go on)"
                )
            if kind.structure == "insert" and kernel.dims.get("stack"):
                return f"the frames of {task} may be half stored"
            if protocol.groups.get(task, 1) > 1:
                return f"the environments of {task} are in groups, of which one may be half done"
            if kind.structure == "environment" and (own := _passed(protocol)):
                return f"the first observations of new episodes would not pass {own}"
            if kernel.dims.get("normalise_obs") or kernel.dims.get("normalise_reward"):
                return f"the running mean and variance of {task} may be half written"
    return None


def _passed(protocol: ExecutionSchedule) -> str:
    """Return the user-defined task that changes observations before a network reads them, or ""."""
    return next((t.name for t in protocol.graph.tasks if OBSERVED in changes(t.kernel)), "")


def rebuild_counts(
    context: RunContext, number: int, control: ControlBlock, start: StartCounts
) -> int | None:
    """Set the random streams and cursors of a dead lane to those after its complete firings.

    The lane has no `restart_obstacle`. Native environments restart if they were being stepped.

    Returns: the transitions of the incomplete firing; None if that firing steps no environment.
    """
    protocol, arrays = context.protocol, context.arrays
    _, cut_off = next_firing(protocol, number, control)
    lost = None
    for task in protocol.lanes[number].tasks:
        kernel = protocol.graph.task(task).kernel
        count = control.read(control.count_cell(task))
        learns = protocol.graph.origin(task)[0] in context.learning
        works = _works(protocol, task, start.fired[task], count, context.span, learns)
        structure = kind_of(kernel).structure
        per = kernel.dim("steps") if structure == "sample" else 1
        for name in specs(kernel):
            if name.startswith("rng."):
                own = channels.array_name(protocol, task, name)
                arrays[own][1] = np.uint64(start.counted[own][1] + len(works) * per)
        if structure == "insert":
            rows, (head, filled) = len(works) * kernel.dim("envs"), start.counted["replay.cursor"]
            capacity = arrays["replay.reward"].size
            arrays["replay.cursor"][:] = (head + rows) % capacity, min(filled + rows, capacity)
        if structure == "environment" and task in cut_off.tasks:
            lost = kernel.dim("envs")
            if context.jobs[task].variant == "native":
                from pearl_devices.primitives.envs.native_envs import reset_envs

                seen = channels.task_view(protocol, arrays, kernel, task, {})
                reset_envs(str(kernel.program), seen, RESET + count)
    return lost


def _works(
    protocol: ExecutionSchedule, task: str, before: int, count: int, span: WorkRange, learns: bool
) -> range:
    """Return the firings of `before` … `count` − 1 of a task that did work.

    This does not hold for a task that copies; such a task advances no stream and no cursor.
    """
    q, delay = protocol.graph.repetition[task], protocol.delay[task]
    begins = max(before, max(span.learning_starts if learns else 0, span.drained_until) * q + delay)
    return range(begins, max(begins, min(count, span.end * q + delay)))


def next_firing(
    protocol: ExecutionSchedule, number: int, control: ControlBlock
) -> tuple[int, Firing]:
    """Return the first incomplete firing of a lane by its counts: (round, firing)."""
    q, rounds_left = protocol.graph.repetition, []
    for place, firing in enumerate(protocol.lanes[number].firings):
        rounds = min(
            (control.read(control.count_cell(t)) - base) // q[t] + 1
            for t, base in firing.done.items()
        )
        rounds_left.append((rounds, place))
    at, place = min(rounds_left)
    return at, protocol.lanes[number].firings[place]


def env_step_under_way(
    protocol: ExecutionSchedule, number: int, control: ControlBlock
) -> str | None:
    """Return the step that is the next firing of a lane, if it has all its tokens; else
    None."""
    at, firing = next_firing(protocol, number, control)
    kinds = [kind_of(protocol.graph.task(t).kernel).structure for t in firing.tasks]
    ready = kinds == ["environment"] and all(
        control.read(control.count_cell(w.task)) >= w.base + at * w.step for w in firing.waits
    )
    return firing.tasks[0] if ready else None


def steps_external_envs(context: RunContext, number: int) -> bool:
    """Whether a lane steps external environments."""
    tasks = context.protocol.lanes[number].tasks
    return any(context.jobs[t].steps_external_envs for t in tasks)


def with_episode_restart(context: RunContext, f: Firing, calls: Sequence[Call]) -> Sequence[Call]:
    """Let the first call of a native step mark its transitions as the start of new episodes, so
    that no n-step return reaches across. Calls of other tasks are returned unchanged."""
    job, first = context.jobs[f.tasks[0]], [True]
    if kind_of(job.kernel).structure != "environment" or job.variant != "native":
        return calls

    def marking(call: Call, number: int) -> Call:
        slots = {sender: s.at(number) for sender, s in f.slots.items()}
        views = channels.task_view(context.protocol, context.arrays, job.kernel, f.tasks[0], slots)
        flags = views["step.truncated"]

        def step() -> None:
            call()
            if first:
                flags[...] |= ANEW
                first.clear()

        return step

    return [marking(call, number) for number, call in enumerate(calls)]
