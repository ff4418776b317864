"""Between a scheduler and the slots: `drive`, the executor that it asks for, and virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pearl.errors import SpecError
from pearl.population.schedulers import RunStage, Scheduler

Ending = Literal["done", "failed", "died"]


@dataclass(frozen=True)
class StageEnd:
    """The end of a stretch.

    status: done; failed: the run says so itself; died: its process ended without a word.
    score: return of the policy of the end; None where it is not done.
    message: why it is not done, or None.
    """

    slot: int
    stretch: RunStage
    status: Ending
    score: float | None
    message: str | None = None


class Executor(Protocol):
    """What runs stretches, each in a slot: processes of this machine, or a clock alone.

    slots: how many run beside each other.
    """

    slots: int

    def start(self, slot: int, stretch: RunStage) -> None:
        """Begin a stretch in a slot that is free, or go on with it from its checkpoint."""

    def wait(self) -> StageEnd | None:
        """The next stretch to end; None where all are to be ended now."""

    def stop(self) -> None:
        """End everything under way, with checkpoints."""


Event = dict[str, Any]
"""An entry of the history: {event: start | end | restart, run, steps, …}."""


class Journal:
    """The history of a population: every decision and every end, in their order.

    heard: is told of every entry, with what ended.
    restarts: of a run whose process died, at most.
    """

    def __init__(
        self,
        history: Sequence[Event] = (),
        heard: Callable[[Event, RunStage, StageEnd | None], None] = lambda event, stretch, end: (
            None
        ),
        restarts: int = 0,
    ) -> None:
        self.history, self._heard, self._restarts = list(history), heard, restarts

    def note(self, event: str, stretch: RunStage, end: StageEnd | None = None, **more: Any) -> None:
        """Write an entry."""
        entry: Event = {"event": event, "run": stretch.run, "steps": stretch.steps, **more}
        self.history.append(entry)
        self._heard(entry, stretch, end)

    def again(self, stretch: RunStage) -> bool:
        """Whether a run that died may be started once more."""
        of_run = [e for e in self.history if e["run"] == stretch.run and e["event"] == "restart"]
        return len(of_run) < self._restarts


def replayed(scheduler: Scheduler, history: Sequence[Event]) -> list[RunStage]:
    """Bring a new scheduler to where one was that had this history; the stretches under way there.

    Raises:
        SpecError: the scheduler decides otherwise, so that the history is of another population.
    """
    under_way: dict[str, RunStage] = {}
    for entry in history:
        if entry["event"] == "start":
            stretch = scheduler.next()
            if stretch is None or (stretch.run, stretch.steps) != (entry["run"], entry["steps"]):
                found = "nothing" if stretch is None else f"{stretch.run} to {stretch.steps}"
                raise SpecError(
                    f"history: {entry['run']} to {entry['steps']} env steps was begun, where "
                    f"{found} would be now: it is of another sweep or another version; begin anew"
                )
            under_way[stretch.run] = stretch
        elif entry["event"] == "end":
            if entry["run"] not in under_way:
                raise SpecError(f"history: {entry['run']} ended before it began; begin anew")
            scheduler.ended(under_way.pop(entry["run"]), entry["score"])
    return list(under_way.values())


def drive(
    scheduler: Scheduler,
    executor: Executor,
    journal: Journal,
    under_way: Sequence[RunStage] = (),
) -> bool:
    """Run all stretches of a scheduler; False where it was ended before.

    under_way: stretches begun before, which come first.
    """
    free, busy, again = list(range(executor.slots)), 0, list(under_way)
    while True:
        while free:
            if again:
                stretch = again.pop(0)
            else:
                found = scheduler.next()
                if found is None:
                    break
                stretch = found
                journal.note("start", stretch, why=stretch.why)
            executor.start(free.pop(0), stretch)
            busy += 1
        if not busy:
            return True
        end = executor.wait()
        if end is None:
            executor.stop()
            return False
        busy -= 1
        free = sorted((*free, end.slot))
        if end.status == "died" and journal.again(end.stretch):
            journal.note("restart", end.stretch, end, why=end.message)
            again.append(end.stretch)
            continue
        scheduler.ended(end.stretch, end.score)
        journal.note("end", end.stretch, end, score=end.score, why=end.message)


class VirtualExecutor:
    """Slots on a clock that stands still but for the ends of stretches.

    seconds: of a stretch. score: of a stretch.
    now_s: the clock. passed: (stretch, slot, begin, end), as they were begun.
    """

    def __init__(
        self,
        slots: int,
        seconds: Callable[[RunStage], float],
        score: Callable[[RunStage], float] = lambda stretch: 0.0,
    ) -> None:
        self.slots, self._seconds, self._score = slots, seconds, score
        self.now_s = 0.0
        self.passed: list[tuple[RunStage, int, float, float]] = []
        self._ends: list[tuple[float, int, int, RunStage]] = []

    def start(self, slot: int, stretch: RunStage) -> None:
        end_s = self.now_s + self._seconds(stretch)
        heapq.heappush(self._ends, (end_s, len(self.passed), slot, stretch))
        self.passed.append((stretch, slot, self.now_s, end_s))

    def wait(self) -> StageEnd | None:
        self.now_s, _, slot, stretch = heapq.heappop(self._ends)
        return StageEnd(slot, stretch, "done", self._score(stretch))

    def stop(self) -> None:
        self._ends.clear()
