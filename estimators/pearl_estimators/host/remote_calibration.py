"""Calibrations of other hosts: computers of a cluster that time their own kernels when asked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

from pearl_estimators.host.calibration import Calibration, CalibrationWarning
from pearl_estimators.host.journal import empty

Measure = Callable[[Sequence[str]], tuple[Calibration, str]]
"""Measures groups as `calibrator.measured_calibration` does."""

MEASURED_BY: dict[str, Measure] = {}
"""Host, other than this one → the function that measures there; those of one cluster."""

_known: dict[str, tuple[Calibration, frozenset[str]]] = {}
"""Host → its calibration, and the groups that were asked for."""


def enter(hosts: Mapping[str, Measure]) -> None:
    """Have these hosts measured, and no others."""
    for known in (MEASURED_BY, _known):
        known.clear()
    MEASURED_BY.update(hosts)


def calibration_of(host: str, wanted: set[str]) -> Calibration:
    """The calibration of a host in MEASURED_BY with these groups, each asked for once.

    Raises:
        CalibrationError: it cannot be had.
    """
    found, asked = _known.get(host, (empty(), frozenset[str]()))
    if not wanted <= asked:
        found, why = MEASURED_BY[host](sorted(wanted))
        _known[host] = found, asked | wanted
        if why:
            warnings.warn(
                f"host {host}: {why}; what is not timed there is estimated from the data sheet",
                CalibrationWarning,
                stacklevel=3,
            )
    return found
