"""Returns that algorithms learn from after a rollout, and how far ahead each reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal

from pydantic import Field, StrictInt
from pydantic.dataclasses import dataclass

from pearl.algorithms.fields import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NStep:
    """Returns of n rewards plus the value of the next observation."""

    n_step: StrictInt = Field(ge=1, le=2**20, description="Rewards, at most rollout_steps.")


Returns = Literal["gae", "monte_carlo"] | NStep


def steps_ahead(returns: Returns) -> int:
    """Return the vector steps that a return reads beyond its own; 0 for the whole rollout."""
    return returns.n_step if isinstance(returns, NStep) else 0


def returns_misfits(options: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """The options of an algorithm with rollouts that contradict its returns, by their keys."""
    given, steps = steps_ahead(options.returns), options.rollout_steps
    if given > steps:
        what = f"given {given}; a window longer than the rollout: at most rollout_steps ({steps})"
        yield ("returns", "n_step"), f"{what} is allowed, or returns: monte_carlo"
    own = {f.name: getattr(f.default, "default", f.default) for f in fields(options)}["gae_lambda"]
    if options.returns != "gae" and options.gae_lambda not in (1.0, own):
        what = f"given {options.gae_lambda}; only `returns: gae` has a trace: remove the key"
        yield ("gae_lambda",), what
