"""`CostTable`: the modes of every task with labelled estimates. Solvers see nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Device, Kernel, Platform
from pearl_devices.validation import (
    LARGEST,
    explain_misfit,
    is_names,
    is_number,
    is_whole,
    quote,
)
from pearl_estimators import Estimate


@dataclass(frozen=True)
class Mode:
    """One way of running a task; with several `tasks` a fused mode.

    Attributes:
        tasks: name of the task, or of all tasks whose firings of an iteration run as one call.
        device: name of the device.
        variant: implementation of the kernel.
        width: units of the device.
        estimate: time and energy of a firing, or of the fused call.
        share: environments of the replica that this mode is for; None: a whole task.
        unit_bytes: memory that the tasks keep on each unit of their lane while the plan runs. A
            lane holds the memory of all its modes, up to `Device.unit_memory_bytes`.

    Raises:
        SpecError: a field has another type.
    """

    tasks: tuple[str, ...]
    device: str
    variant: str
    width: int
    estimate: Estimate
    share: int | None = None
    unit_bytes: float = 0.0

    def __post_init__(self) -> None:
        tasks, share = self.tasks, self.share
        if not is_names(tasks) or not tasks or len(set(tasks)) < len(tasks):
            raise SpecError(f"mode: tasks is {quote(tasks)}; it must be names of tasks, each once")
        where = f"mode of {', '.join(tasks)} on {quote(self.device)}"
        for name, fits, needed in (
            ("device", isinstance(self.device, str), "the name of a device"),
            ("variant", isinstance(self.variant, str), "text"),
            ("width", is_whole(self.width), "a whole number"),
            ("estimate", isinstance(self.estimate, Estimate), "an Estimate"),
            ("share", share is None or (is_whole(share) and share > 0), "a whole number above 0"),
        ):
            if not fits:
                raise SpecError(
                    f"{where}: {name} is {quote(getattr(self, name))}; {needed} is needed"
                )
        if wrong := explain_misfit(self.unit_bytes):
            raise SpecError(f"{where}: unit_bytes {wrong}")
        object.__setattr__(self, "tasks", tuple(tasks))
        object.__setattr__(self, "width", int(self.width))

    @classmethod
    def of(
        cls,
        task: str | tuple[str, ...],
        device: str,
        seconds: float,
        *,
        width: int = 1,
        variant: str = "given",
        energy_j: float = 0.0,
        unit_bytes: float = 0.0,
    ) -> Mode:
        """Return the mode of a task, or of the tasks of a fusion, with known seconds on a device.

        Args:
            seconds: of one firing, or of the fused call.
            energy_j: above idle, per firing or call.

        Raises:
            SpecError: an argument has another type or is out of range.
        """
        tasks = (task,) if isinstance(task, str) else task
        for name, value in (("seconds", seconds), ("energy_j", energy_j)):
            if wrong := explain_misfit(value):
                raise SpecError(f"mode of {quote(task)} on {quote(device)}: {name} {wrong}")
        estimate = Estimate(seconds, energy_j=energy_j)
        return cls(tasks, device, variant, width, estimate, unit_bytes=unit_bytes)

    def scale(self, factor: float, watts: float = 1.0) -> Mode:
        """Return the mode with its times, and its energy, multiplied by `factor`. watts: a further
        factor on its energy."""
        e = self.estimate
        times = ("latency_s", "occupancy_s", "low_s", "high_s")
        values = {name: getattr(e, name) * factor for name in times}
        energy_j = e.energy_j * factor * watts
        return replace(self, estimate=replace(e, **values, energy_j=energy_j))

    @property
    def fused(self) -> bool:
        return len(self.tasks) > 1

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of a mode among the modes of its task: device, variant, width."""
        return self.device, self.variant, self.width


LANE_TERMS = ("apart_extra_s", "shared_extra_s")
"""Fields of a table that depend on whether two tasks share a lane."""

Choice = tuple[str, tuple[str, str, int]]
"""A task and the key of one of its modes."""


