"""Interquartile means with intervals, and the table and bars of `benchmarks.returns`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.bars import Bar, show
from benchmarks.returns_cases import NOTES, PUBLISHED, Case, Published, Shipped
from pearl.population.statistics import interval

RESAMPLES = 20_000
WITHIN = 0.02
"""Share of the known optimum that may be missed."""
Scores = Mapping[str, Mapping[str, Any]]
"""Seed → run."""


def tables(title: str, cases: Sequence[Any], runs: Mapping[str, Mapping[str, Scores]]) -> list[Bar]:
    """Print a line for everyone in every case, and return the bars. A case without runs of ours,
    or without a figure to be compared with, gives none."""
    rows: list[list[str]] = []
    bars: list[Bar] = []
    for case in cases:
        here = {who: scores for who, scores in runs.get(case.name, {}).items() if scores}
        rows += [_row(case, who, scores) for who, scores in here.items()]
        if isinstance(case, Shipped):
            bars += _shipped(case, here.get("ours", {}))
            continue
        rows += [_published(case, figure) for figure in PUBLISHED.get(case.name, ())]
        bars += _compared(case, here)
    columns = ["case", "who", "seeds", "env steps", "mean of the middle half", "95 % interval"]
    show(title, [*columns, "last 20 in training", "CPU s"], rows)
    for case in cases:
        if case.name in NOTES:
            print(f"note: {case.name}: {NOTES[case.name]}")
    return bars


def _row(case: Any, who: str, scores: Scores) -> list[str]:
    figure = case.figure if isinstance(case, Shipped) else "final"
    values = of(scores, "last_20" if figure == "mean_last_20" else "final")
    found = interval(values, resamples=RESAMPLES)
    last, cpu = of(scores, "last_20"), of(scores, "cpu_s")
    return [
        case.name, who, str(len(scores)),
        "as shipped" if isinstance(case, Shipped) else f"{case.steps:,}",
        f"{found.mean:.1f}", f"{found.low:.1f} … {found.high:.1f}",
        f"{interval(last).mean:.1f}" if last else "", f"{float(np.median(cpu)):.0f}",
    ]  # fmt: skip


def _published(case: Case, figure: Published) -> list[str]:
    spread = f"± {figure.deviation:.1f} (deviation)"
    where = f"published: {figure.source}"
    return [case.name, where, "", f"{figure.steps:,}", f"{figure.mean:.1f}", spread, "", ""]


def of(scores: Scores, key: str) -> list[float]:
    """One figure of every run that has it."""
    return [float(run[key]) for run in scores.values() if run.get(key) is not None]


def _shipped(case: Shipped, scores: Scores) -> list[Bar]:
    values = of(scores, "last_20" if case.figure == "mean_last_20" else "final")
    if len(values) < case.seeds:
        return []
    reached = sum(value >= case.least for value in values)
    return [
        Bar(
            f"{case.config}: seeds of 0–{case.seeds - 1} with {case.figure} at least "
            f"{case.least:g}",
            str(reached),
            f"at least {case.needed}",
            reached >= case.needed,
        )
    ]


def _compared(case: Any, here: Mapping[str, Scores]) -> list[Bar]:
    """Ours against the lowest bound of the intervals of the peers with all seeds, and against a
    known optimum."""
    if "ours" not in here or len(here["ours"]) < case.seeds:
        return []
    values = of(here["ours"], "final")
    middle = interval(values).mean
    bars = []
    whole = [who for who in here if who != "ours" and len(here[who]) >= case.seeds]
    lows = {who: interval(of(here[who], "final"), resamples=RESAMPLES).low for who in whole}
    if lows:
        who = min(lows, key=lambda name: lows[name])
        text = f"{case.name}: mean of the middle half, {len(values)} seeds"
        asked = f"at least {lows[who]:.1f}, the low end of {who}'s interval"
        bars.append(Bar(text, f"{middle:.1f}", asked, middle >= lows[who]))
    optimum = getattr(case, "optimum", None)
    if optimum is not None:
        least = optimum - WITHIN * abs(optimum)
        text = f"{case.name}: within {WITHIN:.0%} of the known optimum {optimum:g}"
        bars.append(Bar(text, f"{middle:.2f}", f"at least {least:.2f}", middle >= least))
    return bars
