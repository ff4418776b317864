"""What a plan says of its own doubt: bands of its predictions, and its regret."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from pearl.errors import SpecError
from pearl_devices.validation import quote

PROVED = 1e-6
"""Gap up to which a plan counts as the best."""

Ends = tuple[float, float] | None
"""Low and high; None: not finite, or not known."""


@dataclass(frozen=True)
class Bands:
    """The 90 % bands of what a plan predicts, (low, high) each: 5 and 95 % of draws of its times
    (`pearl.planning.draws`), everything else as it is.

    draws, seed: how many draws, and their seed.
    period_s, energy_per_iteration_j, power_w: of an iteration, SI units.
    env_steps_per_s, updates_per_s, samples_per_s, env_steps_per_j: as in the plan.
    missed: draws in which idling alone exceeds the limit on power; their rates count as 0.
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
    """The regret of a plan chosen for it: its cost over the least one, less 1, over draws of times.
    It lies between two ends, which are equal where the least cost of every draw is proved.

    kind: `mean` or `worst` over the draws was made least. draws, seed: how many, and their seed.
    mean, worst: of this plan at least, as shares. bound: no plan has a smaller one of its kind.
    solved: draws whose least cost is proved.
    mean_high, worst_high: of this plan at most; None: of some draw no least cost is proved.
    least_s: of each draw, the seconds an iteration of the best plan known; 0 where the draw has no
        plan at all, for idling alone exceeds a limit on power. Empty: not kept.
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
        """The upper end of the kind, infinite where there is none."""
        end = self.mean_high if self.kind == "mean" else self.worst_high
        return math.inf if end is None else end

    @property
    def gap(self) -> float:
        """Share of its cost, in units of the least one, by which a plan of less regret may be
        better: 0 to 1."""
        return max(0.0, 1 - (1 + self.bound) / (1 + self.high))

    @property
    def is_proved(self) -> bool:
        """Whether every draw is solved and no plan has a smaller regret of the kind."""
        return self.solved == self.draws and self.gap <= PROVED
