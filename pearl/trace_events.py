"""Trace events in Chrome's format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Each device is a process, each of its lanes a thread, each firing a complete event, each message a
flow between two firings; counters show numbers ("Trace Event Format", Google, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MICROSECONDS = 1e6
"""Units of time of the format per second."""


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
        begin, whole = start_s * MICROSECONDS, (end_s - start_s) * MICROSECONDS
        where = self._where(device, lane)
        event = {"ph": "X", "name": name, "cat": "call", "ts": begin, "dur": whole}
        self._events.append({**event, **where, "args": dict(values)})

    def flow(
        self,
        name: str,
        source: tuple[str, str, float],
        target: tuple[str, str, float],
        values: Mapping[str, object] | None = None,
    ) -> None:
        """Add an arrow between two calls. source, target: device, lane and a time within the call,
        in seconds. values: shown when the arrow is selected."""
        self._flows += 1
        for phase, (device, lane, at_s) in (("s", source), ("f", target)):
            event = {"ph": phase, "id": self._flows, "name": name, "cat": "transfer"}
            where = self._where(device, lane)
            event |= {"bp": "e", "ts": at_s * MICROSECONDS, "args": dict(values or {})}
            self._events.append({**event, **where})

    def counter(self, group: str, name: str, at_s: float, value: float) -> None:
        """Add the value of a counter from a time on. group: the process that shows the counter."""
        where = self._where(group, "")
        event = {"ph": "C", "name": name, "ts": at_s * MICROSECONDS, "args": {"value": value}}
        self._events.append({**event, **where})

    def to_json(self) -> dict[str, Any]:
        """Return the object of a trace file, without events whose times are not finite."""
        return {"traceEvents": [e for e in self._events if _finite(e)], "displayTimeUnit": "ms"}


def _finite(event: Mapping[str, Any]) -> bool:
    times = (event.get("ts", 0.0), event.get("dur", 0.0), event["args"].get("value", 0.0))
    return all(math.isfinite(t) for t in times)
