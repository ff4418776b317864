"""The times of single calls: of one round in each stretch of a lane, from begin to completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns

from pearl.runtime.protocol.binding import BoundFiring
from pearl.runtime.protocol.lane_recorder import record_time
from pearl.runtime.protocol.single_lane import StopWord
from pearl_devices import Call
from pearl_devices.base import Pending, finish


class CallTimer:
    """Times the calls of a lane until they are complete, on a device too.

    times_ns: name of a call → its times.
    """

    def __init__(self, stop_word: StopWord, times_ns: dict[str, list[int]]) -> None:
        self.stop_word, self.times_ns, self._spent_ns = stop_word, times_ns, 0

    def timers(self, s: BoundFiring, number: int) -> list[Call]:
        """Return the calls of a firing, timed, for round `number`."""
        return [partial(self._time_call, call, s, number) for call in s.calls]

    def _time_call(self, call: Call, s: BoundFiring, number: int) -> Pending | None:
        """Time a call. If the stop word interrupts it, the call that completes it adds its time."""
        begin = perf_counter_ns()
        resumes = s.interruptible and self.stop_word.completed_steps > 0
        before_ns = self._spent_ns if resumes else 0
        self._spent_ns = 0

        def record(begin: int) -> None:
            record_time(self.times_ns, s.name, perf_counter_ns() - begin)

        pending = call()
        if pending is None:
            finish(call)
            timed_whole = not resumes or before_ns > 0
            if s.interruptible and self.stop_word.completed_steps:
                spent_ns = before_ns + perf_counter_ns() - begin
                self._spent_ns = spent_ns if timed_whole else 0
                return None
            if timed_whole:
                record(begin - before_ns)
        if s.lag is not None:
            s.lag(number)
        return pending and _TimedPending(pending, lambda: record(begin))


@dataclass(slots=True)
class _TimedPending:
    """A pending firing that is timed when a check finds it done."""

    pending: Pending
    record: Callable[[], None]

    def done(self) -> bool:
        done = self.pending.done()
        if done:
            self.record()
        return done
