"""Where the time of each lane of a run went, from what the lanes recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from pearl.planning.lane_times import CallTime, LaneTime, MeasuredCall
from pearl.runtime.protocol.single_lane import Job
from pearl.training.training_run import TrainingRun

Records = Sequence[Mapping[str, Any]]
"""What `LaneRecorder.to_json` returned of each lane."""


def lane_times(run: TrainingRun, records: Records) -> tuple[LaneTime, ...]:
    """Return the times of every lane; those of one name, of several sessions, added up."""
    jobs = {job.name: job for job in run.session.compiled.jobs.values()}
    found: dict[str, LaneTime] = {}
    others_ns = sum(sum(_scaled(r)) for r in records if not r["wall_ns"])
    for r in records:
        own = sum(_scaled(r))
        home = r is _home(run, records)
        time = _lane_time(run, r, jobs, home=home, others_s=(others_ns - own) * 1e-9)
        before = found.get(time.lane)
        found[time.lane] = time if before is None else _added(before, time)
    return tuple(found.values())


def _home(run: TrainingRun, records: Records) -> Mapping[str, Any] | None:
    """The record of the lane of the training thread that updates."""
    protocol = run.session.compiled.protocol
    own = [r for r in records if not r["wall_ns"]]
    name = protocol.lanes[protocol.home].name
    return next((r for r in own if r["lane"] in ("", name)), own[0] if own else None)


def _scaled(r: Mapping[str, Any]) -> list[float]:
    """Nanoseconds in the calls at each place, those of rounds that were not timed included."""
    return [ns * _scale(r) for ns in r["busy_ns"]]


def _scale(r: Mapping[str, Any]) -> float:
    """All rounds over those that were timed."""
    return float(r["rounds"] / r["timed_rounds"]) if r["timed_rounds"] else 1.0


def _lane_time(
    run: TrainingRun, r: Mapping[str, Any], jobs: Mapping[str, Job], *, home: bool, others_s: float
) -> LaneTime:
    """others_s: seconds in the calls of other lanes of the same thread."""
    scale, calls = _scale(r), dict[str, CallTime]()
    places = zip(r["names"], _scaled(r), r["calls"], r["waiting_ns"], strict=True)
    for name, busy_ns, count, waiting_ns in places:
        one = CallTime(name, round(count * scale), busy_ns * 1e-9, 0.0, 0.0, waiting_ns * 1e-9)
        calls[name] = _added_call(calls[name], one) if name in calls else one
    parts = tuple(
        _split(c, jobs.get(name), r["copied_ns"].get(name, 0) * 1e-9) for name, c in calls.items()
    )
    spent_s = sum(c.busy_s + c.python_s + c.transfer_s + c.waiting_s for c in parts)
    held_s, python_s = r["held_ns"] * 1e-9, 0.0
    if r["wall_ns"]:
        wall_s = inside_s = r["wall_ns"] * 1e-9
    else:
        wall_s, inside_s = run.loop_s, run.in_lanes_s
        if home:
            python_s = max(wall_s - inside_s - run.paused_s, 0.0)
            held_s += run.paused_s
        else:
            held_s += wall_s - inside_s
        spent_s += others_s
    left_s = max(inside_s - spent_s - r["held_ns"] * 1e-9, 0.0)
    profiler_s = min(sum(r["calls"]) * r["stamp_s"], left_s)
    lane = r["lane"] or run.plan.lanes[0].lane
    return LaneTime(
        lane, wall_s, parts, left_s - profiler_s, python_s, held_s + others_s * (not r["wall_ns"]),
        profiler_s,
    )  # fmt: skip


def _split(c: CallTime, job: Job | None, copied_s: float) -> CallTime:
    """The time of a call by its kind: copies to a device, Python, or the rest."""
    copied_s = min(copied_s, c.busy_s)
    if job is not None and job.steps_external_envs:
        return CallTime(c.call, c.calls, 0.0, c.busy_s, 0.0, c.waiting_s)
    return CallTime(c.call, c.calls, c.busy_s - copied_s, 0.0, copied_s, c.waiting_s)


def _added_call(a: CallTime, b: CallTime) -> CallTime:
    return CallTime(a.call, *(x + y for x, y in zip(astuple(a)[1:], astuple(b)[1:], strict=True)))


def _added(a: LaneTime, b: LaneTime) -> LaneTime:
    calls = {c.call: c for c in a.calls}
    for c in b.calls:
        calls[c.call] = _added_call(calls[c.call], c) if c.call in calls else c
    names = ("wall_s", "runtime_s", "python_s", "held_s", "profiler_s")
    sums = {name: getattr(a, name) + getattr(b, name) for name in names}
    return LaneTime(a.lane, calls=tuple(calls.values()), **sums)


def measured_calls(run: TrainingRun, records: Records) -> tuple[MeasuredCall, ...]:
    """Return the kept calls of the lanes of the last session, by start time."""
    kept = [(r, k) for r in records for k in r["kept"]]
    first = min((k[2] for _, k in kept), default=0)
    found = [
        MeasuredCall(
            r["lane"] or run.plan.lanes[0].lane,
            r["names"][place],
            firing,
            (begin - first) * 1e-9,
            (end - first) * 1e-9,
            lag if lag >= 0 else None,
        )
        for r, (place, firing, begin, end, lag) in kept
    ]
    return tuple(sorted(found, key=lambda c: (c.start_s, c.lane)))
