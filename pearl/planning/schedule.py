"""The firings of a plan in time: start and end of each, as a table, a chart and a trace."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pearl.errors import SpecError
from pearl.graph.cycle_ratio import Arc
from pearl.graph.period import simulate, start_times
from pearl.planning.timing import TimedGraph
from pearl.trace_events import TraceEvents
from pearl_devices.validation import is_whole, quote

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f")
"""Colours of tasks; the palette of Tableau 10 without its pink, and its grey, which transfers
have."""

TRANSFER = "#bab0ac"


@dataclass(frozen=True)
class FiringTimes:
    """A firing of a task, a fused call `a+b`, or a transfer `src>device`.

    iteration, firing: its numbers, from 0.
    device, lane: the place; for a transfer both are the link.
    start_s: the start, in seconds from the beginning of the first iteration.
    free_s: when the lane is free again.
    end_s: time of the result, which may be later than free_s.
    """

    iteration: int
    task: str
    firing: int
    device: str
    lane: str
    start_s: float
    free_s: float
    end_s: float


@dataclass(frozen=True)
class Timetable:
    """Start and end times of the firings of a plan.

    timed: the graph of the plan's assignment. arcs: its dependences, the orders of its lanes and
        the room of its channels. period_s: of the plan. single: one iteration from time 0 counts
        (makespan), instead of the periodic schedule.
    """

    timed: TimedGraph
    arcs: Sequence[Arc]
    period_s: float
    single: bool

    def firings(self, iterations: int) -> list[FiringTimes]:
        """Return the firings of the first iterations, by iteration, then by node of the timed
        graph.

        Raises:
            SpecError: `iterations` is no whole number of at least 1.
        """
        if not is_whole(iterations) or iterations < 1:
            raise SpecError(
                f"iterations is {quote(iterations)}; it must be a whole number of at least 1"
            )
        timed = self.timed
        nodes, where = range(len(timed.names)), self._where()
        if self.single:
            starts = [
                [float(t) for t in row] for row in simulate(len(nodes), self.arcs, iterations)
            ]
        else:
            once = start_times(len(nodes), self.arcs, self.period_s)
            starts = [[t + k * self.period_s for t in once] for k in range(iterations)]
        return [
            FiringTimes(
                k,
                *timed.names[i],
                *where[i],
                start[i],
                start[i] + timed.occupancy_s[i],
                start[i] + timed.latency_s[i],
            )
            for k, start in enumerate(starts)
            for i in nodes
        ]

    def _where(self) -> dict[int, tuple[str, str]]:
        """Node → device and lane; for a transfer the link, twice."""
        a, where = self.timed.assignment, dict[int, tuple[str, str]]()
        firings = len(a.expansion.nodes)
        for lane, members in self.timed.lanes.items():
            for i in members:
                inside = i < firings
                device = a.modes[a.expansion.nodes[i][0]].device if inside else lane
                where[i] = device, lane
        return where

    def trace(self, iterations: int) -> dict[str, Any]:
        """Return the firings as Chrome trace events."""
        firings, n = self.firings(iterations), len(self.timed.names)
        events = TraceEvents()
        for f in firings:
            values = {"iteration": f.iteration, "firing": f.firing, "result after (s)": f.end_s}
            events.call(f.device, f.lane, f.task, f.start_s, f.free_s, values)
        for k in range(iterations):
            for s, d, _, m in self.timed.arcs:
                if not 0 <= k - m < iterations:
                    continue
                one, other = firings[(k - m) * n + s], firings[k * n + d]
                if one.lane != other.lane:
                    source, target = ((f.device, f.lane, f.start_s, f.free_s) for f in (one, other))
                    events.flow(one.task, source, target)
        return events.to_json()

    def _labels(self) -> dict[str, str]:
        """Lane or link → its name with its width, lanes of devices first."""
        a, widths = self.timed.assignment, dict[str, int]()
        for u, mode in enumerate(a.modes):
            widths[a.lane(u)] = max(mode.width, widths.get(a.lane(u), 1))
        labels = {}
        for lane in sorted(self.timed.lanes, key=lambda k: (k not in widths, k)):
            width = widths.get(lane, 1)
            unit = a.costs.platform.device(lane.rpartition(".")[0]).width_unit if width > 1 else ""
            labels[lane] = f"{lane} ({width} {unit})" if width > 1 else lane
        return labels

    def gantt(self, iterations: int) -> str:
        """Return the firings as an SVG image: a row for each lane and link, a box for each
        firing."""
        firings, labels = self.firings(iterations), self._labels()
        graph = self.timed.assignment.expansion.graph
        lanes, tasks = (
            list(labels),
            list(dict.fromkeys(graph.origin(t.name)[0] for t in graph.tasks)),
        )
        end = max(f.free_s for f in firings) or 1.0
        left, right, row = 16 + 7 * max(map(len, labels.values())), 940, 30
        scale, bottom = (right - left) / end, 10 + row * len(lanes)
        parts = []
        for y, lane in enumerate(lanes):
            text = html.escape(labels[lane])
            parts.append(f'<text x="{left - 8}" y="{28 + y * row}" text-anchor="end">{text}</text>')
        for f in firings:
            first = f.task.split("+")[0].split("#")[0]
            colour = COLOURS[tasks.index(first) % len(COLOURS)] if first in tasks else TRANSFER
            x, y = left + f.start_s * scale, 10 + lanes.index(f.lane) * row
            box = max((f.free_s - f.start_s) * scale, 0.5)
            hint = f"{f.task}, iteration {f.iteration}, firing {f.firing}: {f.start_s:.6g} s"
            hint = html.escape(f"{hint} to {f.free_s:.6g} s")
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{box:.2f}" height="24" fill="{colour}" '
                f'stroke="white" stroke-width="0.5"><title>{hint}</title></rect>'
            )
            if 6.6 * len(f.task) + 6 <= box:
                text = html.escape(f.task)
                parts.append(f'<text x="{x + 4:.2f}" y="{y + 17}" fill="white">{text}</text>')
        for k in range(6):
            x = left + k / 5 * (right - left)
            at = f'x="{x:.1f}" y="{bottom + 18}"'
            parts.append(f'<text {at} text-anchor="middle">{k / 5 * end:.4g} s</text>')
        height, x = bottom + 50, float(left)
        for number, task in enumerate(tasks):
            colour = COLOURS[number % len(COLOURS)]
            parts.append(
                f'<rect x="{x}" y="{bottom + 30}" width="10" height="10" fill="{colour}"/>'
            )
            parts.append(f'<text x="{x + 14}" y="{bottom + 39}">{html.escape(task)}</text>')
            x += 30 + 7 * len(task)
            if x > right - 60 and number + 1 < len(tasks):
                parts.append(f'<text x="{x}" y="{bottom + 39}">…</text>')
                break
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" '
            'font-family="sans-serif" font-size="12">\n'
            f'<rect width="960" height="{height}" fill="white"/>\n'
            + "\n".join(parts)
            + "\n</svg>\n"
        )
