"""Trace events in Chrome's format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Each device is a process, each of its lanes a thread, each firing a complete event, each message a
flow between two firings; counters show numbers ("Trace Event Format", Google, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NANOSECONDS = 1e9
"""Readers cut times to nanoseconds, and drop a call that begins before the end of the last one."""

INSIDE_NS = 2
"""Nanoseconds before the end of a call at which its flows begin: readers bind a flow to the call
that is open at its time, and the next call may begin at the end."""


class TraceEvents:
    """A collection of events. `to_json` returns the object of a trace file."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._flows = 0

    def _where(self, device: str, lane: str) -> dict[str, int]:
        """Return the numbers of a process and a thread, which get their names at the first use."""
        if device not in self._processes:
            self._processes[device] = len(self._processes) + 1
            number = self._processes[device]
            self._name("process_name", device, number, 0)
            order = {"name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
            self._events.append({"ph": "M", "tid": 0, **order})
        pid = self._processes[device]
        if lane and (device, lane) not in self._threads:
            self._threads[device, lane] = len(self._threads) + 1
            self._name("thread_name", lane, pid, self._threads[device, lane])
        return {"pid": pid, "tid": self._threads[device, lane] if lane else 0}

    def _name(self, what: str, name: str, pid: int, tid: int) -> None:
        event = {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
        self._events.append(event)

    def call(
        self,
        device: str,
        lane: str,
        name: str,
        start_s: float,
        end_s: float,
        values: Mapping[str, object],
    ) -> None:
        """Add a call on a lane. values: shown when the call is selected."""
        begin, end = _nanoseconds(start_s), _nanoseconds(end_s)
        where = self._where(device, lane)
        event = {"ph": "X", "name": name, "cat": "call"}
        times = {"ts": _microseconds(begin), "dur": _microseconds(end - begin)}
        self._events.append({**event, **times, **where, "args": dict(values)})

    def flow(
        self,
        name: str,
        source: tuple[str, str, float, float],
        target: tuple[str, str, float, float],
        values: Mapping[str, object] | None = None,
    ) -> None:
        """Add an arrow from the end of a call to the start of another.

        source, target: device, lane, start and end of the call, in seconds.
        values: shown when the arrow is selected.
        """
        self._flows += 1
        begin, end = _nanoseconds(source[2]), _nanoseconds(source[3])
        ends = ("s", source, max(end - INSIDE_NS, begin)), ("f", target, _nanoseconds(target[2]))
        for phase, (device, lane, *_), at in ends:
            event = {"ph": phase, "id": self._flows, "name": name, "cat": "transfer"}
            where = self._where(device, lane)
            event |= {"bp": "e", "ts": _microseconds(at), "args": dict(values or {})}
            self._events.append({**event, **where})

    def counter(self, group: str, name: str, at_s: float, value: float) -> None:
        """Add the value of a counter from a time on. group: the process that shows the counter."""
        where = self._where(group, "")
        at = _microseconds(_nanoseconds(at_s))
        event = {"ph": "C", "name": name, "ts": at, "args": {"value": value}}
        self._events.append({**event, **where})

    def to_json(self) -> dict[str, Any]:
        """Return the object of a trace file, without events whose times are not finite."""
        return {"traceEvents": [e for e in self._events if _finite(e)], "displayTimeUnit": "ms"}


def _nanoseconds(seconds: float) -> float:
    """Whole nanoseconds; infinite ones, of which files can make more, stay as they are."""
    found = seconds * NANOSECONDS
    return round(found) if math.isfinite(found) else found


def _microseconds(nanoseconds: float) -> float:
    """The unit of the format, from which readers get the same whole nanoseconds by cutting."""
    found = nanoseconds / 1000
    if not math.isfinite(found) or math.floor(found * 1000) == nanoseconds:
        return found
    return math.nextafter(found, math.inf)


def _finite(event: Mapping[str, Any]) -> bool:
    times = (event.get("ts", 0.0), event.get("dur", 0.0), event["args"].get("value", 0.0))
    return all(math.isfinite(t) for t in times)
