"""`CostTable`: the modes of every task with labelled estimates. All a solver sees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import marked
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.replicas import enumerate_splits, resize_kernel
from pearl.planning.variants import (
    allowed_variants,
    drop_useless_widths,
    exclusion_reason,
    is_excluded,
)
from pearl_devices import Device, Kernel, Platform
from pearl_devices.base import OPT_IN_VARIANTS, WIDE
from pearl_devices.hosts import alike
from pearl_devices.validation import explain_misfit, is_names, is_number, is_whole, quote
from pearl_estimators import Estimate, estimate
from pearl_estimators.host.calibration import CalibrationError
from pearl_estimators.host.calibrator import (
    calibration,
    comparable_variants,
    is_calibrated,
    is_calibrated_here,
)
from pearl_estimators.host.interference import Shares, share_name, side

LEARNS = "update"
"""The task whose lane runs in the process that trains."""


@dataclass(frozen=True)
class Mode:
    """One way of running a task; with several `tasks` a fused mode.

    tasks: name of the task, or of all tasks whose firings of an iteration run as one call.
    device: name of the device.
    variant: implementation of the kernel.
    width: units of the device.
    estimate: time and energy of a firing, or of the fused call.
    share: environments of the replica that this mode is for; None: a whole task.

    Raises:
        SpecError: a field has another type.
    """

    tasks: tuple[str, ...]
    device: str
    variant: str
    width: int
    estimate: Estimate
    share: int | None = None

    def __post_init__(self) -> None:
        tasks, share = self.tasks, self.share
        if not is_names(tasks) or not tasks or len(set(tasks)) < len(tasks):
            raise SpecError(f"mode: tasks is {quote(tasks)}; needed are names of tasks, each once")
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
        object.__setattr__(self, "tasks", tuple(tasks))
        object.__setattr__(self, "width", int(self.width))

    @property
    def fused(self) -> bool:
        return len(self.tasks) > 1

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of a mode among the modes of its task: device, variant, width."""
        return self.device, self.variant, self.width


Choice = tuple[str, tuple[str, str, int]]
"""A task and the key of one of its modes."""


@dataclass(frozen=True)
class CostTable:
    """The modes of every task on one platform.

    platform: the devices that the modes run on.
    modes: all ways of running tasks, alone or fused.
    pair_extra_s: seconds added to every firing of the first (task, mode) when the second holds too.
        May be negative as long as the task's time is not; for latency and occupancy alike.
    """

    platform: Platform
    modes: tuple[Mode, ...]
    pair_extra_s: Mapping[tuple[Choice, Choice], float] = field(default_factory=dict)

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
                    size = -seconds if is_number(seconds) and seconds < 0 else seconds
                    if wrong := explain_misfit(size):
                        raise SpecError(f"pair term of {a} with {b}, in seconds, {wrong}")
                case _:
                    raise SpecError(
                        f"cost table: pair_extra_s has {quote(pair)}; needed are two pairs of a "
                        "task and the key of its mode: (device, variant, width)"
                    )

    def of(self, *tasks: str) -> tuple[Mode, ...]:
        """The modes of one whole task, or the fused modes of exactly these tasks."""
        return self._whole.get(tasks, ())

    @cached_property
    def _whole(self) -> Mapping[tuple[str, ...], tuple[Mode, ...]]:
        """Tasks → their modes, without those of copies."""
        by_tasks: dict[tuple[str, ...], list[Mode]] = {}
        for m in self.modes:
            if m.share is None:
                by_tasks.setdefault(m.tasks, []).append(m)
        return {tasks: tuple(modes) for tasks, modes in by_tasks.items()}

    def shares(self, mode: Mode, graph: TaskGraph) -> dict[str, float]:
        """Task of a fused call → its share of the call, by what the parts cost on its device.

        They cost the times of their firings run apart there, in the call's variant where a task has
        it, else in its fastest; where one cannot run apart, the time that flops and bytes take at
        the device's rates. Empty where these are not counted either: then only the call is known.
        """
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
    """Seconds of flops or bytes at the rates of a data sheet, whichever take longer."""
    moved = kernel.bytes_in + kernel.bytes_out
    return max(kernel.flops / device.peak_flops_per_s, moved / device.memory_bytes_per_s)


