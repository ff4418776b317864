"""`CostBound`: a cost that no plan undercuts, and the source of the proof."""

from __future__ import annotations

from typing import NamedTuple


class CostBound(NamedTuple):
    """A proven bound. The better one of two bounds is their `max`.

    cost: seconds or joules of an iteration, or seconds of a makespan.
    source: one of `pearl.planning.plans.BOUND_SOURCES`.
    """

    cost: float
    source: str


NOTHING, ALL = CostBound(0.0, ""), CostBound(float("inf"), "search")
"""Values for "nothing is proven" and for "there is no other plan"."""
