"""What a finished run teaches the calibration of its host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.planning.runs import Drift
from pearl_devices import Platform
from pearl_estimators.cpu import LEARNED, parts, uncorrected
from pearl_estimators.host.learned import KernelShare, Seen
from pearl_estimators.host.on_demand import calibrated_here
from pearl_estimators.host.timer import HELD

LEAST_S = 0.5
"""Seconds of the steady stretch, net of waits, that a run counts from (assumed)."""

FAR = math.log(4.0)
"""A run further off than this has another reason than its calls: it teaches nothing."""


def taught(
    plan: Plan, graph: TaskGraph, platform: Platform, drift: Drift, steady: Mapping[str, float]
) -> Seen | None:
    """What an iteration took beside its estimates without corrections; None where nothing can be
    said.

    It is told of plans of one lane on a CPU of this host that kept their plan, all of whose calls
    are timed here. What others took of its core does not count; on two cores a call waits for its
    other half, and then only a run counts that had both. plan, graph: as the run had them.
    """
    device = platform.device(plan.tasks[0].device)
    lanes = {t.lane for t in plan.tasks}
    if drift.measured_s is None or drift.waited is None or drift.decisions or len(lanes) > 1:
        return None
    if {t.device for t in plan.tasks} != {device.name} or not calibrated_here(device):
        return None
    if plan.pace_s is not None or drift.apart is not None:
        return None
    quiet = drift.waited <= 1 - 1 / HELD
    if not quiet and max(t.width for t in plan.tasks) > 1:
        return None
    if steady["wall_s"] * (1 - drift.waited) < LEAST_S:
        return None
    net_s = drift.measured_s * (1 - drift.waited)
    if any(t.rung not in LEARNED for t in plan.tasks):
        return None
    fused = {f.tasks: f.kernel for f in graph.fusions}
    made: dict[tuple[str, ...], tuple[float, tuple[KernelShare, ...]]] = {}
    for t in plan.tasks:
        tasks = next((names for names in fused if {*names} == {t.task, *t.fused_with}), (t.task,))
        kernel = fused[tasks] if t.fused_with else graph.task(t.task).kernel
        way = kernel, device, t.variant, t.width
        firings = 1 if t.fused_with else t.firings
        made[tasks] = firings * uncorrected(*way).latency_s, parts(*way)
    estimated_s = sum(seconds for seconds, _ in made.values())
    off = math.log(net_s / estimated_s)
    if abs(off) > FAR:
        return None
    whole = (
        replace(p, share=p.share * seconds / estimated_s)
        for seconds, of in made.values()
        for p in of
    )
    return Seen(tuple(whole), off, quiet=quiet)
