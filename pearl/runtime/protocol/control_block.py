"""Where the lanes of a run meet, and which iterations work."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.runtime.protocol import progress_counters
from pearl.runtime.protocol.progress_counters import Ints


@dataclass(frozen=True)
class Board:
    """Where the lanes of a run meet: one cell a task (its count), then for every lane the iteration
    that it has flushed to and whether it sleeps, then the iteration that all may go to, the one
    at which the segment ends once that is known, and whether to stop."""

    tasks: tuple[str, ...]
    lanes: int
    cells: Ints

    @staticmethod
    def size(tasks: int, lanes: int) -> int:
        return (tasks + 2 * lanes + 3) * progress_counters.CELL // 8

    def count(self, task: str) -> int:
        return self.tasks.index(task)

    def flushed(self, lane: int) -> int:
        return len(self.tasks) + lane

    def sleeps(self, lane: int) -> int:
        return len(self.tasks) + self.lanes + lane

    @property
    def limit(self) -> int:
        return len(self.tasks) + 2 * self.lanes

    @property
    def flush(self) -> int:
        return self.limit + 1

    @property
    def stop(self) -> int:
        return self.limit + 2

    @property
    def address(self) -> int:
        return int(self.cells.ctypes.data)

    def read(self, cell: int) -> int:
        return int(progress_counters.get(self.address + progress_counters.CELL * cell))

    def write(self, cell: int, value: int) -> None:
        progress_counters.put(self.address + progress_counters.CELL * cell, value)


@dataclass(frozen=True)
class Span:
    """Which iterations work: learning tasks from `warm` on, all of them before `total` but for
    copying ones, which go on while delayed work is done. drained: all work before it is done."""

    warm: int
    total: int
    drained: int = 0
