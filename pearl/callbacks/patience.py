"""End a run whose evaluations get no better (early stopping; Prechelt 1998)."""

from __future__ import annotations

from dataclasses import dataclass, field

from pearl.errors import SpecError
from pearl.training.steering import STOP, Answer, Callback, Progress


@dataclass
class Patience(Callback):
    """Stops after `evaluations` evaluations in a row without improvement on the best one.

    evaluations: at least 1.
    gain: least increase of the mean return that counts as improvement.
    """

    evaluations: int
    gain: float = 0.0
    _best: float | None = field(default=None, init=False, repr=False)
    _without: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise SpecError(f"Patience: evaluations is {self.evaluations}; at least 1 is needed")

    def on_evaluation(self, event: Progress) -> Answer:
        if event.eval_mean is None:
            return None
        if self._best is None or event.eval_mean > self._best + self.gain:
            self._best, self._without = event.eval_mean, 0
            return None
        self._without += 1
        return STOP if self._without >= self.evaluations else None
