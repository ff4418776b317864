"""What a plan says of its own doubt: bands of its predictions, and its regret."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from pearl.errors import SpecError
from pearl_devices.given import shown

Ends = tuple[float, float] | None
"""Low and high; None: not finite, or not known."""


@dataclass(frozen=True)
class Bands:
    """The 90 % bands of what a plan predicts, (low, high) each: 5 and 95 % of draws of its times
    (`pearl.planning.draws`), everything else as it is.

    draws, seed: how many draws, and their seed.
    period_s, energy_per_iteration_j, power_w: of an iteration, SI units.
    env_steps_per_s, updates_per_s, samples_per_s, env_steps_per_j: as in the plan.
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

    def __post_init__(self) -> None:
        for f in fields(self):
            ends = getattr(self, f.name)
            if isinstance(ends, tuple) and len(ends) != 2:
                raise SpecError(
                    f"bands: {f.name} is {shown(ends)}; two numbers are needed, low and high"
                )


@dataclass(frozen=True)
class Regret:
    """The regret of a plan chosen for it: its cost over the least one, less 1, over draws of times.

    kind: `mean` or `worst` over the draws was made least. draws, seed: how many, and their seed.
    mean, worst: of this plan, as shares. bound: no plan has a smaller one of its kind.
    """

    kind: Literal["mean", "worst"]
    draws: int
    seed: int
    mean: float
    worst: float
    bound: float
