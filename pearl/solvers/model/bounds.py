"""`Bound`: a cost that no plan undercuts, and where the proof comes from."""

from __future__ import annotations

from typing import NamedTuple


class Bound(NamedTuple):
    """A proven bound; of two the larger one is `max`.

    cost: seconds or joules of an iteration, or seconds of a makespan.
    source: one of `pearl.planning.plans.BOUND_SOURCES`.
    """

    cost: float
    source: str


NOTHING, ALL = Bound(0.0, ""), Bound(float("inf"), "search")
"""Where nothing is proven, and where there is no other plan."""