@dataclass(frozen=True)
class CostTable:
    """The modes of every task on one platform.

    Attributes:
        platform: the devices that the modes run on.
        modes: all ways of running tasks, alone or fused.
        pair_extra_s: seconds added to every firing of the first (task, mode) if the second is also
            chosen. May be negative as long as the task's time is not; applies to latency and
            occupancy.
        apart_extra_s: (task, other task) → seconds added to every firing of the task if the other
            runs on another lane: the cost of crossing from one group of units to another.
        shared_extra_s: the same, if both tasks run on one lane: the cost of switching a group of
            units between two tasks. For a fused call, both terms count once per firing of its
            member; between members of one call, no term counts.
    """

    platform: Platform
    modes: tuple[Mode, ...]
    pair_extra_s: Mapping[tuple[Choice, Choice], float] = field(default_factory=dict)
    apart_extra_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    shared_extra_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        devices = {d.name: d for d in self.platform.devices}
        seen: set[object] = set()
        order: dict[frozenset[str], tuple[str, ...]] = {}
        for mode in self.modes:
            key = mode.tasks, mode.share, mode.device, mode.variant, mode.width
            if key in seen:
                raise SpecError(
                    f"cost table: {', '.join(mode.tasks)}: two modes of variant {mode.variant!r}, "
                    f"width {mode.width} on {mode.device}; a plan names a mode by device, variant "
                    "and width, so these must differ: give one of the two another variant"
                )
            seen.add(key)
            if mode.fused:
                first = order.setdefault(frozenset(mode.tasks), mode.tasks)
                if first != mode.tasks:
                    raise SpecError(
                        f"cost table: fused modes of {', '.join(first)} and of "
                        f"{', '.join(mode.tasks)}: the same tasks; write them in one order"
                    )
            device = devices.get(mode.device)
            if device is None:
                raise SpecError(
                    f"mode of {', '.join(mode.tasks)}: no device {mode.device!r}; there are "
                    f"{list(devices)}"
                )
            if not 1 <= mode.width <= device.width:
                raise SpecError(
                    f"mode of {', '.join(mode.tasks)} on {mode.device}: width {mode.width}; "
                    f"allowed are 1 to {device.width} {device.width_unit}"
                )

    @classmethod
    def from_seconds(
        cls, platform: Platform, seconds: Mapping[str, Mapping[str, float]]
    ) -> CostTable:
        """Return the table of tasks with one mode on each device. seconds: task → device → seconds
        of one firing.

        Raises:
            SpecError: a device does not exist, or an argument has another type.
        """
        if not isinstance(seconds, Mapping) or not all(
            isinstance(by_device, Mapping) for by_device in seconds.values()
        ):
            raise SpecError(
                f"seconds is {quote(seconds)}; a mapping is needed, of tasks to mappings of "
                "devices to seconds"
            )
        return cls(
            platform,
            tuple(Mode.of(task, d, s) for task, some in seconds.items() for d, s in some.items()),
        )

    def _check_types(self) -> None:
        if not isinstance(self.platform, Platform):
            raise SpecError(f"cost table: platform is {quote(self.platform)}; a Platform is needed")
        modes = self.modes if isinstance(self.modes, list | tuple) else (self.modes,)
        for mode in modes:
            if not isinstance(mode, Mode):
                raise SpecError(f"cost table: modes has {quote(mode)}; a tuple of Modes is needed")
        object.__setattr__(self, "modes", tuple(modes))
        if not isinstance(self.pair_extra_s, Mapping):
            raise SpecError(
                f"cost table: pair_extra_s is {quote(self.pair_extra_s)}; a mapping is needed"
            )
        object.__setattr__(self, "pair_extra_s", MappingProxyType(dict(self.pair_extra_s)))
        for pair, seconds in self.pair_extra_s.items():
            match pair:
                case ((str(a), (str(), str(), int())), (str(b), (str(), str(), int()))):
                    if not is_number(seconds) or abs(seconds) > LARGEST:
                        raise SpecError(
                            f"pair term of {a} with {b}, in seconds, is {quote(seconds)}; it must "
                            f"be a number from {-LARGEST:g} to {LARGEST:g}"
                        )
                case _:
                    raise SpecError(
                        f"cost table: pair_extra_s has {quote(pair)}; it must have two pairs of a "
                        "task and the key of its mode: (device, variant, width)"
                    )

        for name in LANE_TERMS:
            terms = getattr(self, name)
            if not isinstance(terms, Mapping):
                raise SpecError(f"cost table: {name} is {quote(terms)}; a mapping is needed")
            object.__setattr__(self, name, MappingProxyType(dict(terms)))
            for names, seconds in terms.items():
                if not is_names(names) or len(set(names)) != 2 or len(names) != 2:
                    raise SpecError(
                        f"cost table: {name} has {quote(names)}; a pair of two tasks is needed"
                    )
                if wrong := explain_misfit(seconds):
                    raise SpecError(f"{name} of {' with '.join(names)}, in seconds, {wrong}")

    @cached_property
    def lane_terms(self) -> tuple[tuple[str, str, float, bool], ...]:
        """The terms of `apart_extra_s` and `shared_extra_s`: (task, other task, seconds, whether
        the term counts on one lane or on two)."""
        return tuple(
            (a, b, seconds, shared)
            for terms, shared in ((self.apart_extra_s, False), (self.shared_extra_s, True))
            for (a, b), seconds in terms.items()
            if seconds
        )

    def of(self, *tasks: str) -> tuple[Mode, ...]:
        """Return the modes of one whole task, or the fused modes of exactly these tasks."""
        return self._whole.get(tasks, ())

    @cached_property
    def _whole(self) -> Mapping[tuple[str, ...], tuple[Mode, ...]]:
        """Tasks → their modes, without modes of copies."""
        by_tasks: dict[tuple[str, ...], list[Mode]] = {}
        for m in self.modes:
            if m.share is None:
                by_tasks.setdefault(m.tasks, []).append(m)
        return {tasks: tuple(modes) for tasks, modes in by_tasks.items()}

    @cached_property
    def fused_units(self) -> tuple[tuple[str, ...], ...]:
        """The sets of tasks that have fused modes."""
        return tuple(dict.fromkeys(m.tasks for m in self.modes if m.fused))

    def shares(self, mode: Mode, graph: TaskGraph) -> dict[str, float]:
        """Return the share of each task in a fused call: the shares of its `Fusion`, else shares by
        the costs of its parts on its device.

        The cost of a part is the cost of its firings alone, in the call's variant if the task has
        this variant, else in its fastest one. If a part cannot run alone, its cost is the time of
        its flops and bytes at the device's rates. If these are not counted either, the result is
        empty: only the call's time is known.
        """
        given = next((f.shares for f in graph.fusions if f.tasks == mode.tasks and f.shares), None)
        if given is not None:
            return dict(given)
        q, device, apart = graph.repetition, self.platform.device(mode.device), {}
        for task in mode.tasks:
            alone = [m for m in self.of(task) if m.device == mode.device]
            same = [m for m in alone if m.variant == mode.variant]
            if alone:
                apart[task] = q[task] * min(m.estimate.latency_s for m in same or alone)
        if len(apart) < len(mode.tasks) or not sum(apart.values()) > 0:
            apart = {
                task: q[task] * _work_s(graph.task(task).kernel, device) for task in mode.tasks
            }
            if not all(apart.values()):
                return {}
        return {task: seconds / sum(apart.values()) for task, seconds in apart.items()}


def _work_s(kernel: Kernel, device: Device) -> float:
    """Return the longer of the seconds for flops and for bytes, at the rates of a data sheet."""
    moved = kernel.bytes_in + kernel.bytes_out
    return max(kernel.flops / device.peak_flops_per_s, moved / device.memory_bytes_per_s)


def problem_faults(graph: object, costs: object, limits: object) -> list[str]:
    """Return a line for each of these three parts of a problem that has the wrong type."""
    nouns = (("graph", graph, TaskGraph), ("costs", costs, CostTable), ("limits", limits, Limits))
    return [
        f"{name} is {quote(value)}; a {kind.__name__} is needed"
        for name, value, kind in nouns
        if not isinstance(value, kind)
    ]
