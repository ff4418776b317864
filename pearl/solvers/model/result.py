"""What a method hands back: the best assignment with its orders, and the proven bound."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.planning.timing import Assignment
from pearl.solvers.model.lane_sequencing import Ordered

SAME = 1e-8
"""Relative difference below which two costs count as equal."""


@dataclass(frozen=True)
class Found:
    """An assignment with its orders. period_s: after pacing. cost: what is minimised, seconds or
    joules of an iteration."""

    assignment: Assignment
    ordered: Ordered
    period_s: float
    cost: float


@dataclass(frozen=True)
class Outcome:
    """The best plan found; no plan costs less than `bound`. late: time ran out."""

    best: Found
    bound: float
    late: bool
