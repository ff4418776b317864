"""Decide which run continues next, from the runs that have ended: no clock, no process, no file.

`drive` asks a scheduler for a stage whenever a slot is free, and reports the end of every stage.
The same ends in the same order lead to the same decisions on every machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True)
class RunStage:
    """A part of a run that one slot executes without a break.

    run: name of the run, and of its folder.
    setting: name of the setting, without the seed.
    values: dotted key of the spec → value that overrides the spec.
    seed: of all random streams of the run.
    steps: env steps of the run at the end of the stage.
    parent: the run whose checkpoint this run starts from; None: no other run.
    reason: of the decision, as text; empty if there was no choice.
    """

    run: str
    setting: str
    values: Mapping[str, object]
    seed: int
    steps: int
    parent: str | None = None
    reason: str = field(default="", compare=False)


class Scheduler(Protocol):
    """Interface between a kind of search and `drive`, which runs the stages."""

    def next(self) -> RunStage | None:
        """Return the stage for a free slot; None if nothing can start until another stage ends."""

    def on_end(self, stage: RunStage, score: float | None) -> None:
        """Record the end of a stage. score: its return; None: the stage failed."""


class GridScheduler:
    """Every run once, in the given order."""

    def __init__(self, runs: Sequence[RunStage]) -> None:
        self._left = deque(runs)

    def next(self) -> RunStage | None:
        return self._left.popleft() if self._left else None

    def on_end(self, stage: RunStage, score: float | None) -> None:
        pass


class SuccessiveHalving:
    """Asynchronous successive halving, Algorithm 2 of Li et al. 2018 (arXiv 1810.05934).

    A rung is a number of env steps. A setting trains each of its seeds to the rung; its score is
    the mean over the seeds. The best 1/eta of the settings that have passed a rung are promoted to
    the next rung at once, without waiting for the others. If no setting can be promoted, a new
    setting starts. A setting with a failed run is never promoted.

    settings: the runs of each setting, one run a seed; their numbers of steps are ignored.
    rungs: env steps, rising.
    through: of each rung, setting → score, in the order in which the settings passed the rung.
    """

    def __init__(
        self, settings: Sequence[Sequence[RunStage]], rungs: Sequence[int], eta: int
    ) -> None:
        self._settings = {runs[0].setting: tuple(runs) for runs in settings}
        self._new = deque(self._settings)
        self._rungs, self._eta = tuple(rungs), eta
        self._queue: deque[RunStage] = deque()
        self._open: dict[str, list[float | None]] = {}
        self._at: dict[str, int] = {}
        self.through: tuple[dict[str, float | None], ...] = tuple({} for _ in rungs)

    def next(self) -> RunStage | None:
        if not self._queue and not self._promote():
            self._begin()
        return self._queue.popleft() if self._queue else None

    def _promote(self) -> bool:
        for rung in reversed(range(len(self._rungs) - 1)):
            scores = {s: score for s, score in self.through[rung].items() if score is not None}
            best = sorted(scores, key=lambda s: -scores[s])[: len(self.through[rung]) // self._eta]
            for place, setting in enumerate(best, 1):
                if self._at[setting] == rung:
                    rank = f"{place} of {len(self.through[rung])} at {self._rungs[rung]} env steps"
                    self._enter(setting, rung + 1, f"promoted: {rank}, {scores[setting]:.6g}")
                    return True
        return False

    def _begin(self) -> None:
        if self._new:
            self._enter(self._new.popleft(), 0, "starts")

    def _enter(self, setting: str, rung: int, reason: str) -> None:
        self._at[setting], self._open[setting] = rung, []
        steps, reason = self._rungs[rung], f"rung {rung}: {reason}"
        self._queue.extend(replace(r, steps=steps, reason=reason) for r in self._settings[setting])

    def on_end(self, stage: RunStage, score: float | None) -> None:
        name = stage.setting
        scores = self._open[name]
        scores.append(score)
        if len(scores) == len(self._settings[name]):
            finished = [s for s in scores if s is not None]
            mean = sum(finished) / len(finished) if len(finished) == len(scores) else None
            self.through[self._at[name]][name] = mean


def rungs(min_steps: int, steps: int, eta: int) -> tuple[int, ...]:
    """List the env steps of the rungs: min_steps, eta times as many, …, and last `steps`."""
    result, at = [], min_steps
    while at < steps:
        result.append(at)
        at *= eta
    return (*result, steps)
