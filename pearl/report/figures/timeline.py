"""Two steady iterations: calls at their times, messages as arrows, waiting hatched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pearl.formatting import listed, percent, si
from pearl.planning.plans import Lane, Plan
from pearl.planning.runs import Run
from pearl.report import words
from pearl.report.canvas import STRONG, Canvas, polyline, text_width, ticks, two_lines
from pearl.report.document import Drawing
from pearl.report.kept_calls import MeasuredSchedule, measured_schedule
from pearl.report.schedule import SteadySchedule, TimedCall, schedule_of
from pearl_devices import Platform

VISIBLE = 3.0
"""A call narrower than this, in user units, is joined with its neighbours."""
LANES = 16
"""Largest number of drawn lanes: the busiest ones."""
STRIP = 20.0
"""Height of a strip of calls."""


def timeline(
    plan: Plan, run: Run | None = None, platform: Platform | None = None
) -> Drawing | None:
    """Draw two iterations of a plan; with a run, predicted above and measured below.

    The measured iterations are two that the run recorded. None if no schedule can be made.
    """
    if platform is None and plan.problem is not None:
        platform = plan.problem.costs.platform
    predicted = schedule_of(plan, platform)
    if predicted is None:
        return None
    measured = measured_schedule(run) if run is not None else None
    found = _Timeline(plan, predicted, measured, measured.period_s if measured else 0.0)
    return Drawing("", found.sentence, found.draw)


def iteration_s(run: Run) -> float | None:
    """Return the seconds of a measured iteration in the steady part; None if not measured."""
    if run.drift is not None and run.drift.measured_s:
        return run.drift.measured_s
    steps = run.plan.rates.get("env_steps_per_s", 0.0) * run.plan.period_s
    return steps / run.env_steps_per_s if steps and run.env_steps_per_s else None


@dataclass(frozen=True)
class _Timeline:
    plan: Plan
    predicted: SteadySchedule
    measured: MeasuredSchedule | None
    iteration_s: float

    @cached_property
    def lanes(self) -> list[Lane]:
        all_ = [k for k in self.plan.lanes if k.width]
        kept = sorted(all_, key=lambda k: -k.load)[:LANES]
        return [k for k in all_ if k in kept]

    @cached_property
    def tints(self) -> Mapping[str, str]:
        return words.tints(self.plan)

    @property
    def sentence(self) -> str:
        loads = [f"{words.lane_name(self.plan, k.lane)} busy {percent(k.load)}" for k in self.lanes]
        text = f"Two iterations of {si(self.plan.period_s, 's')} predicted"
        if self.measured:
            text += f", {si(self.iteration_s, 's')} measured"
        return f"{text}: {listed(loads)}."

    def draw(self, width: float) -> Canvas:
        c = Canvas(width)
        names = [words.lane_name(self.plan, k.lane) for k in self.lanes]
        widest = max(text_width(name, strong=True) for name in [*names, "predicted"])
        left = min(widest + 8, 150 if not c.narrow else 104)
        end = 2 * max(self.predicted.period_s, self.iteration_s)
        bottom = self._strips(c, left, 22.0, 0.0, end, marks=True)
        for tick in ticks(0.0, end, 3 if c.narrow else 6):
            x = left + tick / end * (width - left - 6)
            c.line(x, bottom, x, bottom + 4, "axis")
            anchor = "start" if tick == 0 else "middle"
            c.text(min(x, width - 26), bottom + 16, si(tick, "s") if tick else "0", anchor)
        c.line(left, bottom, width - 6, bottom, "axis")
        c.height = bottom + 24
        window = self._window()
        if window:
            self._enlarge(c, left, window, end)
        self._legend(c, left)
        return c

    def _strips(
        self, c: Canvas, left: float, top: float, begin: float, end: float, *, marks: bool
    ) -> float:
        """Draw every lane between two times; return the lower edge."""
        scale = (c.width - left - 6) / (end - begin)

        def at(t: float) -> float:
            return left + (t - begin) * scale

        both = self.measured is not None
        sends = any(e.to for e in self.predicted.events)
        gap = (34.0 if marks else 44.0) if sends else 14.0
        y, rows = top, {}
        for number, lane in enumerate(self.lanes):
            name = words.lane_name(self.plan, lane.lane)
            style = f"strong {words.colour(self.plan, lane.device)}"
            middle = y + (STRIP + 2 if both else STRIP / 2) + 4
            if both and len(self.lanes) == 1:
                c.text(0, y + 12, "predicted")
                c.text(0, y + STRIP + 16, "measured", style="ink")
            else:
                lines = two_lines(name, int(left / STRONG))
                for line, text in enumerate(lines):
                    c.text(0, middle + 14 * line - 7 * (len(lines) - 1), text, style=style)
            shown = self.measured or self.predicted
            if both:
                self._strip(c, lane, self.predicted, y, at, begin, end, pale=True)
                self._strip(c, lane, shown, y + STRIP + 4, at, begin, end, pale=False)
            else:
                self._strip(c, lane, shown, y, at, begin, end, pale=False)
            rows[lane.lane] = y, y + (2 * STRIP + 4 if both else STRIP)
            y = rows[lane.lane][1] + (gap if number + 1 < len(self.lanes) else 8.0)
        self._arrows(c, rows, at, begin, end, labelled=not marks)
        period = self.predicted.period_s
        ends = [(0.0, (0.0, period, 2 * period))]
        if self.measured is not None:
            ends.append((STRIP + 4, (0.0, self.measured.second_s, 2 * self.measured.period_s)))
        for down, times in ends:
            for t in times:
                if begin <= t <= end * (1 + 1e-9):
                    for upper, _ in rows.values():
                        c.line(at(t), upper + down - 3, at(t), upper + down + STRIP + 3, "mark")
        if marks and both:
            text = f"iteration: {si(period, 's')} predicted, {si(self.iteration_s, 's')} measured"
            c.text(left, top - 9, text)
        elif marks:
            c.text(left, top - 9, f"iteration 1: {si(period, 's')}")
            c.text(at(period) + 4, top - 9, "iteration 2")
        return y

    def _strip(
        self,
        c: Canvas,
        lane: Lane,
        schedule: SteadySchedule | MeasuredSchedule,
        y: float,
        at: Callable[[float], float],
        begin: float,
        end: float,
        *,
        pale: bool,
    ) -> None:
        """Draw the calls of one lane as boxes; calls too narrow to see are joined."""
        colour = words.colour(self.plan, lane.device)
        stop = min(end, 2 * schedule.period_s)
        c.hatch(at(begin), y, at(stop) - at(begin), STRIP)
        groups: list[list[TimedCall]] = []
        for e in schedule.within():
            if e.lane != lane.lane or e.to or e.end_s <= begin or e.start_s >= end:
                continue
            last = groups[-1] if groups else []
            thin = at(e.end_s) - at(e.start_s) < VISIBLE
            thin_before = bool(last) and at(last[-1].end_s) - at(last[-1].start_s) < VISIBLE
            near = bool(last) and at(e.start_s) - at(last[-1].end_s) < 1.0
            if thin and thin_before and near:
                last.append(e)
            else:
                groups.append([e])
        for group in groups:
            x1, x2 = at(max(group[0].start_s, begin)), at(min(group[-1].end_s, end))
            tint = self._tint(group[0].task) if len(group) == 1 else "t4"
            wide = max(x2 - x1, 1.0)
            hint = f"{words.lane_name(self.plan, lane.lane)}: {self._hint(group)}"
            c.rect(x1, y, wide, STRIP, f"call {'pale ' if pale else ''}{colour} {tint}", hint=hint)
            word = self._word(group[0].task) if len(group) == 1 else ""
            if word and not pale and text_width(word) + 4 <= wide:
                on = "on" if tint == "t10" else "ink"
                c.text((x1 + x2) / 2, y + STRIP - 6, word, "middle", f"{on} small")

    def _tint(self, call: str) -> str:
        """Return the tint of a call; for a fused call, that of its longest task."""
        tasks = [t.partition("#")[0] for t in call.split("+")]
        return max((self.tints.get(t, "t4") for t in tasks), key=lambda tint: int(tint[1:]))

    def _word(self, call: str) -> str:
        """Return a call in few words."""
        return words.call_name(self.plan, call.split("+"))

    def _hint(self, group: Sequence[TimedCall]) -> str:
        names = list(dict.fromkeys(self._word(e.task) for e in group))
        seconds = group[-1].end_s - group[0].start_s
        times = f", {len(group)} calls" if len(group) > 1 else ""
        return f"{', '.join(names)}{times}: {si(seconds, 's')}"

    def _arrows(
        self,
        c: Canvas,
        rows: Mapping[str, tuple[float, float]],
        at: Callable[[float], float],
        begin: float,
        end: float,
        *,
        labelled: bool,
    ) -> None:
        """Draw messages over links, from the lane that sends to the lane that receives."""
        schedule = self.measured or self.predicted
        homes: dict[str, set[str]] = {}
        devices = {t.task: t.device for t in self.plan.tasks}
        for t in self.plan.tasks:
            homes.setdefault(t.task, set()).add(t.lane)
        takers = {
            (e.src, devices[e.dst]): e.dst for e in self.plan.edges if e.link and e.dst in devices
        }
        drawn: set[tuple[str, int]] = set()
        for e in schedule.within(2):
            if not e.to or e.start_s < begin or e.end_s > end:
                continue
            dst = takers.get((e.task, e.to))
            for source in sorted(homes.get(e.task, ()))[:1]:
                for target in sorted(homes.get(dst or "", ()))[:1]:
                    if source not in rows or target not in rows or source == target:
                        continue
                    spot = (e.task, round(at(e.start_s) / 2))
                    if spot in drawn:
                        continue
                    drawn.add(spot)
                    down = rows[source][0] < rows[target][0]
                    y1 = rows[source][1] if down else rows[source][0]
                    y2 = rows[target][0] if down else rows[target][1]
                    c.arrow(at(e.start_s), y1, at(e.end_s), y2, "ink")
                    if labelled and at(e.end_s) - at(e.start_s) > 20:
                        size = max(x.bytes for x in self.plan.edges if x.src == e.task and x.link)
                        took = "" if c.narrow else f", {si(e.end_s - e.start_s, 's')}"
                        middle, aside = (at(e.start_s) + at(e.end_s)) / 2, 8 if down else -8
                        anchor = "start" if down else "end"
                        text = f"{si(size, 'B')}{took}"
                        c.text(middle + aside, (y1 + y2) / 2, text, anchor, "halo muted small")

    def _window(self) -> tuple[float, float] | None:
        """Return the span to enlarge: around a call on a lane whose calls are too thin to see."""
        period = self.predicted.period_s
        for lane in self.lanes:
            own = [e for e in self.predicted.within() if e.lane == lane.lane]
            if not own or any(e.end_s - e.start_s > period / 120 for e in own):
                continue
            e = next((e for e in own if e.start_s > period / 2), own[-1])
            beside = [
                m
                for m in self.predicted.within()
                if m.to
                and m.start_s <= e.end_s + period / 50
                and m.end_s >= e.start_s - period / 50
            ]
            low = min([e.start_s, *(m.start_s for m in beside)])
            high = max([e.end_s, *(m.end_s for m in beside)])
            room = max(high - low, e.end_s - e.start_s) * 1.1
            return max(low - room, 0.0), min(high + room, 2 * period)
        return None

    def _enlarge(self, c: Canvas, left: float, window: tuple[float, float], end: float) -> None:
        """Draw the lanes between two close times, joined to the strips above by a grey wedge."""
        scale = (c.width - left - 6) / end
        x1, x2, top = left + window[0] * scale, left + window[1] * scale, c.height
        bottom = top + 26
        corners = [(x1, top), (max(x2, x1 + 1), top), (c.width - 6, bottom), (left, bottom)]
        c.path(f"{polyline(corners)}Z", "wedge")
        c.text(0, top + 22, f"{si(window[1] - window[0], 's')}, enlarged")
        plain = _Timeline(self.plan, self.predicted, None, 0.0)
        c.height = plain._strips(c, left, top + 32, *window, marks=False) + 8

    def _legend(self, c: Canvas, left: float) -> None:
        """Draw tints with the time of a call, and the meaning of hatching and arrows."""
        x, y = 0.0, c.height + 10
        times = {t.task: t for t in reversed(self.plan.tasks)}
        ranked = sorted(times.values(), key=lambda t: -t.share_of_period)
        entries: list[tuple[str, str]] = [
            (f"call {words.colour(self.plan, t.device)} {self.tints[t.task]}",
             f"{t.task} {si(t.seconds, 's')}")
            for t in ranked[:10]
        ]  # fmt: skip
        if (
            any(k.load < 0.995 for k in self.lanes)
            or self.iteration_s > 1.05 * self.predicted.period_s
        ):
            entries.append(("hatch", "waiting"))
        if any(e.to for e in self.predicted.events):
            entries.append(("arrow", "message"))
        for style, text in entries:
            need = 16 + text_width(text) + 14
            if x + need > c.width and x:
                x, y = 0.0, y + 18
            if style == "hatch":
                c.hatch(x, y - 9, 11, 11)
            elif style == "arrow":
                c.arrow(x + 1, y + 1, x + 10, y - 8, "ink")
            else:
                c.rect(x, y - 9, 11, 11, style)
            c.text(x + 16, y, text)
            x += need
        c.height = y + 8
