"""Timing a few kernels for a short while, as after a run that used them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from pearl_estimators.host.benchmark_kernels import GROUPS, code_of, group, training, variants
from pearl_estimators.host.calibration import Calibration
from pearl_estimators.host.calibration_file import hold, path
from pearl_estimators.host.calibrator import keep, remembered, timed_now
from pearl_estimators.host.journal import Key, empty, gathered, journal_of, read_journal
from pearl_estimators.host.linear_fit import point

AIM_S = 1.5
"""What timing aims at; a host that is slow, or busy, takes longer, up to the limit."""


def never_timed(codes: Iterable[str]) -> list[str]:
    """Those of these codes (`code_of`) of which this host's calibration lacks kernels."""
    known = remembered(path()) or empty()
    return [code for code in dict.fromkeys(codes) if _lacking(known, [code])]


def time_some(codes: Sequence[str], limit_s: float) -> tuple[int, int]:
    """Time what this host's calibration lacks of these codes, in this order, in a child process
    that ends after limit_s.

    Returns how many kernels were timed, and how many are left. What was timed is kept however it
    ends.

    Raises:
        OSError: the folder of the calibration cannot be written.
    """
    file = path()
    with hold(file, limit_s) as held:
        known = remembered(file) or empty()
        before = _lacking(known, codes)
        if not held or not before:
            return 0, before
        journal = journal_of(file)
        if unfinished := read_journal(journal):
            known = gathered(known, unfinished)
        else:
            journal.unlink(missing_ok=True)
        groups = {g for g in _groups(codes) if any(code in codes for code, _, _ in _asked(g))}
        try:
            timed_now(known, groups, min(AIM_S, limit_s), limit_s, codes)
        finally:
            found = gathered(known, read_journal(journal))
            keep(found)
        left = _lacking(found, codes)
        return before - left, left


def _groups(codes: Iterable[str]) -> set[str]:
    """The groups that kernels of these codes are timed in. Drawing the kernels of all groups takes
    a second."""
    found = set[str]()
    for code in codes:
        kind, _, program, *_ = (*code.split(" "), "", "")
        found.add(group(f"{kind} {program}"))
    return found & set(GROUPS)


@cache
def _asked(of: str) -> tuple[tuple[str, str, Key], ...]:
    """Code, family and variant, and `Point.key`, of every point of a group."""
    jobs = [(k, v) for k in training([of]) for v in variants(k)]
    points = [point(k, v, 1.0) for k, v in jobs]
    return tuple((code_of(*job), p.named, p.key) for job, p in zip(jobs, points, strict=True))


def _lacking(known: Calibration, codes: Sequence[str]) -> int:
    """How many kernels of these codes a complete calibration has beyond `known`."""
    have = {p.key for p in known.points}
    return sum(
        code in codes and named not in known.skipped and key not in have
        for g in _groups(codes)
        for code, named, key in _asked(g)
    )
