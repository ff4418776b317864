"""Calls with their firings, as planned or as recorded by a run.

The firings determine the messages between lanes, and how many results wait on an edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pearl.planning.plans import Channel, Plan
from pearl.planning.runs import Run
from pearl.report.schedule import SteadySchedule, TimedCall


@dataclass(frozen=True)
class KeptCall:
    """A call.

    lane: its lane. name: its task, or the members of a fused call joined with +.
    firings: task, with `#` and its number if it is a replica → the numbers of its firings.
    start_s, end_s: seconds from an origin that all calls share.
    lag: observed lag of the parameters or priorities in the call; None if the call uses neither.
    """

    lane: str
    name: str
    firings: Mapping[str, range]
    start_s: float
    end_s: float
    lag: int | None = None


@dataclass(frozen=True)
class Handover:
    """A result that moves from one lane to another. edge: the edge of the result."""

    source: KeptCall
    target: KeptCall
    edge: Channel


def planned_calls(plan: Plan, schedule: SteadySchedule, iterations: int) -> list[KeptCall]:
    """Return the calls of `iterations` iterations of a steady schedule, without messages."""
    each = _firings(plan)
    own = [(e, n) for e, n in zip(schedule.events, schedule.numbers, strict=True) if not e.to]
    first = min((e.start_s for e, _ in own), default=0.0)
    found = []
    for k in range(iterations):
        for e, number in own:
            at = k * each.get(e.task, 1) + number
            shift = k * schedule.period_s - first
            firings = {e.task: range(at, at + 1)}
            found.append(KeptCall(e.lane, e.task, firings, e.start_s + shift, e.end_s + shift))
    return sorted(found, key=lambda c: c.start_s)


def measured_calls(run: Run) -> list[KeptCall]:
    """Return the calls that a run recorded."""
    each = _firings(run.plan)
    found = []
    for c in run.calls:
        members = c.call.split("+")
        firings = {
            task: range(c.firing * each.get(task, 1), (c.firing + 1) * each.get(task, 1))
            if len(members) > 1
            else range(c.firing, c.firing + 1)
            for task in members
        }
        lane = c.lane.partition(" (")[0]
        found.append(KeptCall(lane, c.call, firings, c.start_s, c.end_s, c.lag))
    return found


def _firings(plan: Plan) -> dict[str, int]:
    """Return the firings per iteration of each task or replica."""
    return {_key(plan, t.task, t.replica): t.firings for t in plan.tasks}


def _key(plan: Plan, task: str, replica: int) -> str:
    split = any(t.task == task and t.replicas > 1 for t in plan.tasks)
    return f"{task}#{replica}" if split else task


def crossing(plan: Plan) -> list[tuple[str, str, Channel]]:
    """Return the edges between lanes, with the names of their tasks."""
    lanes = {_key(plan, t.task, t.replica): t.lane for t in plan.tasks}
    found = []
    for e in plan.edges:
        src, dst = _key(plan, e.src, e.src_replica), _key(plan, e.dst, e.dst_replica)
        ends = lanes.get(src), lanes.get(dst)
        if None not in ends and ends[0] != ends[1] and min(e.production, e.consumption) > 0:
            found.append((src, dst, e))
    return found


def handovers(plan: Plan, calls: Sequence[KeptCall]) -> list[Handover]:
    """Return the results that these calls make and that a call on another lane waits for."""
    made = {(task, n): c for c in calls for task, numbers in c.firings.items() for n in numbers}
    found: dict[tuple[int, int, str], Handover] = {}
    for src, dst, e in crossing(plan):
        for target in calls:
            for n in target.firings.get(dst, ()):
                needed = -((e.tokens - e.consumption * (n + 1)) // e.production) - 1
                source = made.get((src, needed))
                if source is not None and source.lane != target.lane:
                    key = id(source), id(target), e.src
                    found[key] = Handover(source, target, e)
    return list(found.values())


def queues(plan: Plan, calls: Sequence[KeptCall]) -> dict[str, list[tuple[float, int]]]:
    """Return for each edge with data between lanes the number of results after each change, by
    time.

    The number covers only the time in which the calls of both ends are known, because the windows
    of recorded calls begin and end at different times.
    """
    found: dict[str, list[tuple[float, int]]] = {}
    for src, dst, e in crossing(plan):
        sends = [c for c in calls if src in c.firings]
        takes = [c for c in calls if dst in c.firings]
        if not e.bytes or not sends or not takes:
            continue
        held = e.tokens + e.production * min(c.firings[src].start for c in sends)
        held -= e.consumption * min(c.firings[dst].start for c in takes)
        known_from = max(min(c.start_s for c in ends) for ends in (sends, takes))
        known_to = min(max(c.end_s for c in ends) for ends in (sends, takes))
        moves = []
        for c in calls:
            change = e.production * len(c.firings.get(src, ()))
            change -= e.consumption * len(c.firings.get(dst, ()))
            if change:
                moves.append((c.end_s, change))
        line = []
        for at_s, change in sorted(moves):
            held += change
            if known_from <= at_s <= known_to:
                line.append((at_s, held))
        found[f"{src} → {dst}"] = line
    return found


@dataclass(frozen=True)
class MeasuredSchedule:
    """Two iterations of a run as they happened: the recorded pair of median length.

    period_s: half of their length. second_s: start of the second iteration.
    events: by start, in seconds from the beginning of the first.
    """

    period_s: float
    second_s: float
    events: tuple[TimedCall, ...]

    def within(self, iterations: int = 2) -> list[TimedCall]:
        """Return the events."""
        return list(self.events)


def measured_schedule(run: Run) -> MeasuredSchedule | None:
    """Return the calls and messages of two iterations; None if the run recorded none."""
    plan, calls = run.plan, measured_calls(run)
    lanes = [k for k in plan.lanes if k.width]
    if run.simulated or not calls or not lanes:
        return None
    busiest = max(lanes, key=lambda k: k.load).lane
    own = [c for c in calls if c.lane == busiest]
    if not own:
        return None
    each = _firings(plan)
    starts: dict[int, float] = {}
    for c in own:
        task, numbers = next(iter(c.firings.items()))
        starts.setdefault(numbers.start // each.get(task, 1), c.start_s)
    begins = sorted(starts.values())
    begins.append(max(c.end_s for c in own))
    pairs = list(zip(begins, begins[1:], begins[2:], strict=False))
    if not pairs:
        return None
    middle = median(c - a for a, _, c in pairs)
    begin, second, end = min(pairs, key=lambda p: abs(p[2] - p[0] - middle))
    if not end > begin:
        return None
    shown = [
        TimedCall(c.lane, c.name, max(c.start_s, begin) - begin, min(c.end_s, end) - begin)
        for c in calls
        if c.end_s > begin and c.start_s < end
    ]
    devices = {k.lane: k.device for k in plan.lanes}
    for h in handovers(plan, calls):
        sent, used = h.source.end_s, h.target.start_s
        if h.edge.link and begin <= sent <= used <= end:
            to = devices.get(h.target.lane, "")
            shown.append(TimedCall(h.edge.link, h.edge.src, sent - begin, used - begin, to))
    return MeasuredSchedule(
        (end - begin) / 2, second - begin, tuple(sorted(shown, key=lambda e: e.start_s))
    )
