"""Shared-memory control block: firing counters, sleep flags, iteration limit; and the range of
iterations in which tasks do real work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.progress_counters import Ints, WakeEvent

BEGIN = "begin"
"""Name, beside those of tasks, of the iteration at which all lanes were last at the same one."""

PARKED = -2
"""What a lane says that it has flushed to once it is parked; -1 is said of a lane that is none."""


@dataclass(frozen=True)
class ControlBlock:
    """The cells that all lanes of a run read and write, by number.

    tasks: names of the tasks; cell i counts the firings of task i.
    lanes: number of lanes. Each has a cell for the iteration that it has flushed to, and one that
        says whether it sleeps.
    cells: int64, one cache line a cell. The last five are `limit`, `flush`, `stop`, `park`, `end`.
    islands: those whose messages wait for counts too; each has a cell that says whether it sleeps,
        after those of the lanes.
    """

    tasks: tuple[str, ...]
    lanes: int
    cells: Ints
    islands: int = 0

    @staticmethod
    def size(tasks: int, lanes: int, islands: int = 0) -> int:
        return (tasks + 2 * lanes + islands + 5) * progress_counters.CELL // 8

    @property
    def sleepers(self) -> int:
        """Lanes and islands."""
        return self.lanes + self.islands

    def count(self, task: str) -> int:
        return self.tasks.index(task)

    def flushed(self, lane: int) -> int:
        return len(self.tasks) + lane

    def sleeps(self, lane: int) -> int:
        return len(self.tasks) + self.lanes + lane

    @property
    def limit(self) -> int:
        """Cell of the iteration up to which lanes may go."""
        return len(self.tasks) + 2 * self.lanes + self.islands

    @property
    def flush(self) -> int:
        """Cell of the iteration at which the segment ends, once that is known."""
        return self.limit + 1

    @property
    def stop(self) -> int:
        """Cell that is not 0 once the lanes are to end."""
        return self.limit + 2

    @property
    def park(self) -> int:
        """Cell that is not 0 once the lanes are to stay where they are: the run ends amid an
        iteration. Each then says that it has flushed to `PARKED`."""
        return self.limit + 3

    @property
    def end(self) -> int:
        """Cell of the iteration at which the segment ends if nothing ends it before."""
        return self.limit + 4

    @cached_property
    def address(self) -> int:
        return int(self.cells.ctypes.data)

    def read(self, cell: int) -> int:
        return int(progress_counters.get(self.address + progress_counters.CELL * cell))

    def write(self, cell: int, value: int) -> None:
        progress_counters.put(self.address + progress_counters.CELL * cell, value)

    def wake_sleepers(self, bells: Sequence[WakeEvent], but: int = -1) -> None:
        """Ring for every lane and island that sleeps, `but` left out. Whoever sleeps says so before
        it looks at the counts for the last time, so one written before this call is seen."""
        for number, bell in enumerate(bells):
            if number != but and self.read(self.sleeps(number)):
                bell.ring()


@dataclass(frozen=True)
class WorkRange:
    """The iterations in which tasks do real work.

    warm: learning tasks work from here on.
    total: no task works from here on, but those that copy, which go on while delayed work is done.
    drained: all work of earlier iterations is done.
    """

    warm: int
    total: int
    drained: int = 0
