"""Where the time of a lane goes: in its calls, in waits, and in the protocol around them.

Waits are timed whenever a lane waits. Calls are timed in one round of so many that reading the
clock takes at most `SHARE` of the predicted time. In a window of steady iterations, every lane
keeps the begin and the end of every call (the timeline and the trace of a run).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pearl_devices import Call

SHARE = 0.001
"""Most of the predicted time that timing the calls may take, by `stamp_s`. Between calls that fill
the caches, a stamp takes several times as long."""

KEPT_ITERATIONS, KEPT_CALLS = 8, 600
"""Iterations of the window, at most, and about how many calls of all lanes the window may have."""

TIMES = 2048
"""Most times that are stored of a call, so that a run of days needs no more memory."""

NEVER = 1 << 62
"""`Sampling.every` of a lane whose calls are not timed."""


class Place(NamedTuple):
    """A call in the round of a lane.

    call: its name. offset: iterations that it runs ahead.
    number, per_round: which of the task's firings in an iteration it is, and their number.
    """

    call: str
    offset: int = 0
    number: int = 0
    per_round: int = 1


@dataclass(frozen=True)
class Sampling:
    """The rounds whose calls are timed.

    every: one round of so many.
    first, last: each call of the rounds first … last − 1 is kept.
    """

    every: int = NEVER
    first: int = 0
    last: int = 0


UNTIMED = Sampling()
"""No round is timed."""


def plan_sampling(calls: int, period_s: float, begin: int, total: int) -> Sampling:
    """Choose the rounds to time.

    calls: of one iteration, over all lanes.
    period_s: predicted seconds of an iteration.
    begin, total: iteration from which the run is steady, and its last iteration.
    """
    every = max(1, round(0.5 + calls * stamp_s() / (SHARE * max(period_s, 1e-9))))
    length = min(KEPT_ITERATIONS, max(2, KEPT_CALLS // max(calls, 1)))
    first = max(0, min(begin, total - length))
    return Sampling(every, first, first + length)


@cache
def stamp_s() -> float:
    """Return the seconds that timing one call takes on this host."""
    recorder, found = LaneRecorder("", [Place("")], UNTIMED), []
    rounds, call, time_call = 200, _nothing, recorder.time_call
    for _ in range(9):
        begin = perf_counter_ns()
        for _ in range(rounds):
            call()
        bare = perf_counter_ns()
        for _ in range(rounds):
            time_call(0, call, 0, False)
        found.append((perf_counter_ns() - bare - (bare - begin)) / rounds)
    return median(found) * 1e-9


def _nothing() -> None:
    """Do nothing."""


class LaneRecorder:
    """The times of one lane, in nanoseconds of `perf_counter_ns`, by the place in its round.

    lane: its name.
    busy_ns, calls: spent in timed calls, and their number.
    waiting_ns: waited for other lanes, before a call.
    held_ns: waited for the training loop: at pauses, at the limit of iterations, for a pace.
    wall_ns: from the beginning to the end of the lane; 0 for the lanes of the training thread.
    rounds, timed_rounds: how many there were, and how many were timed.
    kept: place, firing, begin and end of each call in the window, its lag or -1.
    """

    def __init__(self, lane: str, places: Iterable[Place], sampling: Sampling) -> None:
        self.lane, self.places, self.sampling = lane, tuple(places), sampling
        zeros = [0 for _ in self.places]
        self.busy_ns, self.calls, self.waiting_ns = [*zeros], [*zeros], [*zeros]
        self.held_ns = self.wall_ns = self.rounds = self.timed_rounds = 0
        self.kept: list[tuple[int, int, int, int, int]] = []

    @classmethod
    def of_calls(cls, names: Sequence[str], sampling: Sampling) -> LaneRecorder:
        """Make the recorder of a lane without a name. names: of the calls of a round, in order."""
        places = [
            Place(name, 0, names[:n].count(name), names.count(name)) for n, name in enumerate(names)
        ]
        return cls("", places, sampling)

    def rounds_alike(self, number: int, rounds: int) -> int:
        """Return how many of the next `rounds` rounds may be one call: 1 in the window, and none
        before the window that ends in it."""
        s = self.sampling
        if s.first <= number < s.last:
            return 1
        return min(rounds, s.first - number) if number < s.first else rounds

    def keeps(self, number: int) -> bool:
        """Whether the calls of round `number` are kept."""
        return self.sampling.first <= number < self.sampling.last

    def begin_timed(self) -> None:
        """Begin a round whose calls are timed, whatever its number."""
        self.rounds += 1
        self.timed_rounds += 1

    def count(self, rounds: int) -> None:
        """Count `rounds` rounds, all of whose calls were one call of the lane."""
        self.calls[0] += rounds - 1
        self.rounds += rounds
        self.timed_rounds += rounds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this context, the lane runs."""
        begin = perf_counter_ns()
        try:
            yield
        finally:
            self.wall_ns += perf_counter_ns() - begin

    def hold(self, until_s: float) -> None:
        """Sleep until `until_s` of `perf_counter`."""
        begin = perf_counter_ns()
        time.sleep(max(0.0, until_s - begin * 1e-9))
        self.held_ns += perf_counter_ns() - begin

    def next_timed(self, number: int) -> int:
        """Return the first round from `number` on whose calls are timed."""
        s = self.sampling
        due = -(-number // s.every) * s.every if s.every < NEVER else NEVER
        kept = max(number, s.first)
        return min(due, kept) if kept < s.last else due

    def time_call(
        self,
        place: int,
        call: Callable[[], object],
        number: int,
        kept: bool,
        lag: Callable[[int], int] | None = None,
    ) -> None:
        """Call `call` in round `number`, and add its time. kept, lag: see `kept`."""
        begin = perf_counter_ns()
        call()
        end = perf_counter_ns()
        self.busy_ns[place] += end - begin
        self.calls[place] += 1
        if kept:
            self.keep(place, number, begin, end, -1 if lag is None else lag(number))

    def add(self, place: int, number: int, begin: int, end: int, lag: int = -1) -> None:
        """Add a call of round `number`. lag: see `kept`."""
        self.busy_ns[place] += end - begin
        self.calls[place] += 1
        if self.keeps(number):
            self.keep(place, number, begin, end, lag)

    def keep(self, place: int, number: int, begin: int, end: int, lag: int = -1) -> None:
        """Keep a call of the window."""
        at = self.places[place]
        firing = (number + at.offset) * at.per_round + at.number
        self.kept.append((place, firing, begin, end, lag))

    def to_json(self, calls: Sequence[tuple[str, Call]] = ()) -> dict[str, Any]:
        """Describe the record to the process that trains. calls: name and bound call, for the time
        that copies to and from a device took in them."""
        copied: dict[str, int] = {}
        for name, call in {id(c): (n, c) for n, c in calls}.values():
            copied[name] = copied.get(name, 0) + getattr(call, "copied_ns", (0,))[0]
        return {
            "lane": self.lane,
            "names": [p.call for p in self.places],
            "busy_ns": self.busy_ns,
            "calls": self.calls,
            "waiting_ns": self.waiting_ns,
            "copied_ns": copied,
            "held_ns": self.held_ns,
            "wall_ns": self.wall_ns,
            "rounds": self.rounds,
            "timed_rounds": self.timed_rounds,
            "stamp_s": stamp_s(),
            "kept": self.kept,
        }


def record_time(times_ns: dict[str, list[int]], name: str, spent_ns: int) -> None:
    """Add a time of a call; beyond `TIMES`, drop the older half."""
    times = times_ns.setdefault(name, [])
    times.append(spent_ns)
    if len(times) >= TIMES:
        del times[: TIMES // 2]


def medians_s(times_ns: dict[str, list[int]]) -> dict[str, tuple[float, int]]:
    """Map each job name to (median seconds a call, number of timed calls)."""
    values: dict[str, npt.NDArray[np.int64]] = {k: np.asarray(v) for k, v in times_ns.items()}
    return {name: (float(np.median(v)) * 1e-9, v.size) for name, v in values.items()}
