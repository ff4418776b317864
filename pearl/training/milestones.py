"""The iterations at which a run does more than train."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Milestones:
    """Iterations at which a run does more than train.

    total: the last iteration.
    warm: the iteration from which gradient steps are taken.
    steady: the iteration from which rates are counted.
    evaluate_every, checkpoint_every: iterations between two of them; 0: never.
    metrics_every: the same, at least 1.
    """

    total: int
    warm: int
    steady: int
    evaluate_every: int
    checkpoint_every: int
    metrics_every: int

    def next_poll(self, at: int) -> int:
        """Return the next iteration at which the loop must check clock, signals and losses."""
        looks = [self.next_stop(at), *(s for s in (self.warm, self.steady) if s > at)]
        looks.append((at // self.metrics_every + 1) * self.metrics_every)
        return min(looks)

    def next_stop(self, at: int) -> int:
        """Return the next iteration that all lanes must reach together."""
        stops = [self.total]
        for every in (self.evaluate_every, self.checkpoint_every):
            if every:
                stops.append((at // every + 1) * every)
        return min(stops)
