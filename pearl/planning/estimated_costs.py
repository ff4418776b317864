"""The cost table of a graph on a platform, estimated mode by mode."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import itemgetter
from types import MappingProxyType

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import marked
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.replicas import enumerate_splits, resize_kernel
from pearl.planning.variants import (
    allowed_variants,
    drop_useless_widths,
    exclusion_reason,
    is_excluded,
    list_offers,
)
from pearl_devices import Kernel, Platform
from pearl_devices.base import OPT_IN_VARIANTS, PROCESSES, WIDE
from pearl_devices.hosts import find_equivalents
from pearl_devices.kernels import kind_of
from pearl_estimators import Estimate, estimate
from pearl_estimators.cpu import split_into_leaves
from pearl_estimators.host.calibrator import (
    calibration,
    comparable_variants,
    is_calibrated,
    is_calibrated_here,
)
from pearl_estimators.host.interference import Shares, share_name, side
from pearl_estimators.host.timed_rows import Job
from pearl_estimators.host.user_code_timing import list_jobs, time_jobs
from pearl_estimators.sealed_files import CalibrationError

LEARNS = "learn"
"""The task whose lane runs in the training process."""


def build_cost_table(
    graph: TaskGraph, platform: Platform, limits: Limits | None = None
) -> CostTable:
    """Ask every device's backend for its offers for every task and fusion, and estimate each.

    Raises:
        InfeasibleError: no allowed device can run a task; the text names the task.
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
    jobs = _list_calls(graph, limits)
    time_jobs(list_user_code(graph, platform, limits))
    calibrations = {
        device.name: calibration(device, [kernel for _, kernel, _ in jobs])  # all kernels at once
        for device in platform.devices
        if is_calibrated(device)
    }
    home = platform.device(platform.host).host
    device_class = find_equivalents(platform.devices, calibrations)
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
                estimated = [
                    (v, width, estimate(kernel, device, variant=v, width=width, host=host))
                    for v, width in ways
                ]
                costed[kind] = estimated if limits.rules else drop_useless_widths(estimated)
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


def _list_calls(
    graph: TaskGraph, limits: Limits
) -> list[tuple[tuple[str, ...], Kernel, int | None]]:
    """The calls that a plan may have: tasks, kernel, and the environments of a share."""
    calls: list[tuple[tuple[str, ...], Kernel, int | None]] = [
        ((t.name,), t.kernel, None) for t in graph.tasks
    ]
    calls += [(f.tasks, f.kernel, None) for f in graph.fusions]
    wanted = {(t, n) for s in enumerate_splits(graph, limits) for t in s.tasks for n in s.shares}
    for name, n in sorted(wanted):
        task = graph.task(name)
        calls.append(((name,), resize_kernel(task.kernel, n, task.environments), n))
    return calls


def list_user_code(graph: TaskGraph, platform: Platform, limits: Limits) -> list[Job]:
    """Return what a cost table needs to know of user code: environments and kernels first, then
    networks and algorithms by their work in an iteration.

    Environments in processes are timed only if they wait, so they are not in the list.
    """
    weights: list[tuple[float, Job]] = []
    for device in filter(is_calibrated, platform.devices):
        for tasks, kernel, _ in _list_calls(graph, limits):
            for variant, width in list_offers(tasks, kernel, device, limits):
                if variant == PROCESSES:
                    continue
                firings = 1.0 if len(tasks) > 1 else graph.repetition[tasks[0]]
                for k, v, _, n in split_into_leaves(kernel, device, variant, width, firings):
                    optional = bool(k.modules) or kind_of(k).assumed
                    weights += [(n * k.flops if optional else math.inf, j) for j in list_jobs(k, v)]
    weights.sort(key=itemgetter(0), reverse=True)
    return [job for _, job in weights]


def add_lane_overhead(
    costs: CostTable,
    graph: TaskGraph,
    firing_s: float,
    handoff_s: float,
    carry_s_per_byte: float,
    beside: Shares = MappingProxyType({}),
) -> CostTable:
    """Return the table for plans with several lanes.

    The runtime takes firing_s of a lane for each call in addition to the kernel. Another lane sees
    the result handoff_s later. Each byte that a call receives or sends takes carry_s_per_byte,
    because it lies in the cache of another core. Handoffs and bytes are also charged within a lane,
    because the orders of lanes are not known yet.

    beside: slow-down of an acting and a learning call by each other. Each side is charged for the
        part of a period in which the other side's fastest calls run, as if the two sides had
        separate lanes.
    """
    modes, slower = [], _slowdowns(costs, graph, beside)
    for m in costs.modes:
        e = m.estimate
        busy = firing_s + carry_s_per_byte * _carried_bytes(m, graph)
        name = share_name(graph.kernel_of(m.tasks), m.variant)
        busy += slower.get(name, 0.0) * e.occupancy_s
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


def _slowdowns(costs: CostTable, graph: TaskGraph, beside: Shares) -> dict[str, float]:
    """Return for each family the share of its time by which the other side slows down its calls."""
    sides = [_fastest_calls(costs, graph, which) for which in (0, 1)]
    period_s = max(math.fsum(s for _, s in calls) for calls in sides)
    calibrated_devices = {d.name for d in costs.platform.devices if is_calibrated_here(d)}
    loads: dict[str, float] = {}
    for mode, seconds in (call for calls in sides for call in calls if period_s > 0):
        if mode.device in calibrated_devices:
            name = share_name(graph.kernel_of(mode.tasks), mode.variant)
            loads[name] = loads.get(name, 0.0) + seconds / period_s
    return {
        name: math.fsum(share * loads.get(other, 0.0) for other, share in row.items())
        for name, row in beside.items()
    }


def _fastest_calls(costs: CostTable, graph: TaskGraph, which: int) -> list[tuple[Mode, float]]:
    """The modes in which one side's tasks take least time in total, and their seconds per
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
    """Bytes that a call of the mode receives from tasks outside it and sends to them; a copy has
    its share."""
    firings = graph.repetition if mode.fused else dict.fromkeys(mode.tasks, 1)
    total = 0.0
    for e in graph.edges:
        if e.src in firings and e.src in mode.tasks and e.dst not in mode.tasks:
            total += firings[e.src] * e.bytes
        elif e.dst in mode.tasks and e.src not in mode.tasks:
            total += firings[e.dst] * e.bytes * e.consumption / e.production
    whole = graph.task(mode.tasks[0]).environments
    return total * mode.share / whole if mode.share is not None and whole else total
