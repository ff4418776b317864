"""The task graph: tasks as pills in bands of their devices, with edges between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pearl.formatting import count, listed, percent, si
from pearl.planning.plans import Channel, Placement, Plan
from pearl.report import words
from pearl.report.canvas import Box, Canvas, Shape, overlap, passes, point, text_width
from pearl.report.document import Drawing

MOST = 24
"""Largest number of drawn tasks; the table of edges lists all edges of any graph."""
PILL = 34.0
"""Height of a task."""

Point = tuple[float, float]


def task_graph(plan: Plan) -> Drawing | None:
    """Draw tasks and the edges between them; None for one task or too many.

    Self-loops and edges that follow from other edges are not drawn.
    """
    tasks = list(dict.fromkeys(t.task for t in plan.tasks))
    if not 1 < len(tasks) <= MOST:
        return None
    figure = _Graph(plan)
    names = [f"{e.src} to {e.dst}" for e in figure.edges if e.bytes]
    places = [
        f"{listed(some)} on {words.device_name(d, plan.simulated)}"
        for d, some in figure.bands.items()
    ]
    carries = f" Data go from {listed(names)}." if names else ""
    return Drawing("", f"Task graph: {listed(places)}.{carries}", figure.draw)


def shown_edges(plan: Plan) -> list[Channel]:
    """Return one edge per pair of tasks, without self-loops and edges that follow from others.

    Tokens count in iterations. An edge that only orders follows from a path with no more tokens.
    """
    firings = {t.task: t.firings for t in plan.tasks}
    first: dict[tuple[str, str], Channel] = {}
    for e in plan.edges:
        if e.src == e.dst or e.src not in firings or e.dst not in firings:
            continue
        old = first.get((e.src, e.dst))
        if old is None or (e.bytes, -e.tokens) > (old.bytes, -old.tokens):
            first[e.src, e.dst] = e

    def ahead(e: Channel) -> float:
        return e.tokens / max(e.consumption * firings[e.dst], 1)

    kept = list(first.values())
    for e in sorted(first.values(), key=lambda e: -ahead(e)):
        others = [o for o in kept if o is not e]
        if not e.bytes and _reach(others, ahead, e.src, e.dst) <= ahead(e) + 1e-12:
            kept = others
    return kept


def _reach(
    edges: Sequence[Channel], ahead: Callable[[Channel], float], src: str, dst: str
) -> float:
    """Return the fewest iterations of tokens on a path."""
    best = {src: 0.0}
    for _ in range(len(edges) + 1):
        changed = False
        for e in edges:
            if e.src in best and best[e.src] + ahead(e) < best.get(e.dst, math.inf):
                best[e.dst], changed = best[e.src] + ahead(e), True
        if not changed:
            break
    return best.get(dst, math.inf)


@dataclass(frozen=True)
class _Graph:
    plan: Plan
    _band_words: list[_BandWords] = field(default_factory=list)

    @cached_property
    def tasks(self) -> list[Placement]:
        """Return each task once, in the order of the program."""
        return list({t.task: t for t in reversed(self.plan.tasks)}.values())[::-1]

    @cached_property
    def bands(self) -> dict[str, list[str]]:
        """Return the tasks of each device; CPUs first."""
        found: dict[str, list[str]] = {}
        for t in self.tasks:
            found.setdefault(t.device, []).append(t.task)
        order = sorted(found, key=lambda d: words.colour(self.plan, d))
        return {d: found[d] for d in order}

    @cached_property
    def edges(self) -> list[Channel]:
        return shown_edges(self.plan)

    def _cells(self, columns: int) -> dict[str, tuple[int, int]]:
        """Return column and row of each task: along the top, then back along the bottom."""
        names, n = [t.task for t in self.tasks], len(self.tasks)
        columns = min(columns, max(2, math.ceil(n / 2)))
        rows = 2 + max(0, math.ceil((n - 2 * columns) / 2))
        right, left = rows - 2, rows - 2
        ring = [(i, 0) for i in range(columns)]
        ring += [(columns - 1, 1 + i) for i in range(right)]
        lower = [(columns - 1 - i, rows - 1) for i in range(columns)]
        spare = len(ring) + len(lower) + left - n
        if spare >= left:  # the left side stays empty, and the bottom row is spread out
            left = 0
            few = n - len(ring)
            if 1 < few < columns:
                at = [round((columns - 1) * (1 - i / (few - 1))) for i in range(few)]
                lower = [(col, rows - 1) for col in at]
        ring += lower + [(0, rows - 2 - i) for i in range(left)]
        return dict(zip(names, ring, strict=False))

    def draw(self, width: float) -> Canvas:
        c = Canvas(width)
        columns = 3 if c.narrow else max(4, min(6, math.ceil(len(self.tasks) / 2)))
        cells = self._cells(columns)
        used = max(col for col, _ in cells.values()) + 1
        pill = min(108.0, (width - 20) / used - (14 if c.narrow else 60))
        inset = 16.0 if len(self.bands) > 1 else 4.0
        step = (width - 2 * inset - pill) / max(used - 1, 1)
        place: dict[str, tuple[float, float]] = {}
        y = 4.0
        self._band_words.clear()
        for device, tasks in self.bands.items():
            y = self._band(c, device, tasks, cells, place, (inset + pill / 2, step), y)
        c.height = y
        words_at = self._edges(c, place, pill)
        for t in self.tasks:
            self._pill(c, t, *place[t.task], pill)
        c.shapes += words_at
        self._legend(c)
        return c

    def _band(
        self,
        c: Canvas,
        device: str,
        tasks: Sequence[str],
        cells: Mapping[str, tuple[int, int]],
        place: dict[str, Point],
        across: Point,
        y: float,
    ) -> float:
        """Draw the tasks of one device; return the lower edge of its band."""
        rows = sorted({cells[t][1] for t in tasks})
        single = len(self.bands) == 1
        first = next(iter(self.bands)) == device
        top = y + (30 if single or first else 22)
        gap = 92.0 if not c.narrow else 84.0
        for t in tasks:
            place[t] = (
                across[0] + cells[t][0] * across[1],
                top + PILL / 2 + rows.index(cells[t][1]) * gap,
            )
        below = 30 if single else 22 if first else 54 if c.narrow else 40
        bottom = top + PILL + (len(rows) - 1) * gap + below
        colour = words.colour(self.plan, device)
        name = words.device_name(device, self.plan.simulated)
        lanes = [k for k in self.plan.lanes if k.device == device and k.width]
        busy = max((k.load for k in lanes), default=0.0)
        if not single:
            c.rect(0, y, c.width, bottom - y, f"band {colour}", radius=2)
            levels = (y + 18, bottom - 9) if first else (bottom - 9, y + 18)
            self._band_words.append(_BandWords(name, f"{percent(busy)} busy", colour, levels))
            return bottom + 26.0
        return bottom

    def _pill(self, c: Canvas, t: Placement, x: float, y: float, pill: float) -> None:
        colour = words.colour(self.plan, t.device)
        copies = f", {t.replicas} copies" if t.replicas > 1 else ""
        device = words.device_name(t.device, self.plan.simulated)
        hint = f"{words.task_word(t)}: {si(t.seconds, 's')} a call on {device}{copies}"
        strong = t is max(self.tasks, key=lambda p: p.share_of_period)
        style = f"pill {colour}" + (" most" if strong else "")
        c.rect(x - pill / 2, y - PILL / 2, pill, PILL, style, radius=PILL / 2, hint=hint)
        c.text(x, y - 2, words.task_word(t), "middle", "ink strong" if strong else "ink")
        below = si(t.seconds, "s") + (f" · {t.replicas} copies" if t.replicas > 1 else "")
        c.text(x, y + 11, below, "middle", "muted small")

    def _edges(
        self, c: Canvas, place: Mapping[str, tuple[float, float]], pill: float
    ) -> list[Shape]:
        """Draw the edges; return their labels, which are painted over the tasks."""
        above = Canvas(c.width, c.height)
        taken = [
            (x - pill / 2 - 2, y - PILL / 2 - 2, x + pill / 2 + 2, y + PILL / 2 + 2)
            for x, y in place.values()
        ]
        labels: list[Box] = []
        pairs = {(e.src, e.dst) for e in self.edges}
        crossed: list[Point] = []
        curves: list[tuple[Channel, _EdgeCurve]] = []
        for e in sorted(self.edges, key=lambda e: -e.bytes):
            both = (e.dst, e.src) in pairs
            curve = _EdgeCurve.best(place[e.src], place[e.dst], pill, taken, both, c, crossed)
            crossed += [curve.at(i / 12) for i in range(13)]
            curves.append((e, curve))
        on = [[curve.at(i / 60) for i in range(61)] for _, curve in curves]
        for band in self._band_words:
            labels.append(band.write(above, [p for points in on for p in points], taken))
        for number, (e, curve) in enumerate(curves):
            others = [p for k, points in enumerate(on) if k != number for p in points]
            style = "thin ink" if e.bytes else "thin dotted"
            c.path(curve.d, f"{style} none")
            (x1, y1), (x2, y2) = curve.at(0.93), curve.at(1.0)
            c.head(x1, y1, x2, y2, "ink" if e.bytes else "muted")
            if e.tokens:
                x, y = curve.at(0.5)
                if e.tokens != e.production:  # more than the results of one call
                    half = 4 + text_width(count(e.tokens)) / 2
                    c.rect(x - half, y - 7.5, 2 * half, 15, "fill ink", radius=7.5)
                    c.text(x, y + 4, count(e.tokens), "middle", "inverse small")
                    labels.append((x - half - 1, y - 9, x + half + 1, y + 9))
                else:
                    c.dot(x, y, 3.0, "fill ink")
                    labels.append((x - 5, y - 5, x + 5, y + 5))
            if e.production != 1 or e.consumption != 1:
                for t, number in ((0.1, e.production), (0.86, e.consumption)):
                    if number != 1 or e.production != e.consumption:
                        near = t, t + 0.06, t - 0.06
                        _label(above, curve, near, str(number), labels, taken, others)
            if e.bytes:
                text = si(e.bytes, "B")
                spots = 0.4, 0.5, 0.3, 0.6, 0.7, 0.25
                _label(above, curve, spots, text, labels, taken, others)
        return above.shapes

    def _legend(self, c: Canvas) -> None:
        y, x = c.height + 10, 0.0
        parts = [("solid", "data, with size"), ("dotted", "order only")]
        if any(e.tokens for e in self.edges):
            parts.append(("dot", "initial result"))
        for kind, text in parts:
            need = 24 + text_width(text) + 14
            if x + need - 14 > c.width:
                x, y = 0.0, y + 18
            if kind == "dot":
                c.dot(x + 8, y - 4, 3.0, "fill ink")
            else:
                c.line(x, y - 4, x + 18, y - 4, "thin ink" if kind == "solid" else "thin dotted")
            c.text(x + 24, y, text)
            x += need
        c.height = y + 8


def _label(
    c: Canvas,
    curve: _EdgeCurve,
    spots: Sequence[float],
    text: str,
    labels: list[Box],
    taken: Sequence[Box],
    others: Sequence[Point],
) -> None:
    """Draw a label beside a curve, at the first free spot that no other curve passes."""
    wide = text_width(text)
    options: list[tuple[float, float, str, Box]] = []
    for t in spots:
        x, y = curve.at(t)
        dx, dy = curve.normal(t)
        for side in (1, -1, 2.6, -2.6):
            a, b = x + side * dx * 8, y + side * dy * 10 + 4
            anchor = "middle" if abs(dx) < 0.2 else ("start" if side * dx > 0 else "end")
            left = {"middle": a - wide / 2, "start": a, "end": a - wide}[anchor]
            box = (left - 1, b - 11, left + wide + 1, b + 3)
            options.append((a, b, anchor, box))
    inside = [o for o in options if o[3][0] > -1 and o[3][2] < c.width + 1] or options
    free = [o for o in inside if not any(overlap(o[3], k) for k in (*labels, *taken))]
    clear = [o for o in free if not passes(others, o[3])]
    a, b, anchor, box = (clear or free or inside)[0]
    labels.append(box)
    c.text(a, b, text, anchor, "halo muted small")


@dataclass(frozen=True)
class _BandWords:
    """The name of a device and how busy it is, in a corner of its band.

    levels: of the upper and the lower corner, the preferred first.
    """

    name: str
    busy: str
    colour: str
    levels: tuple[float, float]

    def write(self, c: Canvas, curves: Sequence[Point], taken: Sequence[Box]) -> Box:
        """Write them at the first corner that tasks and curves leave free; return its box."""
        named = text_width(self.name, strong=True)
        wide = named + 8 + text_width(self.busy)
        corners = [(left, level) for level in self.levels for left in (10.0, c.width - 10 - wide)]
        boxes = [(x - 2, y - 12, x + wide + 2, y + 4) for x, y in corners]
        free = [
            k for k, box in enumerate(boxes)
            if not passes(curves, box) and not any(overlap(box, b) for b in taken)
        ]  # fmt: skip
        best = free[0] if free else 0
        x, y = corners[best]
        c.text(x, y, self.name, style=f"strong {self.colour}")
        c.text(x + named + 8, y, self.busy)
        return boxes[best]


@dataclass(frozen=True)
class _EdgeCurve:
    """A quadratic curve from the edge of one pill to the edge of another."""

    start: tuple[float, float]
    middle: tuple[float, float]
    end: tuple[float, float]

    @classmethod
    def best(
        cls,
        a: Point,
        b: Point,
        pill: float,
        taken: Sequence[Box],
        both: bool,
        c: Canvas,
        crossed: Sequence[Point],
    ) -> _EdgeCurve:
        """Return the straightest curve that stays on the page and crosses no task and few edges."""
        length = math.hypot(b[0] - a[0], b[1] - a[1]) or 1.0
        nx, ny = -(b[1] - a[1]) / length, (b[0] - a[0]) / length
        straight = 26.0 if both else 0.0
        bulges = [straight, *(s * k for k in (30, 60, 90, 130, 180) for s in (1, -1))]

        def made(bulge: float) -> _EdgeCurve:
            m = ((a[0] + b[0]) / 2 + nx * bulge, (a[1] + b[1]) / 2 + ny * bulge)
            return cls(_border(a, m, pill), m, _border(b, m, pill))

        def cost(bulge: float) -> float:
            curve = made(bulge)
            points = [curve.at(i / 20) for i in range(1, 20)]
            hit = sum(passes(points, box) for box in taken)
            out = sum(not (0 < x < c.width and 0 < y < c.height) for x, y in points)
            near = sum(abs(x - u) + abs(y - v) < 14 for x, y in points[2:-2] for u, v in crossed)
            return abs(bulge) + 60 * hit + 40 * out + 12 * near

        return made(min(bulges, key=cost))

    @property
    def d(self) -> str:
        (a, b), (m, n), (x, y) = self.start, self.middle, self.end
        return f"M{point(a, b)}Q{point(m, n)} {point(x, y)}"

    def at(self, t: float) -> tuple[float, float]:
        (a, b), (m, n), (x, y) = self.start, self.middle, self.end
        u = 1 - t
        return u * u * a + 2 * u * t * m + t * t * x, u * u * b + 2 * u * t * n + t * t * y

    def normal(self, t: float) -> tuple[float, float]:
        (x1, y1), (x2, y2) = self.at(t - 0.02), self.at(t + 0.02)
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        return (y2 - y1) / length, -(x2 - x1) / length


def _border(
    centre: tuple[float, float], towards: tuple[float, float], pill: float
) -> tuple[float, float]:
    """Return the point in which a line from the centre of a pill leaves the pill."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    if dx == dy == 0:
        return centre
    half, high = pill / 2 + 2, PILL / 2 + 2
    by = min(half / abs(dx) if dx else math.inf, high / abs(dy) if dy else math.inf)
    return centre[0] + dx * by, centre[1] + dy * by
