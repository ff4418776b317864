"""The uncertainty of a plan: bands of its predictions, and its regret."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from pearl.errors import SpecError
from pearl_devices.validation import quote

PROVED = 1e-6
"""Largest gap of a plan that counts as the best."""

Ends = tuple[float, float] | None
"""(low, high); None for an infinite or unknown end."""


@dataclass(frozen=True)
class Bands:
    """The 90 % bands of a plan's predictions, (low, high) each: 5 and 95 % of samples of its times
    (`pearl.planning.draws`), with everything else fixed.

    draws, seed: number of samples, and their seed.
    period_s, energy_per_iteration_j, power_w: of an iteration, SI units.
    env_steps_per_s, updates_per_s, samples_per_s, env_steps_per_j: as in the plan.
    missed: samples in which idling alone exceeds the limit on power; their rates count as 0.
        Plans of earlier versions do not count them.
    """

    draws: int
    seed: int
    period_s: tuple[float, float] | None
    env_steps_per_s: tuple[float, float] | None
    updates_per_s: tuple[float, float] | None
    samples_per_s: tuple[float, float] | None
    energy_per_iteration_j: tuple[float, float] | None
    power_w: tuple[float, float] | None
    env_steps_per_j: tuple[float, float] | None
    missed: int = 0

    def __post_init__(self) -> None:
        for f in fields(self):
            ends = getattr(self, f.name)
            if isinstance(ends, tuple) and len(ends) != 2:
                raise SpecError(
                    f"bands: {f.name} is {quote(ends)}; two numbers are needed, low and high"
                )


@dataclass(frozen=True)
class Regret:
    """The regret of a plan chosen by regret: its cost over the least cost, less 1, over samples of
    times. The regret lies between two ends, which are equal if the least cost of every sample is
    proved.

    kind: `mean` or `worst` over the samples was minimised. draws, seed: number of samples, their
        seed.
    mean, worst: lower ends for this plan, as fractions. bound: no plan has a smaller one of its
        kind.
    solved: samples whose least cost is proved.
    mean_high, worst_high: upper ends for this plan; None if a sample has no proved least cost.
    least_s: per sample, the seconds per iteration of the best known plan; 0 for a sample without
        any plan, because idling alone exceeds a limit on power. Empty: not stored.
    """

    kind: Literal["mean", "worst"]
    draws: int
    seed: int
    mean: float
    worst: float
    bound: float
    solved: int = 0
    mean_high: float | None = None
    worst_high: float | None = None
    least_s: tuple[float, ...] = ()

    @property
    def high(self) -> float:
        """The upper end of the kind; infinite if there is none."""
        end = self.mean_high if self.kind == "mean" else self.worst_high
        return math.inf if end is None else end

    @property
    def gap(self) -> float:
        """The largest share of its cost, in units of the least cost, by which a plan of less regret
        may be
        better: 0 to 1."""
        return max(0.0, 1 - (1 + self.bound) / (1 + self.high))

    @property
    def is_proved(self) -> bool:
        """Whether every draw is solved and no plan has a smaller regret of the kind."""
        return self.solved == self.draws and self.gap <= PROVED
