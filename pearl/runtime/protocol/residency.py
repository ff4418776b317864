"""Residency: which arrays of a run lie on a device with memory of its own, and what is copied.

A call on such a device works on device mirrors of the host's arrays. Before the call, arrays that a
task elsewhere writes are copied to the device. After the call, arrays that it wrote and a task
elsewhere uses are copied to the host. Besides, PEARL copies all mirrors at the start, the arrays
that only devices write at a pause (`download_all`), and arrays for the trainer in between
(`download`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pearl_devices import Buffers, Call, Kernel, backend
from pearl_devices.device_kind import DeviceMemory, Pair
from pearl_devices.kernels import acts, kind_of

if TYPE_CHECKING:
    from pearl.runtime.protocol.single_lane import Job

Place = tuple[str, int] | None
"""Kind and number of a device with memory of its own; None: the host's memory."""


def unsplit_array_name(task: str, name: str) -> str:
    """Return the name, among the arrays of a run, of an array of a task, if no task is split."""
    return name


class Residency:
    """The device mirrors of a run's arrays.

    jobs: task → the call that runs the task.
    arrays: arrays of the run, in the host's memory.
    own: (task, name) → the name among `arrays` of the array that the task calls `name`, without its
        slot.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        arrays: Buffers,
        own: Callable[[str, str], str] = unsplit_array_name,
    ) -> None:
        self._jobs, self._arrays, self._own = jobs, arrays, own
        self._memories: dict[tuple[str, int], DeviceMemory] = {}
        self._mirrors: dict[tuple[Place, str], Any] = {}
        self._calls: list[Call] = []

    def bind_call(
        self, job: Job, seen: Buffers, *, kernel: Kernel | None = None, lane: str = ""
    ) -> Call:
        """Bind a job to `seen`: arrays of the run, or parts of them.

        kernel: kernel of another size than the job's.
        lane: name of the lane that makes the call.
        """
        kernel, device = kernel or job.kernel, backend(job.device_kind)
        memory = self._memory(job)
        if memory is None:
            return device.bind(kernel, job.variant, seen)
        place, kind = (job.device_kind, job.number), kind_of(kernel)
        names = kind.arrays(kernel)
        given = {name: seen[name] for name in names}
        pairs: dict[str, Pair] = {}
        for name in names:
            if memory.holds(kernel, job.variant, name):
                given[name] = self._mirror(memory, place, seen[name])
                pairs[name] = seen[name], given[name]
        written = kind.written(names)
        crosses = {n: self._own(job.tasks[0], n) for n in pairs}
        loads = tuple(p for n, p in pairs.items() if self._writers[crosses[n]] - {place})
        stores = tuple(
            p for n, p in pairs.items() if n in written and self._touching[crosses[n]] - {place}
        )
        starts = acts(kernel)  # environments start when they are bound, on the device
        if starts:
            memory.load(tuple(pairs.values()))
        call = device.bind(kernel, job.variant, given)
        if starts:
            memory.store(tuple(p for n, p in pairs.items() if n in written))
        self._calls.append(call)
        return memory.firing(call, kernel, loads, stores, lane)

    def notes(self) -> list[str]:
        """Return the notes of calls on how they ran, in sentences."""
        return list(dict.fromkeys(n for c in self._calls if (n := getattr(c, "note", ""))))

    def upload_all(self) -> None:
        """Copy all mirrors from the host to the devices."""
        for place, memory in self._memories.items():
            memory.load(tuple(self._pairs(place)))

    def download_all(self) -> None:
        """Copy to the host all arrays that only devices write. No call may be running."""
        self.download("")

    def download(self, *prefixes: str) -> None:
        """Copy to the host the arrays with these prefixes that only devices write."""
        for place, memory in self._memories.items():
            names = [n for at, n in self._mirrors if at == place and n.startswith(prefixes)]
            own = [n for n in names if self._alone(place, n)]
            memory.store(tuple((self._arrays[n], self._mirrors[place, n]) for n in own))

    def _alone(self, place: Place, name: str) -> bool:
        """Whether a device writes an array that no other task uses: no firing copies it back."""
        own = name.partition("@")[0]
        return self._touching[own] == {place} and bool(self._writers[own])

    def _pairs(self, place: Place) -> list[Pair]:
        return [
            (self._arrays[n], mirror) for (at, n), mirror in self._mirrors.items() if at == place
        ]

    def _memory(self, job: Job) -> DeviceMemory | None:
        """Return the memory of a job's device; None if the device works in the host's memory."""
        if not job.own_memory:
            return None
        key = job.device_kind, job.number
        if key not in self._memories:
            kind: Any = backend(job.device_kind)
            self._memories[key] = kind.memory(job.number)
        return self._memories[key]

    def _mirror(self, memory: DeviceMemory, place: Place, array: Any) -> Any:
        """Return the mirror of an array of the run or of a part of one, made on first use."""
        begin, size = array.ctypes.data, max(array.nbytes, 1)
        name, offset = next(
            (name, 0 if whole is array else begin - whole.ctypes.data)
            for name, whole in self._arrays.items()
            if whole is array or 0 <= begin - whole.ctypes.data <= whole.nbytes - size
        )
        whole = self._arrays[name]
        if (place, name) not in self._mirrors:
            self._mirrors[place, name] = memory.twin(whole)
        mirror = self._mirrors[place, name]
        if array.shape == whole.shape:
            return mirror
        return memory.part(mirror, offset // whole.itemsize, array.shape)

    @cached_property
    def _uses(self) -> list[tuple[str, Place, bool]]:
        """Every use of an array by a task: its name without slot, the memory in which the task has
        the array, and whether the task writes it."""
        uses = []
        for task, job in self._jobs.items():
            memory, kind = self._memory(job), kind_of(job.kernel)
            names = kind.arrays(job.kernel)
            written = kind.written(names)
            for name in names:
                held = memory is not None and memory.holds(job.kernel, job.variant, name)
                place = (job.device_kind, job.number) if held else None
                uses.append((self._own(task, name), place, name in written))
        return uses

    @cached_property
    def _touching(self) -> dict[str, set[Place]]:
        """Array → the memories in which tasks have it."""
        found: dict[str, set[Place]] = {}
        for name, place, _ in self._uses:
            found.setdefault(name, set()).add(place)
        return found

    @cached_property
    def _writers(self) -> dict[str, set[Place]]:
        """Array → the memories in which tasks write it."""
        found: dict[str, set[Place]] = {name: set() for name, _, _ in self._uses}
        for name, place, writes in self._uses:
            if writes:
                found[name].add(place)
        return found
