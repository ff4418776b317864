"""The calls of a lane bound to the slots, rows and groups that they see."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd, lcm
from typing import Any

import numpy as np

from pearl.runtime.environments import external_envs
from pearl.runtime.protocol import channels
from pearl.runtime.protocol.control_block import ControlBlock
from pearl.runtime.protocol.lane_schedule import Firing, Slots
from pearl.runtime.protocol.progress_counters import Ints
from pearl.runtime.protocol.run_context import RunContext
from pearl.runtime.protocol.single_lane import Job, is_interruptible
from pearl_devices import Buffers, Call, Kernel, backend
from pearl_devices.base import Pending, finish
from pearl_devices.kernels import kind_of

Lags = dict[str, dict[int, int]]
"""Name of a lag → firings of lag → how often the lag was measured."""


def add_lags(totals: Lags, lags: Mapping[str, Mapping[Any, int]]) -> None:
    """Add the counts of `lags`, whose keys are strings if they come from JSON, to `totals`."""
    for name, counts in lags.items():
        histogram = totals.setdefault(name, {})
        for lag, count in counts.items():
            histogram[int(lag)] = histogram.get(int(lag), 0) + count


@dataclass(slots=True)
class BoundFiring:
    """A call of the round, as the loop needs it.

    name: of the call.
    offset: rounds by which the call runs ahead.
    which, base, step: int64 of one shape: cells of the counts that the call waits for, the least
        counts in round 0, and their growth a round. `which` is None if the call waits for none.
    calls: round n runs call n modulo their number.
    first, last: the call works in rounds first … last − 1.
    published: (cell, count after round 0, growth a round).
    asynchronous: whether the call may return before the firing is complete.
    interruptible: whether the stop word may interrupt the call.
    lag: takes the round, records the lag of a call and returns it.
    place: of the call in the round.
    """

    name: str
    offset: int
    which: Ints | None
    base: Ints
    step: Ints
    calls: Sequence[Call]
    first: int
    last: int
    published: tuple[tuple[int, int, int], ...]
    asynchronous: bool = False
    interruptible: bool = False
    lag: Callable[[int], int] | None = None
    place: int = 0


class Binder:
    """Binds the kernels of one lane. `lags` collects observed policy lag and priority staleness."""

    def __init__(self, context: RunContext, control: ControlBlock, lane: str) -> None:
        self.context, self.control, self.lane = context, control, lane
        self.protocol, self.arrays = context.protocol, context.arrays
        self.lags: Lags = {}
        self._bound: dict[tuple[Job, int, tuple[tuple[str, int], ...]], Call] = {}
        self._homes: dict[tuple[Job, int], tuple[Buffers, Call]] = {}

    def bind_firing(self, f: Firing) -> BoundFiring:
        """Bind the calls of a firing, one for each combination of slots and group that it meets."""
        protocol, control, span = self.protocol, self.control, self.context.span
        task, job = f.tasks[0], self.context.jobs[f.tasks[0]]
        periods = [s.count // gcd(s.count, s.step) for s in (f.group, *f.slots.values())]
        calls = []
        for number in range(lcm(*periods)):
            slots = {sender: s.at(number) for sender, s in f.slots.items()}
            key = (job, f.group.at(number), tuple(sorted(slots.items())))
            if key not in self._bound:
                self._bound[key] = self._call(job, task, slots, f.group.at(number))
            calls.append(self._bound[key])
        learns = protocol.graph.origin(task)[0] in self.context.learning
        begins = max(span.learning_starts if learns else 0, span.drained_until)
        ends = sys.maxsize if protocol.graph.task(task).copies else span.end
        waits = [(control.count_cell(w.task), w.base, w.step) for w in f.waits]
        columns = [np.array(c, np.int64) for c in zip(*waits, strict=True)] if waits else []
        nothing = np.zeros(0, np.int64)
        which, base, step = columns or (None, nothing, nothing)
        q = protocol.graph.repetition
        return BoundFiring(
            job.name,
            f.offset,
            which,
            base,
            step,
            calls,
            begins - f.work_iteration(0),
            ends - f.work_iteration(0),
            tuple((control.count_cell(t), n, q[t]) for t, n in f.done.items()),
            f.asynchronous,
            is_interruptible(job.kernel),
            self._lag(f),
        )

    def _lag(self, f: Firing) -> Callable[[int], int] | None:
        """Return a function that records and returns, right after a firing, the age of its input,
        or None.

        For acting, that age is the lag of the parameters, in copies of them; for a sample from a
        prioritised replay, the staleness of the priorities, in samples.
        """
        task, control = self.protocol.graph.task(f.tasks[0]), self.control
        structure = kind_of(task.kernel).structure
        if len(f.tasks) > 1:
            return None
        if structure == "network" and f.versions_due:
            ((sender, due),) = f.versions_due.items()
            versions = self.arrays[channels.version_array_name(sender)]
            oldest = self.context.span.learning_starts * due.step  # before, nothing was copied
            slot = f.slots.get(sender, Slots(1, 0, 0))
            histogram = self.lags.setdefault("policy_lag", {})

            def old_parameters(number: int) -> int:
                newest = due.first + number * due.step + 1
                lag = max(0, newest - max(oldest, int(versions[slot.at(number)])))
                histogram[lag] = histogram.get(lag, 0) + 1
                return lag

            return old_parameters
        tasks = self.protocol.graph.tasks
        writers = [t.name for t in tasks if kind_of(t.kernel).structure == "prioritise"]
        if structure == "sample" and writers:
            (writer,) = writers
            behind = self.protocol.delay[writer] - self.protocol.delay[task.name]
            cell, q = control.count_cell(writer), f.per_round
            first = f.offset * q + f.index
            histogram = self.lags.setdefault("priority_staleness", {})

            def old_priorities(number: int) -> int:
                lag = first + number * q - control.read(cell) + behind
                histogram[lag] = histogram.get(lag, 0) + 1
                return lag

            return old_priorities
        return None

    def _call(self, job: Job, task: str, slots: Mapping[str, int], group: int) -> Call:
        kernel = job.kernel
        seen = channels.task_view(self.protocol, self.arrays, kernel, task, slots, group)
        if self.protocol.graph.task(task).copies and len(job.tasks) == 1:
            versions = self.arrays[channels.version_array_name(task)]
            call = self.context.residency.bind_call(job, seen, lane=self.lane)
            return _versioned(call, self.control, task, versions, slots.get(task, 0))
        if not job.steps_external_envs:
            return self.context.residency.bind_call(job, seen, lane=self.lane)
        return self._bind_external_envs(job, task, seen, group)

    def _bind_external_envs(self, job: Job, task: str, seen: Buffers, group: int) -> Call:
        """Bind a call of external environments. They exist once, with separate arrays for messages
        that have several slots, and copy from and to the slot of each call."""
        protocol = self.protocol
        if (job, group) not in self._homes:
            own = channels.task_view(protocol, self.arrays, job.kernel, task, {}, group)
            for name in self._in_slots(job.kernel):
                own[name] = np.zeros_like(own[name])
            call = backend(job.device_kind).bind(job.kernel, job.variant, own)
            self._homes[job, group] = own, call
        home, call = self._homes[job, group]
        kind = kind_of(job.kernel)
        moved, written = self._in_slots(job.kernel), kind.written(kind.arrays(job.kernel))
        given = [(home[n], seen[n]) for n in moved if n not in written]
        taken = [(seen[n], home[n]) for n in moved if n in written]
        if not moved:
            return call

        def step() -> Pending | None:
            for to, here in given:
                to[...] = here
            pending = call()
            for to, here in taken:
                to[...] = here
            return pending

        return step

    def environments(self) -> dict[str, Any]:
        """Return the external environments that were bound, by task and (of several) group."""
        environments: dict[str, Any] = {}
        for (job, group), (_, call) in self._homes.items():
            env = external_envs.external_envs_of(job, call)
            if env is not None:
                part = self.protocol.graph.task(job.tasks[0]).part
                env.first = group * env.envs + (sum(part.shares[: part.replica]) if part else 0)
                environments[f"{job.name}@{group}" if group else job.name] = env
        return environments

    def _in_slots(self, kernel: Kernel) -> list[str]:
        """Return the arrays of a kernel that are part of a message with several slots."""
        senders = [t for t, count in self.protocol.slots.items() if count > 1]
        sent = {name for t in senders for name in self.protocol.sent[t]}
        return [name for name in kind_of(kernel).arrays(kernel) if name in sent]


def _versioned(call: Call, control: ControlBlock, task: str, versions: Ints, slot: int) -> Call:
    """Return a copying call that also writes the version that it leaves in its slot."""
    cell = control.count_cell(task)

    def copy() -> Pending | None:
        pending = call()
        versions[slot] = control.read(cell) + 1
        return pending

    copy.wait = partial(finish, call)  # type: ignore[attr-defined]
    copy.copied_ns = getattr(call, "copied_ns", (0,))  # type: ignore[attr-defined]
    return copy
