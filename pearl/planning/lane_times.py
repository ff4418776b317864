"""The time of the lanes of a run by what they did, and the calls of a few steady iterations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CallTime:
    """The time of a lane in one of its calls, in seconds over the whole run.

    call: name of the task, or the members of a fused call joined with +.
    calls: number of calls.
    busy_s: time in the call, without `python_s` and `transfer_s`.
    python_s: time in Python environments.
    transfer_s: time in copies to and from a device with separate memory.
    waiting_s: time before the call, for other lanes.
    """

    call: str
    calls: int
    busy_s: float
    python_s: float
    transfer_s: float
    waiting_s: float


@dataclass(frozen=True)
class LaneTime:
    """The time of a lane in seconds; the parts add up to `wall_s`.

    lane: its name.
    wall_s: from the first iteration to the end of the lane, by a clock read once at each end.
    calls: the calls of the lane, with their times.
    runtime_s: in the protocol between the calls, without `profiler_s`.
    python_s: in the training loop between segments of iterations; 0 for lanes without the loop.
    held_s: held for evaluations, checkpoints, a pace, or the limit of iterations.
    profiler_s: in reading the clock, estimated from a separate measurement.
    """

    lane: str
    wall_s: float
    calls: tuple[CallTime, ...]
    runtime_s: float
    python_s: float
    held_s: float
    profiler_s: float

    @property
    def busy_s(self) -> float:
        """Seconds in calls."""
        return sum(c.busy_s for c in self.calls)

    @property
    def waiting_s(self) -> float:
        """Seconds that the lane waited for other lanes."""
        return sum(c.waiting_s for c in self.calls)

    @property
    def transfer_s(self) -> float:
        """Seconds in copies to and from a device."""
        return sum(c.transfer_s for c in self.calls)

    @property
    def whole_python_s(self) -> float:
        """Seconds in Python: of the training loop and of environments."""
        return self.python_s + sum(c.python_s for c in self.calls)


@dataclass(frozen=True)
class MeasuredCall:
    """One call of a lane in the window of a run whose calls are recorded.

    lane: its name. call: as in `CallTime`.
    firing: number of the task's firing, from 0; for a fused call, its iteration.
    start_s, end_s: seconds since the start of the first call in the window. If a device continues a
        call, end_s is the time when the lane is free again.
    lag: observed lag (`Run.lags`) in this call; None for a call without lag.
    """

    lane: str
    call: str
    firing: int
    start_s: float
    end_s: float
    lag: int | None = None
