"""`drive` runs the stages of a scheduler with an executor; `VirtualExecutor` simulates one."""

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
    """The end of a stage.

    slot: that the stage leaves.
    stage: that has ended.
    status: done; failed: the run reported an error; died: its process ended without an error.
    score: return of the policy at the end; None if the stage is not done.
    message: why the stage is not done, or None.
    """

    slot: int
    stage: RunStage
    status: Ending
    score: float | None
    message: str | None = None


class Executor(Protocol):
    """Interface of `drive` to the slots that run stages: processes, or a simulation.

    slots: number of stages that run at the same time.
    """

    slots: int

    def start(self, slot: int, stage: RunStage) -> None:
        """Start a stage in a free slot. The stage resumes from its checkpoint if it has one."""

    def wait(self) -> StageEnd | None:
        """Wait for the next end of a stage; None if all stages must end now."""

    def stop(self) -> None:
        """End all stages with checkpoints."""


Event = dict[str, Any]
"""An entry of the history: {event: start | end | restart, run, steps, …}."""


class Journal:
    """The history of a population: every decision and every end, in order.

    on_event: is called with every entry, its stage, and the end of the stage if there is one.
    restarts: limit of the restarts of a run whose process died.
    """

    def __init__(
        self,
        history: Sequence[Event] = (),
        on_event: Callable[[Event, RunStage, StageEnd | None], None] = lambda event, stage, end: (
            None
        ),
        restarts: int = 0,
    ) -> None:
        self.history, self._on_event, self._restarts = list(history), on_event, restarts

    def record(self, event: str, stage: RunStage, end: StageEnd | None = None, **keys: Any) -> None:
        """Append an entry."""
        entry: Event = {"event": event, "run": stage.run, "steps": stage.steps, **keys}
        self.history.append(entry)
        self._on_event(entry, stage, end)

    def restarts_of(self, run: str) -> int:
        """Count the restarts of a run so far."""
        return sum(e["run"] == run and e["event"] == "restart" for e in self.history)

    def may_restart(self, run: str) -> bool:
        """Whether a run whose process died may restart."""
        return self.restarts_of(run) < self._restarts


def replay_history(scheduler: Scheduler, history: Sequence[Event]) -> list[RunStage]:
    """Replay a history with a new scheduler, and return the stages under way at its end.

    Raises:
        SpecError: the scheduler decides differently, so the history is of another population.
    """
    under_way: dict[str, RunStage] = {}
    for entry in history:
        if entry["event"] == "start":
            stage = scheduler.next()
            if stage is None or (stage.run, stage.steps) != (entry["run"], entry["steps"]):
                decision = "no run" if stage is None else f"{stage.run} to {stage.steps}"
                raise SpecError(
                    f"history: the sweep started {entry['run']} to {entry['steps']} env steps, but "
                    f"{decision} would start now: the history is of another sweep or of another "
                    "version of PEARL; start a new sweep in another folder"
                )
            under_way[stage.run] = stage
        elif entry["event"] == "end":
            if entry["run"] not in under_way:
                raise SpecError(
                    f"history: {entry['run']} ended before it began; start a new sweep in another "
                    "folder"
                )
            scheduler.on_end(under_way.pop(entry["run"]), entry["score"])
    return list(under_way.values())


def drive(
    scheduler: Scheduler, executor: Executor, journal: Journal, under_way: Sequence[RunStage] = ()
) -> bool:
    """Run all stages of a scheduler; return False if the executor was interrupted.

    under_way: stages that an earlier process started; they come first.
    """
    free, busy, resumed = list(range(executor.slots)), 0, list(under_way)
    while True:
        while free:
            if resumed:
                stage = resumed.pop(0)
            else:
                decision = scheduler.next()
                if decision is None:
                    break
                stage = decision
                journal.record("start", stage, why=stage.reason)
            executor.start(free.pop(0), stage)
            busy += 1
        if not busy:
            return True
        end = executor.wait()
        if end is None:
            executor.stop()
            return False
        busy -= 1
        free = sorted((*free, end.slot))
        if end.status == "died" and journal.may_restart(end.stage.run):
            journal.record("restart", end.stage, end, why=end.message)
            resumed.append(end.stage)
            continue
        scheduler.on_end(end.stage, end.score)
        journal.record("end", end.stage, end, score=end.score, why=end.message)


class VirtualExecutor:
    """Simulated slots, on a clock that jumps from one end of a stage to the next.

    seconds: stage → its duration in seconds.
    score: stage → its score.
    now_s: the clock.
    timeline: (stage, slot, begin in seconds, end in seconds), in the order of the starts.
    """

    def __init__(
        self,
        slots: int,
        seconds: Callable[[RunStage], float],
        score: Callable[[RunStage], float] = lambda stage: 0.0,
    ) -> None:
        self.slots, self._seconds, self._score = slots, seconds, score
        self.now_s = 0.0
        self.timeline: list[tuple[RunStage, int, float, float]] = []
        self._ends: list[tuple[float, int, int, RunStage]] = []

    def start(self, slot: int, stage: RunStage) -> None:
        end_s = self.now_s + self._seconds(stage)
        heapq.heappush(self._ends, (end_s, len(self.timeline), slot, stage))
        self.timeline.append((stage, slot, self.now_s, end_s))

    def wait(self) -> StageEnd | None:
        self.now_s, _, slot, stage = heapq.heappop(self._ends)
        return StageEnd(slot, stage, "done", self._score(stage))

    def stop(self) -> None:
        self._ends.clear()
