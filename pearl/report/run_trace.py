"""The trace of a run: its predicted and its measured calls, for ui.perfetto.dev.

The trace has a process for each device, a thread for each lane, and a flow for each result that
moves between lanes. Counters show results that wait on an edge, lags, and modelled power.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pearl.planning.plans import Lane, Plan
from pearl.planning.runs import Run
from pearl.report.kept_calls import KeptCall, handovers, measured_calls, planned_calls, queues
from pearl.report.schedule import schedule_of
from pearl.task_names import stem
from pearl.trace_events import TraceEvents
from pearl_estimators.power import draws_by_work, dynamic_energy_j

if TYPE_CHECKING:
    from pearl_devices import Device, Platform

ITERATIONS = 8
"""Number of predicted iterations; the run records at most as many."""

MOST_CALLS = 600
"""Approximate limit on the number of predicted calls."""


def run_trace(run: Run, platform: Platform | None = None) -> dict[str, Any]:
    """Return the object of a file of trace events.

    platform: of the plan; without it, the trace has no counters of power.
    """
    plan, events = run.plan, TraceEvents()
    if platform is None and plan.problem is not None:
        platform = plan.problem.costs.platform
    schedule = schedule_of(plan, platform)
    if schedule is not None:
        length = max(2, min(ITERATIONS, MOST_CALLS // max(len(schedule.events), 1)))
        planned = planned_calls(plan, schedule, length)
        _write(events, "predicted", plan, planned, platform)
    measured = [] if run.simulated else measured_calls(run)
    _write(events, "measured", plan, measured, platform)
    _write_lags(events, measured)
    return events.to_json()


def _write(
    events: TraceEvents,
    group: str,
    plan: Plan,
    calls: Sequence[KeptCall],
    platform: Platform | None,
) -> None:
    """Write the calls of a group with their flows, queues and power."""
    lanes = {k.lane: k for k in plan.lanes if k.width}
    calls = [c for c in calls if c.lane in lanes]
    for lane in lanes.values():  # in the order of the plan, so that both groups have one order
        for c in calls:
            if c.lane != lane.lane:
                continue
            values: dict[str, object] = {
                f"firing of {task}": numbers.start for task, numbers in c.firings.items()
            }
            if c.lag is not None:
                values["lag"] = c.lag
            name = f"{group}: {lane.device}"
            events.call(name, lane.lane, c.name, c.start_s, c.end_s, values)
    for h in handovers(plan, calls):
        ends = [
            (f"{group}: {lanes[c.lane].device}", c.lane, c.start_s, c.end_s)
            for c in (h.source, h.target)
        ]
        values = {"bytes": h.edge.bytes, "link": h.edge.link or "none"}
        events.flow(f"{h.edge.src} → {h.edge.dst}", ends[0], ends[1], values)
    for edge, line in queues(plan, calls).items():
        for at_s, length in line:
            events.counter(f"{group}: queues", f"queue {edge}", at_s, length)
    for device in platform.devices if platform is not None else ():
        for at_s, watts in _power(device, list(lanes.values()), calls):
            events.counter(f"{group}: power", f"{device.name} (modelled, W)", at_s, watts)


def _power(
    device: Device, lanes: Sequence[Lane], calls: Sequence[KeptCall]
) -> list[tuple[float, float]]:
    """Return the modelled power of a device after each change; nothing for a device whose power
    depends on its work, such as a GPU, because busy lanes do not determine it, and for a device of
    unknown kind."""
    own = {k.lane: k.width for k in lanes if k.device == device.name}
    if not own or draws_by_work(device) is not False:
        return []
    changes: dict[float, float] = {}
    for c in calls:
        if c.lane in own:
            watts = dynamic_energy_j(device, own[c.lane], 1.0)
            for at_s, change in ((c.start_s, watts), (c.end_s, -watts)):
                at_s = round(at_s, 9)  # an end and a start at one time are one change
                changes[at_s] = changes.get(at_s, 0.0) + change
    found, watts = [], device.waiting_power_w
    for at_s, change in sorted(changes.items()):
        watts += change
        found.append((at_s, round(watts, 6)))
    return found


def _write_lags(events: TraceEvents, calls: Sequence[KeptCall]) -> None:
    """Write the observed lags of calls: of parameters in calls that act, of priorities in calls
    that sample."""
    for c in calls:
        if c.lag is not None:
            acts = any(stem(task) == "act" for task in c.firings)
            what = "policy lag" if acts else "priority staleness"
            events.counter("measured: lags", what, c.end_s, c.lag)
