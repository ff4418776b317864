"""Shared-memory control block: firing counters, sleep flags and the iteration limit of all lanes;
and the range of iterations in which tasks do real work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.progress_counters import Ints
from pearl_devices.system import WakeEvent

BEGIN = "begin"
"""Key, in addition to the names of tasks, of the last iteration that all lanes had reached
together."""

PARKED = -2
"""Value of the flushed cell of a parked lane. A remote lane that has not paused yet has -1."""


@dataclass(frozen=True)
class ControlBlock:
    """The cells that all lanes of a run read and write, by number.

    tasks: names of the tasks; cell i counts the firings of task i.
    lanes: number of lanes. Each has a cell for the iteration that it has flushed to, and a cell
        that is non-zero while the lane sleeps.
    cells: int64, one cache line a cell. The last five are limit, flush, stop, park and end.
    groups: number of remote lane groups. Each has a sleep cell after those of the lanes, because
        the thread that sends its messages waits for counts too.
    """

    tasks: tuple[str, ...]
    lanes: int
    cells: Ints
    groups: int = 0

    @staticmethod
    def size(tasks: int, lanes: int, groups: int = 0) -> int:
        """Return the length of `cells`."""
        return (tasks + 2 * lanes + groups + 5) * progress_counters.CELL // 8

    @property
    def sleepers(self) -> int:
        """Number of lanes and remote lane groups."""
        return self.lanes + self.groups

    def count_cell(self, task: str) -> int:
        """Return the cell that counts the firings of a task."""
        return self.tasks.index(task)

    def flushed_cell(self, lane: int) -> int:
        """Return the cell of the iteration up to which a lane has ended its segment."""
        return len(self.tasks) + lane

    def sleep_cell(self, lane: int) -> int:
        """Return the cell that is non-zero while a lane sleeps."""
        return len(self.tasks) + self.lanes + lane

    @property
    def limit_cell(self) -> int:
        """Cell of the iteration up to which lanes may run."""
        return len(self.tasks) + 2 * self.lanes + self.groups

    @property
    def flush_cell(self) -> int:
        """Cell of the iteration at which the segment ends, once that iteration is decided."""
        return self.limit_cell + 1

    @property
    def stop_cell(self) -> int:
        """Cell that is non-zero when the lanes must end."""
        return self.limit_cell + 2

    @property
    def park_cell(self) -> int:
        """Cell that is non-zero when lanes must park: the run is ending in the middle of an
        iteration. Each lane then sets its flushed cell to `PARKED`."""
        return self.limit_cell + 3

    @property
    def end_cell(self) -> int:
        """Cell of the iteration at which the segment ends at the latest."""
        return self.limit_cell + 4

    @property
    def control_cells(self) -> list[int]:
        """Cells that the local host sets for remote lanes, in the order of a control message."""
        return [self.limit_cell, self.flush_cell, self.stop_cell, self.park_cell, self.end_cell]

    @cached_property
    def address(self) -> int:
        """Address of the first cell."""
        return int(self.cells.ctypes.data)

    def read(self, cell: int) -> int:
        """Load a cell (acquire)."""
        return int(progress_counters.load_cell(self.address + progress_counters.CELL * cell))

    def write(self, cell: int, value: int) -> None:
        """Store a cell (release, then a full fence)."""
        progress_counters.store_cell(self.address + progress_counters.CELL * cell, value)

    def reset(self, fired: Mapping[str, int], begin: int, *, limit: int) -> None:
        """Set the cells before lanes begin: counts of firings, the iteration at which the segment
        began, and the iteration limit."""
        for task, firings in fired.items():
            self.write(self.count_cell(task), firings)
        for lane in range(self.lanes):
            self.write(self.flushed_cell(lane), begin)
        self.write(self.limit_cell, limit)
        self.write(self.flush_cell, begin)
        self.write(self.end_cell, begin)

    def wake_sleepers(self, wake_events: Sequence[WakeEvent], but: int = -1) -> None:
        """Set the wake event of every lane and remote lane group that sleeps, except `but`.

        A lane sets its sleep cell before it reads the counts for the last time. So either that read
        sees a count written before this call, or this call sees the sleep cell.
        """
        for number, event in enumerate(wake_events):
            if number != but and self.read(self.sleep_cell(number)):
                event.set()


def wake_all(wake_events: Iterable[WakeEvent]) -> None:
    """Set all wake events, also of lanes that are awake."""
    for event in wake_events:
        event.set()


@dataclass(frozen=True)
class WorkRange:
    """The iterations in which tasks do real work.

    learning_starts: first iteration in which learning tasks work.
    end: first iteration in which no task works, except copying tasks: they continue while delayed
        work is done.
    drained_until: all work of earlier iterations is done.
    """

    learning_starts: int
    end: int
    drained_until: int = 0
