"""Clocks of a run: of this machine, or of the model for an emulated plan."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Clock(Protocol):
    """Measures the seconds of iterations.

    simulated: whether the seconds come from a model.
    """

    simulated: bool

    def start(self) -> None:
        """Note that iterations are about to run."""

    def stop(self, iteration: int) -> float:
        """Return the seconds of the iterations since `start`; `iteration` of the run is reached."""


class RealClock:
    """Wall time of this machine."""

    simulated = False

    def __init__(self) -> None:
        self._begin = 0.0

    def start(self) -> None:
        self._begin = time.perf_counter()

    def stop(self, iteration: int) -> float:
        return time.perf_counter() - self._begin


class VirtualClock:
    """The time that self-timed execution of the plan takes by its estimates.

    completions_s: end of every iteration, from `pearl.graph.period.simulate`, float64, shape
        (iterations,).
    """

    simulated = True

    def __init__(self, completions_s: npt.NDArray[np.float64], iteration: int = 0) -> None:
        self._ends = np.concatenate(([0.0], completions_s))
        self._at = iteration

    def start(self) -> None:
        pass

    def stop(self, iteration: int) -> float:
        spent = float(self._ends[iteration] - self._ends[self._at])
        self._at = iteration
        return spent
