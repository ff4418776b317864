"""Rows of the period form for units that share a lane: pair and lane terms, memory, limits,
windows.

A window is a sequence of firings that a lane runs one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pearl.solvers.model.linear import Linear, Terms
from pearl.solvers.model.search_space import SearchSpace

Place = tuple[int, str, int]
"""Unit, device and number of the lane."""

Chosen = Mapping[tuple[int, int, int], int]
"""Unit, option and lane → the variable that is 1 if they are chosen."""

NONZEROS = 100_000
"""Largest number of coefficients of all window rows; with more, the orders cover windows (assumed).
"""


def extra_terms(
    space: SearchSpace, linear: Linear, x: Chosen, places: Mapping[Place, Terms]
) -> dict[Place, Terms]:
    """Return for each place of a unit the seconds that pair and lane terms add to a firing there,
    as variable · seconds."""
    extra: dict[Place, Terms] = {}
    _pair_terms(space, linear, x, extra)
    for u, w, seconds, shared in space.lane_terms:
        for (v, device, lane), here in places.items():
            other = places.get((w, device, lane), [])
            if v != u or (shared and not other):
                continue
            both = linear.variable(1.0)
            sign = -1.0 if shared else 1.0
            row = [(both, 1.0), *((k, -c) for k, c in here), *((k, sign * c) for k, c in other)]
            linear.add(row, -1.0 if shared else 0.0, math.inf)
            extra.setdefault((u, device, lane), []).append((both, seconds))
    return extra


def _pair_terms(space: SearchSpace, linear: Linear, x: Chosen, extra: dict[Place, Terms]) -> None:
    """Add variables that are 1 if both modes of a pair term are chosen, by lane of the first."""
    for u, o, w, option, seconds in space.pair_terms:
        if seconds == 0:
            continue
        one = [(lane, v) for (k, n, lane), v in x.items() if (k, n) == (u, o)]
        other = [(v, 1.0) for (k, n, _), v in x.items() if (k, n) == (w, option)]
        total: Terms = []
        for lane, chosen in one:
            both = linear.variable(1.0)
            total.append((both, 1.0))
            linear.add([(both, -1.0), (chosen, 1.0)], 0.0, math.inf)
            extra.setdefault((u, space.options[u][o].device, lane), []).append((both, seconds))
        linear.add([*((v, -1.0) for v, _ in total), *other], 0.0, math.inf)
        ones = [(v, -1.0) for _, v in one] + [(v, -1.0) for v, _ in other]
        linear.add([*total, *ones], -1.0, math.inf)


def lane_rules(
    space: SearchSpace, linear: Linear, x: Chosen, places: Mapping[Place, Terms]
) -> None:
    """Add the rows for units that must be apart, and for the memory of each unit of a lane."""
    for u, w in space.apart:
        for (v, device, lane), here in places.items():
            other = places.get((w, device, lane))
            if v == u and other:
                linear.add([*here, *other], 0.0, 1.0)
    kept: dict[tuple[str, int], Terms] = {}
    for (u, o, lane), v in x.items():
        mode = space.options[u][o]
        room = space.unit_capacity_bytes[mode.device]
        size = space.bytes_on_unit(u, mode)
        if size > 0 and room < math.inf:
            kept.setdefault((mode.device, lane), []).append((v, size / room))
    for terms in kept.values():
        if len(terms) > 1:
            linear.add(terms, 0.0, 1.0)


def window_rows(
    space: SearchSpace,
    linear: Linear,
    potential: Mapping[int, int],
    component: NDArray[np.int32],
    seconds_at: Callable[[Place], tuple[Terms, Terms]],
    places: Mapping[Place, Terms],
) -> None:
    """Add a row for each window and lane: the lane runs the window's firings one after the other.

    If the first unit runs elsewhere, its completion precedes them. So the rows tell how a pipeline
    of firings fills and drains. A window between two strongly connected components gets no row: the
    program fixes the starts of each component alone, because iterations of one may run any number
    of periods ahead of the other.

    potential: node → the variable of its start. component: node → the number of its strongly
    connected component. seconds_at: place of a unit → its occupancy and
    latency there, in the seconds of the program.
    """
    at = {place: seconds_at(place) for place in places}
    lanes = dict.fromkeys((device, lane) for _, device, lane in places)
    rows: list[Terms] = []
    for window in space.expansion.windows:
        if window.begin not in potential or window.end not in potential:
            continue
        if component[window.begin] != component[window.end]:
            continue
        between = [(potential[window.end], 1.0), (potential[window.begin], -1.0)]
        firings = {u: n - (u == window.last) for u, n in window.firings}
        if window.first == window.last:  # the row is the same for any lane
            some = [p for p in places if p[0] == window.first]
            n = firings[window.first]
            rows.append([*between, *((v, -n * s) for p in some for v, s in at[p][0])])
            continue
        for lane in lanes:
            here = [(u, *lane) for u in firings if (u, *lane) in places]
            if len(here) < 2:
                continue
            terms = [(v, -firings[p[0]] * s) for p in here for v, s in at[p][0] if firings[p[0]]]
            elsewhere = [p for p in places if p[0] == window.first and p[1:] != lane]
            terms += [(v, -s) for p in elsewhere for v, s in at[p][1]]
            rows.append([*between, *terms])
    if sum(map(len, rows)) <= NONZEROS:
        for row in rows:
            linear.add(row, 0.0, math.inf)
