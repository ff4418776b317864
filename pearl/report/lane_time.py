"""The time of the lanes of a run by what they did: as a table, and as one bar per lane."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.formatting import NONE, count, percent, si
from pearl.planning.lane_times import CallTime, LaneTime
from pearl.planning.runs import Run
from pearl.report import words
from pearl.report.document import Column, Table

LOOP, PROTOCOL, HELD = "training loop", "protocol", "held"
"""Names of the rows that are no task."""


@dataclass(frozen=True)
class TimeRow:
    """The seconds of a lane for one of its tasks, or for something that is no task.

    name: in words. style: of its box in figures.
    calls: number of calls; 0 for a row that is no task.
    busy_s, waiting_s, transfer_s, runtime_s, python_s: by what the lane did.
    """

    name: str
    style: str
    calls: int
    busy_s: float = 0.0
    waiting_s: float = 0.0
    transfer_s: float = 0.0
    runtime_s: float = 0.0
    python_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The sum of all parts."""
        return sum(self.parts)

    @property
    def parts(self) -> tuple[float, ...]:
        """Busy, waiting, transfer, runtime, Python."""
        return self.busy_s, self.waiting_s, self.transfer_s, self.runtime_s, self.python_s


def member_shares(run: Run, call: str) -> dict[str, float]:
    """Return the share of each task in a fused call: by the times of single tasks if they were
    timed, else by their estimates."""
    members = call.split("+")
    placed = {t.task: t for t in run.plan.tasks}
    timed = {t.task: t.measured_s for t in run.tasks if t.measured_s}
    known = [m for m in members if m.partition("#")[0] in placed]
    if len(known) < 2:
        return {call: 1.0}
    seconds = {
        m: timed.get(m, placed[m.partition("#")[0]].seconds) * placed[m.partition("#")[0]].firings
        for m in known
    }
    whole = sum(seconds.values())
    return {m: s / whole if whole > 0 else 1 / len(known) for m, s in seconds.items()}


def time_rows(run: Run, lane: LaneTime) -> list[TimeRow]:
    """Return the rows of a lane: its tasks, longest first, then the rest. Their sum is the time of
    the lane without that of the profiler."""
    plan, rows = run.plan, list[TimeRow]()
    placed, tints = {t.task: t for t in reversed(plan.tasks)}, words.tints(plan)
    for c in lane.calls:
        for task, share in member_shares(run, c.call).items():
            t = placed.get(task.partition("#")[0])
            style = f"{words.colour(plan, t.device)} {tints[t.task]}" if t else "grey t6"
            rows.append(_row(c, task, share, style))
    rows.sort(key=lambda r: -r.seconds)
    beside = (
        TimeRow(PROTOCOL, "grey t10", 0, runtime_s=lane.runtime_s),
        TimeRow(LOOP, "grey t6", 0, python_s=lane.python_s),
        TimeRow(HELD, "grey t4", 0, waiting_s=lane.held_s),
    )
    return rows + [r for r in beside if r.seconds > 0]


def _row(c: CallTime, task: str, share: float, style: str) -> TimeRow:
    parts = (c.busy_s, c.waiting_s, c.transfer_s, 0.0, c.python_s)
    return TimeRow(task, style, c.calls, *(share * s for s in parts))


def lane_word(run: Run, lane: str) -> str:
    """Return a lane in words; a lane that is not in the plan by its name."""
    known = {k.lane for k in run.plan.lanes}
    stem, found, rest = lane.partition(" (")
    return words.lane_name(run.plan, stem) + found + rest if stem in known else lane


def lane_table(run: Run) -> Table | None:
    """Return every lane with its tasks and their times, without columns that have no value; None if
    nothing was recorded."""
    if not run.lanes:
        return None
    rows = []
    for lane in run.lanes:
        name = lane_word(run, lane.lane)
        for r in time_rows(run, lane):
            cells = (si(s, "s") if s > 0 else NONE for s in r.parts)
            calls = count(r.calls) if r.calls else NONE
            rows.append((name, r.name, calls, *cells, percent(r.seconds / (lane.wall_s or 1.0))))
        whole = (lane.busy_s, lane.waiting_s + lane.held_s, lane.transfer_s, lane.runtime_s,
                 lane.whole_python_s)  # fmt: skip
        cells = (si(s, "s") if s > 0 else NONE for s in whole)
        rows.append((name, f"all of {si(lane.wall_s, 's')}", NONE, *cells, "100 %"))
    columns = (
        Column("lane"), Column("what"), Column("calls", "right"), Column("busy", "right"),
        Column("waiting", "right"), Column("transfer", "right"), Column("runtime", "right"),
        Column("Python", "right"), Column("of the lane", "right"),
    )  # fmt: skip
    used = [n for n in range(len(columns)) if any(row[n] != NONE for row in rows)]
    shown = tuple(tuple(row[n] for n in used) for row in rows)
    heading = tuple(columns[n] for n in used)
    return Table("Where the time of the lanes went", heading, shown, tuple(_notes(run)))


def _notes(run: Run) -> list[str]:
    profiler_s = sum(k.profiler_s for k in run.lanes)
    found = [
        "Runtime is the protocol between calls. Python is the training loop and environments in "
        "Python. A lane is held during evaluations and checkpoints, and when it must not run "
        "further ahead. The measurement of these times took "
        f"{si(profiler_s, 's')}, {percent(profiler_s / sum(k.wall_s for k in run.lanes))} of the "
        "lanes' time, which is not included."
    ]
    if any("+" in c.call for k in run.lanes for c in k.calls):
        found.append("The time of a fused call is divided by the times of its single tasks.")
    return found
