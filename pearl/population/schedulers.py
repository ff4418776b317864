"""Which run goes on next, given those that have ended: no clock, no process, no file.

A scheduler is asked for a stretch whenever a slot is free, and told of every stretch that ended.
The same answers in the same order lead to the same decisions, whatever machine ran the stretches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True)
class RunStage:
    """A part of a run, which one slot does in one go.

    run: name of the run, and of its folder.
    setting: name of the setting, without the seed.
    values: dotted key of the spec → value laid over the spec.
    seed: of all random streams of the run.
    steps: env steps of the run at the end of the stretch.
    parent: the run from whose checkpoint this one begins; None: from its own, or anew.
    why: the decision in words; empty where there was none to make.
    """

    run: str
    setting: str
    values: Mapping[str, object]
    seed: int
    steps: int
    parent: str | None = None
    why: str = field(default="", compare=False)


class Scheduler(Protocol):
    """Interface between a way of searching and whatever runs the stretches."""

    def next(self) -> RunStage | None:
        """The stretch for a free slot; None: nothing, before another has ended or at all."""

    def ended(self, stretch: RunStage, score: float | None) -> None:
        """Hear of the end of a stretch. score: its return, best the highest; None: it failed."""


class Grid:
    """Every run once, in the order given."""

    def __init__(self, runs: Sequence[RunStage]) -> None:
        self._left = deque(runs)

    def next(self) -> RunStage | None:
        return self._left.popleft() if self._left else None

    def ended(self, stretch: RunStage, score: float | None) -> None:
        pass


class SuccessiveHalving:
    """Asynchronous successive halving, Algorithm 2 of Li et al. 2018 (arXiv 1810.05934).

    A setting at a rung has as many env steps as the rung says, in each of its seeds; its score
    there is the mean over the seeds. Of the settings that have come through a rung the best 1/eta
    go on to the next, at once, without waiting for the others; while none may, a new setting
    begins. A setting of which a run failed goes on no further.

    settings: the runs of each, one a seed; their steps are not looked at.
    rungs: env steps, rising.
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
        """Of each rung the settings that have come through it, in that order, and their scores."""

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
                    among = f"{place} of {len(self.through[rung])} at {self._rungs[rung]} env steps"
                    self._enter(setting, rung + 1, f"promoted: {among}, {scores[setting]:.6g}")
                    return True
        return False

    def _begin(self) -> None:
        if self._new:
            self._enter(self._new.popleft(), 0, "begins")

    def _enter(self, setting: str, rung: int, why: str) -> None:
        self._at[setting], self._open[setting] = rung, []
        steps, why = self._rungs[rung], f"rung {rung}: {why}"
        self._queue.extend(replace(r, steps=steps, why=why) for r in self._settings[setting])

    def ended(self, stretch: RunStage, score: float | None) -> None:
        name = stretch.setting
        scores = self._open[name]
        scores.append(score)
        if len(scores) == len(self._settings[name]):
            known = [s for s in scores if s is not None]
            whole = len(known) == len(scores)
            self.through[self._at[name]][name] = sum(known) / len(known) if whole else None


def rungs(min_steps: int, steps: int, eta: int) -> tuple[int, ...]:
    """Env steps of the rungs: min_steps, eta times as many, …, and last `steps`."""
    found, at = [], min_steps
    while at < steps:
        found.append(at)
        at *= eta
    return (*found, steps)
