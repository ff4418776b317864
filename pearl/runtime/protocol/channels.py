"""The arrays of a run with several lanes: their memory, and the slots and rows that a call sees.

A message (`KernelKind.sends`) has as many slots as firings may be under way: slot 0 has the name of
the array, slot k the name with `@k`. A replica of a split task sees its rows of an array that has a
row for each environment. It has some arrays of its own, `#i`, such as a random stream
(`KernelKind.per_copy`); so has every group of environments, `@k` (`KernelKind.per_group`).
`version.TASK` says which version of the parameters each slot holds.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl.graph.task_graph import TaskGraph
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl_devices import Buffers, Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.record import matches
from pearl_devices.system import host_system

Layout = list[tuple[str, tuple[int, ...], str]]
"""Name, shape and dtype of every array, in the order in which they lie in memory."""

ALIGNED = 64


def is_sent(name: str, protocol: ExecutionSchedule, sender: str) -> bool:
    """Whether an array is part of the message of task `sender`."""
    return name in protocol.sent[sender]


def extra_arrays(protocol: ExecutionSchedule, whole: TaskGraph, arrays: Buffers) -> Layout:
    """Return the arrays that a run of this plan has in addition to the arrays of one lane."""
    found: Layout = []
    for sender, count in protocol.slots.items():
        origin = protocol.graph.origin(sender)
        if origin[1] > 0 and sender not in {t.name for t in whole.tasks}:
            continue  # the first replica stands for all: they share slots
        for name in protocol.sent[sender]:
            array = arrays[name]
            found += [(f"{name}@{k}", array.shape, array.dtype.name) for k in range(1, count)]
    for task in protocol.graph.tasks:
        kind = kind_of(task.kernel)
        for name in (n for n in kind.arrays(task.kernel) if n in arrays):
            array, source = arrays[name], array_name(protocol, task.name, name)
            if source != name:
                found.append((source, array.shape, array.dtype.name))
            if matches(name, kind.per_group):
                groups = range(1, protocol.groups.get(task.name, 1))
                found += [(f"{source}@{k}", array.shape, array.dtype.name) for k in groups]
        if task.copies and not protocol.is_single_lane:
            found.append((version_array_name(task.name), (protocol.slots[task.name],), "int64"))
    return list(dict.fromkeys(found))


def version_array_name(task: str) -> str:
    """Return the name of the int64 array with the version in each slot of a copying task: the
    number of the firing that wrote the slot, from 1; 0 for the parameters at the start."""
    return f"version.{task}"


def array_name(protocol: ExecutionSchedule, task: str, name: str) -> str:
    """Return the name, among the arrays of the run, of the array that `task` calls `name`."""
    of = protocol.graph.task(task)
    own = of.part is not None and matches(name, kind_of(of.kernel).per_copy)
    return f"{name}#{of.part.replica}" if of.part and own else name


def task_view(
    protocol: ExecutionSchedule,
    arrays: Buffers,
    kernel: Kernel,
    task: str,
    slots: Mapping[str, int],
    group: int = 0,
) -> Buffers:
    """Return the arrays as one call sees them.

    slots: sender → the slot of its message.
    group: the group of environments that the call steps.
    """
    part, kind = protocol.graph.task(task).part, kind_of(kernel)
    views = dict(arrays)
    for name, (shape, _) in kind.arrays(kernel).items():
        source = array_name(protocol, task, name)
        for sender, slot in slots.items():
            if slot and is_sent(name, protocol, sender):
                source = f"{name}@{slot}"
        if group and matches(name, kind.per_group):
            source = f"{source}@{group}"
        array = arrays[source]
        if part and array.shape != shape:
            first = sum(part.shares[: part.replica])
            array = array[first : first + part.shares[part.replica]]
        views[name] = array
    return views


def _close(handle: int) -> None:
    with suppress(OSError):  # code of the user may have closed it
        os.close(handle)


class SharedArrays:
    """Arrays in anonymous memory that other processes map by its file descriptor. The kernel frees
    the memory, however a process ends.

    handle: the file descriptor.
    layout: name, shape and dtype of the arrays.
    arrays: name → array.
    """

    def __init__(self, layout: Layout, handle: int | None = None) -> None:
        places, size = [], 0
        for _, shape, dtype in layout:
            places.append(size)
            size += -(-max(1, math.prod(shape) * np.dtype(dtype).itemsize) // ALIGNED) * ALIGNED
        self.handle = host_system.share_memory("pearl", max(size, 1)) if handle is None else handle
        self._closing = weakref.finalize(self, _close, self.handle)
        self._map = mmap.mmap(self.handle, max(size, 1))
        self.layout = layout
        self.arrays: Buffers = {}
        for (name, shape, dtype), at in zip(layout, places, strict=True):
            count = math.prod(shape)
            flat: npt.NDArray[Any] = np.frombuffer(self._map, dtype, count, at)
            self.arrays[name] = flat.reshape(shape)

    def close(self) -> None:
        self._closing()


def layout_of(arrays: Buffers) -> Layout:
    return [(name, array.shape, array.dtype.name) for name, array in arrays.items()]


def copy_to_shared_memory(arrays: Buffers) -> SharedArrays:
    """Copy arrays to shared memory."""
    memory = SharedArrays(layout_of(arrays))
    for name, array in arrays.items():
        memory.arrays[name][...] = array
    return memory


def latest_parameters_name(protocol: ExecutionSchedule, name: str, iteration: int) -> str:
    """Return the array that holds the latest parameters after `iteration` iterations."""
    for sender, count in protocol.slots.items():
        if is_sent(name, protocol, sender) and count > 1:
            slot = (iteration * protocol.graph.repetition[sender] - 1) % count
            return f"{name}@{slot}" if slot else name
    return name


def episodes(arrays: Buffers) -> Iterable[tuple[Any, Any]]:
    """Yield (returns, count) of every ring of finished episodes; none in a loop that plays none."""
    copies = [n for n in arrays if n.startswith("episode.count#")]
    for count in copies or [n for n in arrays if n == "episode.count"]:
        yield arrays[count.replace("count", "returns")], arrays[count]


def mean_return(arrays: Buffers, last: int = 20) -> float | None:
    """Return the mean return of the last training episodes; None before the first has ended."""
    rings = list(episodes(arrays))
    newest: list[float] = []
    for ring, counter in rings:
        count = int(counter[0])
        first = max(count - -(-last // len(rings)), count - ring.size, 0)
        newest += [ring[i % ring.size] for i in range(first, count)]
    return float(np.mean(newest)) if newest else None


def count_episodes(arrays: Buffers) -> int:
    """Return the number of finished training episodes."""
    return sum(int(counter[0]) for _, counter in episodes(arrays))