def problem_faults(graph: object, costs: object, limits: object) -> list[str]:
    """Which of the three that make a problem is something else: a line each."""
    nouns = (("graph", graph, TaskGraph), ("costs", costs, CostTable), ("limits", limits, Limits))
    return [
        f"{name} is {quote(value)}; a {kind.__name__} is needed"
        for name, value, kind in nouns
        if not isinstance(value, kind)
    ]


def build_cost_table(
    graph: TaskGraph, platform: Platform, limits: Limits | None = None
) -> CostTable:
    """Ask every device's backend what it offers for every task and fusion, and estimate each.

    Raises:
        InfeasibleError: no allowed device can run a task; names the task.
        SpecError: a device lacks a figure for its estimates.
    """
    simulated = [d.name for d in platform.devices if d.simulated]
    try:
        return _estimate_modes(graph, platform, limits or Limits())
    except CalibrationError:
        raise
    except InfeasibleError as error:
        raise InfeasibleError(marked(str(error), simulated), error.conflict) from None
    except ValueError as error:
        raise SpecError(marked(f"platform {platform.name}: {error}", simulated)) from None


def _estimate_modes(graph: TaskGraph, platform: Platform, limits: Limits) -> CostTable:
    modes: list[Mode] = []
    jobs: list[tuple[tuple[str, ...], Kernel, int | None]] = [
        ((t.name,), t.kernel, None) for t in graph.tasks
    ]
    jobs += [(f.tasks, f.kernel, None) for f in graph.fusions]
    wanted = {(t, n) for s in enumerate_splits(graph, limits) for t in s.tasks for n in s.shares}
    for name, n in sorted(wanted):
        task = graph.task(name)
        jobs.append(((name,), resize_kernel(task.kernel, n, task.environments), n))
    calibrations = {
        device.name: calibration(device, [kernel for _, kernel, _ in jobs])  # all it lacks at once
        for device in platform.devices
        if is_calibrated(device)
    }
    home = platform.device(platform.host).host
    device_class = alike(platform.devices, calibrations)
    first = platform.device(platform.host)
    hosts = {d.host: d for d in platform.devices if d.kind == first.kind} | {first.host: first}
    for tasks, kernel, share in jobs:
        modes_found = []
        costed: dict[tuple[str, float], list[tuple[str, int, Estimate]]] = {}
        for device in platform.devices:
            if LEARNS in tasks and device.real and device.host != home:
                continue
            if is_excluded(tasks, device, limits):
                continue
            host = hosts.get(device.host, first)
            kind = device_class[device.name], host.figures.get("clock_hz", 0.0)
            if kind not in costed:
                ways = allowed_variants(tasks, kernel, device, limits)
                if device.name in calibrations:
                    measured_variants = comparable_variants(
                        calibrations[device.name], kernel, [v for v, _ in ways]
                    )
                    ways = [(v, width) for v, width in ways if v in measured_variants]
                costed[kind] = drop_useless_widths(
                    (v, width, estimate(kernel, device, variant=v, width=width, host=host))
                    for v, width in ways
                )
            modes_found += [
                Mode(tasks, device.name, v, n, cost, share) for v, n, cost in costed[kind]
            ]
        if not modes_found and len(tasks) == 1 and share is None:
            name = tasks[0]
            needs = {**WIDE, **OPT_IN_VARIANTS}
            opt_in = [v for v in limits.variants.get(name, ()) if v in needs]
            raise InfeasibleError(
                f"no device can run task {name!r} (kernel {kernel.kind}) under the limits; "
                f"devices are {[d.name for d in platform.devices]}, allowed for it are "
                f"{limits.devices.get(name, 'all')}, pinned to {limits.pin.get(name, 'none')}, "
                f"variants {limits.variants.get(name, 'all')}; "
                + "; ".join(
                    f"{d.name}: {exclusion_reason(tasks, kernel, d, limits)}"
                    for d in platform.devices
                )
                + "".join(f"; {v} {needs[v]}" for v in opt_in)
                + (f"; {name} runs at home, on {home}" if home and name == LEARNS else ""),
                [{"kind": "task", "name": name, "need": 1, "limit": 0, "unit": "modes"}],
            )
        modes += modes_found
    return CostTable(platform, tuple(modes))


