"""End a run once an evaluation has reached a return."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.training.steering import STOP, Answer, Callback, Progress


@dataclass
class StopAtReturn(Callback):
    """Stops as soon as the mean return of an evaluation is at least `mean`.

    mean: return at which the run stops.
    """

    mean: float

    def on_evaluation(self, event: Progress) -> Answer:
        reached = event.eval_mean is not None and event.eval_mean >= self.mean
        return STOP if reached else None
