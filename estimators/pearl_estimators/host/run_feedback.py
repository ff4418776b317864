"""What a finished run tells the calibration of its host: what it doubts, and what it took."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

from pearl_estimators.host.calibration import CalibrationWarning
from pearl_estimators.host.calibration_file import hold, path, store
from pearl_estimators.host.calibrator import remembered
from pearl_estimators.host.journal import gathered
from pearl_estimators.host.run_corrections import IterationStats, with_run
from pearl_estimators.host.timed_again import alike

WAIT_S = 2.0
"""Longest wait for a process that measures; what the run tells is then not kept."""


def mark_doubtful(factors: Mapping[str, float]) -> list[str]:
    """Mark families that a run contradicts, to be timed again; returns the newly marked ones.

    A family that was timed again for such a factor and had not changed is not marked again.

    factors: family and variant → measured / estimated seconds.
    """
    file = path()
    if not factors or remembered(file) is None:
        return []
    try:
        with hold(file, WAIT_S) as held:
            known = remembered(file)
            if known is None or not held:
                return []
            fitted = {f"{f.family} {f.variant}" for f in known.fits}
            fresh = {
                name: factor
                for name, factor in factors.items()
                if name in fitted
                and not (name in known.upheld and alike(factor, known.upheld[name]))
                and not (name in known.doubts and alike(factor, known.doubts[name]))
            }
            if fresh:
                store(replace(known, doubts={**known.doubts, **fresh}))
    except OSError as error:
        warnings.warn(
            f"{error.filename or file}: {error.strerror}; the run's doubts are not kept",
            CalibrationWarning,
            stacklevel=2,
        )
        return []
    return sorted(fresh)


def record_run(new: IterationStats) -> bool:
    """Keep what a run took beside its uncorrected estimates, with the calibration or, where there
    is none, in one without points; False where it is no news, or cannot be kept."""
    file = path()
    try:
        with hold(file, WAIT_S) as held:
            if not held:
                return False
            known = remembered(file) or gathered(None, ())
            learned = with_run(known.learned, new)
            if learned == known.learned:
                return False
            store(replace(known, learned=learned))
    except OSError as error:
        warnings.warn(
            f"{error.filename or file}: {error.strerror}; what the run took is not kept",
            CalibrationWarning,
            stacklevel=2,
        )
        return False
    return True
