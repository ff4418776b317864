"""What points that were timed again say of doubts, and of what was learned beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from pearl_estimators.host.calibration import Calibration
from pearl_estimators.host.run_corrections import NEWS, IterationStats

CHANGED = 1.15
"""Times further apart than this factor are of a host that has changed."""


def settled(before: Calibration, after: Calibration) -> Calibration:
    """`after`, in which points were timed again, without the doubts that the timings answer.

    Answered are families all of whose points were timed again, not under load. Families that had
    not changed are upheld.
    """
    old = {p.key: p for p in before.points}
    doubts, upheld = dict(after.doubts), dict(after.upheld)
    for name, factor in before.doubts.items():
        mine = [p for p in after.points if p.named == name and p.key in old]
        if any(p.loaded or p == old[p.key] for p in mine):
            continue
        del doubts[name]
        upheld.pop(name, None)
        if mine and alike(median(p.seconds / old[p.key].seconds for p in mine), 1.0):
            upheld[name] = factor
    kept = tuple(s for s in before.learned if not _changed(s, before, after))
    return replace(after, doubts=doubts, upheld=upheld, again=after.created, learned=kept)


def _changed(seen: IterationStats, before: Calibration, after: Calibration) -> bool:
    """Whether a family of this iteration was timed again and takes another time now, so that what
    runs took is known beside estimates that are no more."""
    old = {p.key: p.seconds for p in before.points}
    for named in {p.named for p in seen.parts}:
        mine = [p for p in after.points if p.named == named and p.key in old]
        ratios = [p.seconds / old[p.key] for p in mine if p.seconds != old[p.key]]
        if ratios and abs(math.log(median(ratios))) > NEWS:
            return True
    return False


def alike(a: float, b: float) -> bool:
    """Whether two factors are within CHANGED of each other."""
    return max(a, b) <= CHANGED * min(a, b)
