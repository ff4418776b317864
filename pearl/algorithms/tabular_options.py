"""Options of the tabular algorithms; `offline:` is learning from a log, in chunks of equal size.

The scheme of `offline` is that of SwiftRL (Gogineni et al. 2024, arXiv 2405.03967): each chunk has
its own table, and the tables are averaged every `limits.averaging` sweeps. One core of a device
that processes in memory learns from one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

from pearl.algorithms.fields import STRICT, Rate, Share
from pearl.algorithms.options import Acting, Disagreement, EpsilonGreedy


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Offline:
    """A log of transitions: exactly one of `data` and `collect`."""

    data: StrictStr | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A .npz file of numpy with arrays of one length: state, action, reward, "
        "next_state, terminated and, for sarsa, next_action.",
    )
    collect: StrictInt | None = Field(
        default=None, ge=1, le=10**9, description="Env steps of random actions to log at the start."
    )
    chunks: StrictInt = Field(
        default=1,
        ge=1,
        le=65536,
        description="Equal parts of the log, each with a table: one for each core of a device.",
    )
    format: Literal["fp32", "int32"] = Field(
        default="fp32", description="Numbers of the tables: float32, or fixed point (int32)."
    )
    scale: StrictInt = Field(
        default=2**16,
        ge=2,
        le=2**30,
        description="int32: a table holds its values times this power of two.",
    )
    order: Literal["seq", "str", "ran"] = Field(
        default="seq",
        description="Transitions of a sweep: in the log's order (seq), with a stride (str), or "
        "drawn with replacement (ran).",
    )

    def __post_init__(self) -> None:
        if (self.data is None) == (self.collect is None):
            raise ValueError("exactly one of data and collect")
        if self.scale & (self.scale - 1):
            raise ValueError(
                f"scale is {self.scale}; it must be a power of two such as 65536, by which a shift "
                "divides"
            )

    @property
    def bits(self) -> int:
        """Bits behind the point of a table of int32; 0 of float32."""
        return self.scale.bit_length() - 1 if self.format == "int32" else 0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TabularOptions(Acting):
    """Options of the tabular algorithms. Discrete observations and actions."""

    learning_rate: Rate = Field(default=0.1, description="Step size of an entry's first update.")
    learning_rate_power: Share = Field(
        default=0.0,
        description="The n-th update of an entry takes learning_rate / n^power; 0 is constant.",
    )
    initial_value: StrictFloat = Field(
        default=0.0, ge=-1e9, le=1e9, description="Initial value of every entry."
    )
    exploration: EpsilonGreedy = Field(
        default_factory=EpsilonGreedy, description="Share of random actions."
    )
    offline: Offline | None = Field(default=None, description="Learn from a log of transitions.")

    def disagreements(self) -> Iterator[Disagreement]:
        offline = self.offline
        if offline is None:
            return
        if offline.collect is not None and offline.collect < offline.chunks:
            what = (
                f"given {offline.collect}; {offline.chunks} chunks need a transition each: collect "
            )
            yield ("offline", "collect"), f"{what}{offline.chunks} or more, or take fewer chunks"
        if self.num_envs != 1:
            what = f"given {self.num_envs}; learning from a log steps no environments: leave it out"
            yield ("num_envs",), what
        if self.learning_rate_power:
            what = f"given {self.learning_rate_power}; learning from a log has a constant step size"
            yield ("learning_rate_power",), f"{what}: leave it out"
        if offline.bits and self.learning_rate * offline.scale < 1:
            what = (
                f"given {self.learning_rate}; in int32 tables of scale {offline.scale} it is below"
            )
            yield ("learning_rate",), f"{what} one unit: raise one of the two, or take format fp32"
        if offline.bits and self.discount >= 1:
            what = f"given {self.discount}; int32 tables need a discount below 1, which bounds them"
            yield ("discount",), f"{what}: lower it, or take format fp32"


def find_idle_averaging(options: Acting, averaging: int) -> Iterator[Disagreement]:
    """Yield the problem of `limits.averaging` of a system that has no tables to average."""
    if averaging > 1 and getattr(options, "offline", None) is None:
        what = (
            f"given {averaging}; only tables that learn from a log are averaged: leave it out, or "
        )
        yield ("limits", "averaging"), f"{what}set algorithm.offline of q_learning or sarsa"
