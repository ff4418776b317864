"""Trace events in Chrome's format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

A process for each device, a thread for each of its lanes, a complete event for each firing and a
flow from the firing that sends to the one that waits ("Trace Event Format", Google, 2016).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MICROSECONDS = 1e6
"""Units of time of the format in a second."""


class TraceEvents:
    """Events in the making. `to_json` is the object that a file of the format holds."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._flows = 0

    def _where(self, device: str, lane: str) -> dict[str, int]:
        """The numbers of a process and a thread, named at their first use."""
        if device not in self._processes:
            self._processes[device] = len(self._processes) + 1
            self._name("process_name", device, self._processes[device], 0)
        pid = self._processes[device]
        if (device, lane) not in self._threads:
            self._threads[device, lane] = len(self._threads) + 1
            self._name("thread_name", lane, pid, self._threads[device, lane])
        return {"pid": pid, "tid": self._threads[device, lane]}

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
        """A call on a lane. values: shown where the call is selected."""
        begin, whole = start_s * MICROSECONDS, (end_s - start_s) * MICROSECONDS
        where = self._where(device, lane)
        event = {"ph": "X", "name": name, "cat": "call", "ts": begin, "dur": whole}
        self._events.append({**event, **where, "args": dict(values)})

    def flow(
        self, name: str, source: tuple[str, str, float], target: tuple[str, str, float]
    ) -> None:
        """An arrow from a call to another. source, target: device, lane and a time, in seconds,
        within the call."""
        self._flows += 1
        for phase, (device, lane, at_s) in (("s", source), ("f", target)):
            event = {"ph": phase, "id": self._flows, "name": name, "cat": "transfer"}
            where = self._where(device, lane)
            self._events.append({**event, "bp": "e", "ts": at_s * MICROSECONDS, **where})

    def to_json(self) -> dict[str, Any]:
        return {"traceEvents": self._events, "displayTimeUnit": "ms"}
