"""Feedback of a finished run to the calibration of its host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Placement, Plan
from pearl.planning.runs import TOLERANCE, Drift
from pearl_devices import Kernel, Platform
from pearl_estimators.cpu import TIMED, estimate_without_feedback, parts
from pearl_estimators.host.calibration_file import load_usable
from pearl_estimators.host.calibrator import is_calibrated_here
from pearl_estimators.host.linear_fit import family
from pearl_estimators.host.run_corrections import IterationStats, KernelShare
from pearl_estimators.host.timer import HELD

LOADED = 1 - 1 / HELD
"""Maximum share of a run's time without a core. Above it, the time of the calls is the difference
of two similar times, and load changes the contents of caches."""

LEAST_S = 0.5
"""Seconds of the steady stretch, net of waits, that a run counts from (assumed)."""

FAR = math.log(4.0)
"""A run further off than this has another reason than its calls: it teaches nothing."""


COLD = 0.5
"""Busy share of a lane of several below which its calls run with the caches of a core that waited
(assumed)."""

SHORT_S = 2e-6
"""Shorter calls, by the mean of their lane, are not timed one by one, because reading a clock twice
takes about 0.1 us."""

Lessons = tuple[tuple[IterationStats, ...], tuple[str, ...]]
"""The values to store, and a sentence on each lane or on the run about the feedback."""


@dataclass(frozen=True)
class _Calls:
    """The calls of a lane.

    seconds: of an iteration, by estimates without corrections.
    parts: the kernels of the calls, each with its share.
    timed: whether all these estimates rest on timings.
    """

    seconds: float
    parts: tuple[KernelShare, ...]
    timed: bool


def calibration_feedback(
    plan: Plan, graph: TaskGraph, platform: Platform, drift: Drift, steady: Mapping[str, float]
) -> Lessons:
    """Compare the time of a run's calls with their estimates without corrections.

    A run counts if it kept its plan, ran on a CPU of this host and had its cores: it waited for a
    core, or the host of the virtual machine took one, for at most LOADED of its time. The rung of
    its estimates does not matter. A run of one lane gives the time of a whole iteration without
    waits. A run of several lanes gives the calls of each lane, timed one by one; waits between
    lanes give nothing.

    plan, graph: as the run had them.
    steady: sums of the steady iterations, as `RunState.steady`.
    """
    lanes = dict.fromkeys(t.lane for t in plan.tasks)
    why = _skip_reason(plan, drift, steady)
    if why is not None:
        return (), (f"Nothing was learned from this run: {why}.",)
    found, said = list[IterationStats](), list[str]()
    for lane in lanes:
        calls = _list_lane_calls(plan, graph, platform, lane)
        if isinstance(calls, str):
            off: float | str = calls
        elif len(lanes) == 1:
            assert drift.measured_s is not None
            off = drift.measured_s * (1 - (drift.waited or 0.0)) / calls.seconds
        else:
            off = _busy_ratio(plan, graph, drift, lane, calls)
        what = f"lane {lane}" if len(lanes) > 1 else "this run"
        if isinstance(off, float) and abs(math.log(off)) > FAR:
            off = f"its calls took {off:.3g} times their estimates, so they are not the reason"
        if isinstance(off, str):
            said.append(f"Nothing was learned from {what}: {off}.")
        elif isinstance(calls, _Calls):
            found.append(IterationStats(calls.parts, math.log(off), timed=calls.timed))
            said.append(f"Learned from {what}: its calls took {off:.3f} times their estimates.")
    return tuple(found), tuple(said)


def _skip_reason(plan: Plan, drift: Drift, steady: Mapping[str, float]) -> str | None:
    """Return why a run gives no feedback; None if it does."""
    if drift.measured_s is None:
        return "it ended before its steady stretch"
    if drift.waited is None:
        return "how long its lanes had no core is not known"
    if drift.decisions:
        return "its plan was searched again during the run"
    if plan.pace_s is not None:
        return "it was paced"
    if drift.apart is not None:
        return "its two cores were further apart, or nearer, than when they were timed"
    if drift.waited > LOADED:
        return f"something else had {drift.waited:.0%} of the core of its busiest lane"
    stolen = steady.get("stolen_s", 0.0) / steady["wall_s"]
    if stolen > LOADED:
        return f"the host of this virtual machine had {stolen:.0%} of a core"
    net_s = steady["wall_s"] * (1 - drift.waited)
    if net_s < LEAST_S:
        return f"its steady stretch took {net_s:.2g} s, and {LEAST_S} s are needed"
    return None


def _list_lane_calls(plan: Plan, graph: TaskGraph, platform: Platform, lane: str) -> _Calls | str:
    """Return the calls of a lane, or the reason why they give no feedback."""
    placed = [t for t in plan.tasks if t.lane == lane]
    device = platform.device(placed[0].device)
    if not is_calibrated_here(device):
        return f"{device.name} is not timed here"
    made: list[tuple[float, tuple[KernelShare, ...]]] = []
    timed = True
    for t, kernel in list_calls(placed, graph):
        way = kernel, device, t.variant, t.width
        firings = 1 if t.fused_with else t.firings
        cost = estimate_without_feedback(*way)
        timed = timed and cost.rung in TIMED
        made.append((firings * cost.latency_s, parts(*way)))
    total_s = sum(seconds for seconds, _ in made)
    shares = (replace(p, share=p.share * s / total_s) for s, of in made for p in of)
    return _Calls(total_s, tuple(shares), timed)


def list_calls(placed: Iterable[Placement], graph: TaskGraph) -> list[tuple[Placement, Kernel]]:
    """Return the calls of these tasks, each once: one of the tasks that it runs, and its kernel."""
    calls = {frozenset((t.task, *t.fused_with)): t for t in placed}
    return [(t, graph.kernel_of((t.task, *t.fused_with))) for t in calls.values()]


def _busy_ratio(
    plan: Plan, graph: TaskGraph, drift: Drift, lane: str, calls: _Calls
) -> float | str:
    """Return measured / estimated seconds of the calls of one lane of several, or why there is
    none.

    Bytes that cross lanes lie in the cache of another core. Plans charge this cost separately, so
    the feedback leaves it out.
    """
    rows = {frozenset(row.task.split("+")): row.measured_s for row in drift.tasks}
    mine = {t.task: t for t in plan.tasks if t.lane == lane}
    busy_s, firings = 0.0, 0
    for members in {frozenset((t.task, *t.fused_with)) for t in mine.values()}:
        seconds = rows.get(members)
        if seconds is None:
            return f"{'+'.join(sorted(members))} was not timed in it"
        times = 1 if len(members) > 1 else mine[next(iter(members))].firings
        busy_s, firings = busy_s + times * seconds, firings + times
    assert drift.measured_s is not None
    if busy_s < SHORT_S * firings:
        return f"its calls take {busy_s / firings:.2g} s in the mean, too little to time each"
    if busy_s < COLD * drift.measured_s:
        share = busy_s / drift.measured_s
        return f"it was busy {share:.0%} of the time, and its calls ran with cold caches"
    known = load_usable()
    per_byte = known.runtime.get("carry_s_per_byte", 0.0) if known else 0.0
    crossing = sum(
        e.bytes * graph.repetition[e.src] for e in graph.edges if (e.src in mine) != (e.dst in mine)
    )
    if busy_s <= per_byte * crossing:
        return "its calls take no longer than the bytes that cross lanes"
    return (busy_s - per_byte * crossing) / calls.seconds


def find_contradictions(plan: Plan, graph: TaskGraph, drift: Drift) -> dict[str, float]:
    """Return the calibrated estimates that a run contradicts: family and variant → measured /
    estimated.

    A call contradicts its estimate if it is outside the 90 % band and off by more than TOLERANCE. A
    slower call counts only if the run had its cores to itself.

    plan, graph: as the run had them, with replicas as tasks.
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
