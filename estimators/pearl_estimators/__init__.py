"""Time and energy of kernels on devices. Imports `pearl_devices`, never `pearl`."""

from __future__ import annotations

from pearl_estimators.estimates import Estimate
from pearl_estimators.ladder import estimate

__all__ = ["Estimate", "estimate"]
