"""Learning rates: a number, or a schedule over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from pearl.algorithms.fields import STRICT, Rate, Share

if TYPE_CHECKING:
    from pearl_devices import Buffers


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RateSchedule:
    """A learning rate that falls over the whole run. Algorithms that learn from rollouts read it
    once per rollout, others at every gradient step."""

    initial: Rate = Field(description="At the first gradient step.")
    final: Share = Field(default=0.0, description="At the last gradient step.")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        default="linear",
        description="How the rate falls: in a line, along half a cosine, or not at all (constant).",
    )


LearningRate = Rate | RateSchedule


def write(buffers: Buffers, network: str, rate: float | RateSchedule, steps: float) -> None:
    """Fill `hyper.lr.<network>` (`pearl_devices.kernels.arrays`). steps: optimiser steps of the
    network in the whole run."""
    given = buffers[f"hyper.lr.{network}"]
    if not isinstance(rate, RateSchedule):
        given[:] = rate
    elif rate.schedule == "constant":
        given[:] = rate.initial
    else:
        given[:] = rate.initial, rate.final, max(steps, 1.0), float(rate.schedule == "cosine")