def add_lane_overhead(
    costs: CostTable,
    graph: TaskGraph,
    firing_s: float,
    handoff_s: float,
    carry_s_per_byte: float,
    beside: Shares = MappingProxyType({}),
) -> CostTable:
    """The table for plans of several lanes: the runtime takes firing_s of a lane for each call
    beside the kernel, its result is seen by another lane handoff_s later, and each byte that it
    receives or sends takes carry_s_per_byte, for it lies in the cache of another core (the last two
    charged within a lane too: an order of lanes is not known yet). beside: what a call that acts
    and one that learns cost each other; each is charged what the fastest calls of the other side
    cost it for the part of a period that they run, as if the two had lanes of their own."""
    modes, slower = [], _slowdowns(costs, graph, beside)
    for m in costs.modes:
        e = m.estimate
        busy = firing_s + carry_s_per_byte * _carried_bytes(m, graph)
        busy += slower.get(_family(m, graph), 0.0) * e.occupancy_s
        more = busy + handoff_s
        cost = replace(
            e,
            latency_s=e.latency_s + more,
            occupancy_s=e.occupancy_s + busy,
            low_s=e.low_s + more,
            high_s=e.high_s + more,
        )
        modes.append(replace(m, estimate=cost))
    return replace(costs, modes=tuple(modes))


def _family(mode: Mode, graph: TaskGraph) -> str:
    """Of the kernel that a mode calls, as in `interference.Shares`."""
    if mode.fused:
        kernel = next(f.kernel for f in graph.fusions if f.tasks == mode.tasks)
    else:
        kernel = graph.task(mode.tasks[0]).kernel
    return share_name(kernel, mode.variant)


def _slowdowns(costs: CostTable, graph: TaskGraph, beside: Shares) -> dict[str, float]:
    """The share of its time that a call of a family takes longer for what the other side does."""
    sides = [_fastest_calls(costs, graph, which) for which in (0, 1)]
    period_s = max(math.fsum(s for _, s in calls) for calls in sides)
    calibrated_devices = {d.name for d in costs.platform.devices if is_calibrated_here(d)}
    loads: dict[str, float] = {}
    for mode, seconds in (call for calls in sides for call in calls if period_s > 0):
        if mode.device in calibrated_devices:
            name = _family(mode, graph)
            loads[name] = loads.get(name, 0.0) + seconds / period_s
    return {
        name: math.fsum(share * loads.get(other, 0.0) for other, share in row.items())
        for name, row in beside.items()
    }


def _fastest_calls(costs: CostTable, graph: TaskGraph, which: int) -> list[tuple[Mode, float]]:
    """The modes in which one side's tasks take least time in all, and the seconds of each an
    iteration."""
    side_tasks = {t.name for t in graph.tasks if side(t.kernel) == which}
    modes = [m for m in costs.modes if m.share is None and side_tasks.issuperset(m.tasks)]

    def seconds(mode: Mode) -> float:
        firings = 1 if mode.fused else graph.repetition[mode.tasks[0]]
        return firings * mode.estimate.latency_s

    alone = {
        task: min((m for m in modes if m.tasks == (task,)), key=seconds, default=None)
        for task in side_tasks
    }
    ways = [[m for m in alone.values() if m]]
    for fused in (m for m in modes if m.fused):
        ways.append([fused, *(m for t, m in alone.items() if m and t not in fused.tasks)])
    calls = [[(m, seconds(m)) for m in way] for way in ways]
    return min(calls, key=lambda way: math.fsum(s for _, s in way))


def _carried_bytes(mode: Mode, graph: TaskGraph) -> float:
    """Bytes that a call of the mode receives from tasks outside it and sends to them; of a copy its
    share."""
    firings = graph.repetition if mode.fused else dict.fromkeys(mode.tasks, 1)
    total = 0.0
    for e in graph.edges:
        if e.src in firings and e.src in mode.tasks and e.dst not in mode.tasks:
            total += firings[e.src] * e.bytes
        elif e.dst in mode.tasks and e.src not in mode.tasks:
            total += firings[e.dst] * e.bytes * e.consumption / e.production
    whole = graph.task(mode.tasks[0]).environments
    return total * mode.share / whole if mode.share is not None and whole else total
