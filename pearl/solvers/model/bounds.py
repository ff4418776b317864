"""`CostBound`: a cost that no plan undercuts, and where the proof comes from."""

from __future__ import annotations

from typing import NamedTuple


class CostBound(NamedTuple):
    """A proven bound; of two the larger one is `max`.

    cost: seconds or joules of an iteration, or seconds of a makespan.
    source: one of `pearl.planning.plans.BOUND_SOURCES`.
    """

    cost: float
    source: str


NOTHING, ALL = CostBound(0.0, ""), CostBound(float("inf"), "search")
"""Where nothing is proven, and where there is no other plan."""
