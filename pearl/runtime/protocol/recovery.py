"""Recovery after a lane's process dies: find the incomplete firing and decide whether it can be
replayed.

The counts say which firings of the lane are complete. The next one may be half done. It is done
again where this gives the same result: tasks that send messages write the same slot, the replay's
rows lie where the cursor was, and random streams go back to the number of their firing. A gradient
step cannot be repeated: its parameters and moments would change twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pearl.runtime.protocol import channels
from pearl.runtime.protocol.control_block import ControlBlock, WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule, Firing
from pearl.runtime.protocol.single_lane import Job
from pearl_devices import Buffers, Call
from pearl_devices.buffers import specs
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.arrays import ANEW
from pearl_devices.kernels.interface import OBSERVED, changes

ATTEMPTS = 3
"""Deaths of a lane at one firing after which the lane is not started again."""

RESET = 2**63
"""Added to a firing's number for the random stream from which its environments start anew."""


@dataclass(frozen=True)
class Begun:
    """Counts when the lanes began.

    fired: task → its firings.
    counted: name of an array → its counts.
    """

    fired: Mapping[str, int]
    counted: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(arrays: Buffers, fired: Mapping[str, int]) -> Begun:
        names = [n for n in arrays if n.startswith("rng.") or n == "replay.cursor"]
        return Begun(fired, {n: tuple(int(v) for v in arrays[n]) for n in names})


def obstacle(protocol: ExecutionSchedule, number: int) -> str | None:
    """Why a lane cannot go on in another process after its own has died; None where it can."""
    stored = any(kind_of(t.kernel).structure == "insert" for t in protocol.graph.tasks)
    for firing in protocol.lanes[number].firings:
        for task in firing.tasks:
            kernel = protocol.graph.task(task).kernel
            kind = kind_of(kernel)
            if firing.late:
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
    """The task of the user's own that changes observations before a network reads them."""
    return next((t.name for t in protocol.graph.tasks if OBSERVED in changes(t.kernel)), "")


def rebuild_counts(
    protocol: ExecutionSchedule,
    number: int,
    jobs: Mapping[str, Job],
    arrays: Buffers,
    board: ControlBlock,
    begun: Begun,
    span: WorkRange,
    learning: Sequence[str],
) -> int | None:
    """Set the counts of a dead lane without an `obstacle` to its complete firings.

    Native environments that were being stepped start anew. Returns the transitions of the firing
    that was cut off; None if that was no env_step.
    """
    _, cut_off = next_firing(protocol, number, board)
    lost = None
    for task in protocol.lanes[number].tasks:
        kernel = protocol.graph.task(task).kernel
        count = board.read(board.count(task))
        learns = protocol.graph.origin(task)[0] in learning
        works = _works(protocol, task, begun.fired[task], count, span, learns)
        structure = kind_of(kernel).structure
        per = kernel.dim("steps") if structure == "sample" else 1
        for name in specs(kernel):
            if name.startswith("rng."):
                own = channels.array_name(protocol, task, name)
                arrays[own][1] = np.uint64(begun.counted[own][1] + len(works) * per)
        if structure == "insert":
            rows, (head, filled) = len(works) * kernel.dim("envs"), begun.counted["replay.cursor"]
            capacity = arrays["replay.reward"].size
            arrays["replay.cursor"][:] = (head + rows) % capacity, min(filled + rows, capacity)
        if structure == "environment" and task in cut_off.tasks:
            lost = kernel.dim("envs")
            if jobs[task].variant == "native":
                from pearl_devices.primitives.envs.native_envs import reset_envs

                seen = channels.view(protocol, arrays, kernel, task, {})
                reset_envs(str(kernel.program), seen, RESET + count)
    return lost


def _works(
    protocol: ExecutionSchedule, task: str, before: int, count: int, span: WorkRange, learns: bool
) -> range:
    """The firings before … count − 1 of a task that did work, by number.

    Not for a task that copies, which counts nothing in the arrays.
    """
    q, delay = protocol.graph.repetition[task], protocol.delay[task]
    begins = max(before, max(span.warm if learns else 0, span.drained) * q + delay)
    return range(begins, max(begins, min(count, span.total * q + delay)))


def next_firing(
    protocol: ExecutionSchedule, number: int, board: ControlBlock
) -> tuple[int, Firing]:
    """The first incomplete firing of a lane by its counts, with its round: (round, firing)."""
    q, found = protocol.graph.repetition, []
    for place, firing in enumerate(protocol.lanes[number].firings):
        rounds = min(
            (board.read(board.count(t)) - base) // q[t] + 1 for t, base in firing.done.items()
        )
        found.append((rounds, place))
    at, place = min(found)
    return at, protocol.lanes[number].firings[place]


def waits_in_env_step(protocol: ExecutionSchedule, number: int, board: ControlBlock) -> bool:
    """Whether the next firing of a lane is an env_step that has all its tokens."""
    at, firing = next_firing(protocol, number, board)
    found = [kind_of(protocol.graph.task(t).kernel).structure for t in firing.tasks]
    return found == ["environment"] and all(
        board.read(board.count(w.task)) >= w.base + at * w.step for w in firing.waits
    )


def steps_outside(protocol: ExecutionSchedule, number: int, jobs: Mapping[str, Job]) -> bool:
    """Whether a lane steps environments that live outside the arrays."""
    return any(jobs[t].outside for t in protocol.lanes[number].tasks)


def marked(
    protocol: ExecutionSchedule,
    f: Firing,
    jobs: Mapping[str, Job],
    arrays: Buffers,
    calls: Sequence[Call],
) -> Sequence[Call]:
    """The calls of a native env_step, of which the first marks its transitions as a new start that
    no n-step return enters. Others are left as they are."""
    job, first = jobs[f.tasks[0]], [True]
    if kind_of(job.kernel).structure != "environment" or job.variant != "native":
        return calls

    def marking(call: Call, number: int) -> Call:
        slots = {sender: s.at(number) for sender, s in f.slots.items()}
        flags = channels.view(protocol, arrays, job.kernel, f.tasks[0], slots)["step.truncated"]

        def step() -> None:
            call()
            if first:
                flags[...] |= ANEW
                first.clear()

        return step

    return [marking(call, number) for number, call in enumerate(calls)]
