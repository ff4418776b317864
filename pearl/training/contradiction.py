"""Contradictions between a run and the calibration of its host."""

from __future__ import annotations

from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Plan
from pearl.planning.runs import TOLERANCE, Drift
from pearl_estimators.host.linear_fit import family
from pearl_estimators.host.timer import HELD


def contradicted(plan: Plan, graph: TaskGraph, drift: Drift) -> dict[str, float]:
    """The calibrated estimates that a run contradicts: kernel family and variant → measured /
    estimated seconds.

    plan, graph: as the run had them, copies as tasks.

    A call contradicts its estimate where it is outside the 90 % band and off by more than
    TOLERANCE. A slower call counts only where the run had its cores to itself.
    """
    had = drift.waited is not None and drift.waited <= 1 - 1 / HELD
    fused = {f.tasks: f.kernel for f in graph.fusions}
    found = {}
    for row in drift.tasks:
        names = tuple(row.task.split("+"))
        placed = [plan.task(name) for name in names]
        kernel = fused.get(names) if len(names) > 1 else graph.task(names[0]).kernel
        if kernel is None or any(p.rung != "calibrated" for p in placed):
            continue
        low, said, high = (
            sum(p.firings * s for p, s in zip(placed, seconds, strict=True))
            for seconds in zip(*((p.low_s, p.seconds, p.high_s) for p in placed), strict=True)
        )
        factor = 1 + row.off
        slower = factor > max(1 + TOLERANCE, high / said)
        if (slower and had) or factor < min(1 / (1 + TOLERANCE), low / said):
            found[f"{family(kernel)} {placed[0].variant}"] = factor
    return found
