"""Timing a few kernels for a short while, as after a run that used them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pearl_estimators.host.benchmark_kernels import GROUPS
from pearl_estimators.host.calibration import Calibration
from pearl_estimators.host.calibration_file import hold, path
from pearl_estimators.host.journal import asked, empty, gathered, journal_of, timeable, told
from pearl_estimators.host.on_demand import keep, remembered, timed_now

AIM_S = 1.5
"""What timing aims at; a host that is slow, or busy, takes longer, up to the limit."""


def never_timed(names: Iterable[str]) -> list[str]:
    """Those of these families and variants (`Point.named`) of which this host's calibration lacks
    kernels."""
    known = remembered(path()) or empty()
    return [name for name in dict.fromkeys(names) if _lacking(known, [name])]


def time_some(names: Sequence[str], limit_s: float) -> tuple[int, int]:
    """Time what this host's calibration lacks of these families and variants, in this order, in a
    child process that ends after limit_s.

    Returns how many kernels were timed, and how many are left. What was timed is kept however it
    ends.

    Raises:
        OSError: the folder of the calibration cannot be written.
    """
    file = path()
    with hold(file, limit_s) as held:
        known = remembered(file) or empty()
        before = _lacking(known, names)
        if not held or not before:
            return 0, before
        journal = journal_of(file)
        if unfinished := told(journal):
            known = gathered(known, unfinished)
        else:
            journal.unlink(missing_ok=True)
        groups = {g for g in GROUPS if timeable(g).intersection(names)}
        try:
            timed_now(known, groups, min(AIM_S, limit_s), limit_s, names)
        finally:
            found = gathered(known, told(journal))
            keep(found)
        left = _lacking(found, names)
        return before - left, left


def _lacking(known: Calibration, names: Sequence[str]) -> int:
    """How many kernels of these families and variants a complete calibration has beyond `known`."""
    have = {p.key for p in known.points}
    wanted = set(names) - set(known.skipped)
    keys = (key for g in GROUPS if wanted & timeable(g) for name, key in asked(g) if name in wanted)
    return sum(key not in have for key in keys)
