"""The page of a balance: the number of actor threads that keeps the GPU busy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pearl.formatting import count, listed, percent
from pearl.planner.gpu_balance import Balance, SweepPoint
from pearl.planning.plans import pearl_version
from pearl.report.balance_text import (
    ALIKE,
    describe_sureness,
    halves_sentence,
    name_busiest_part,
    sweep_table,
    verdict_sentence,
)
from pearl.report.bands_text import range_text
from pearl.report.document import Detail, KeyFigure, LeadSentence, Page, Section, Sentences
from pearl.report.figures.bars import BarRow, bar_chart


def balance_page(balance: Balance, written: str = "") -> Page:
    """Return the page of a balance. written: the date, for the footer; empty for none."""
    v = balance.verdict
    rate, low, high = v.env_steps_per_s
    part = name_busiest_part(v)
    lead = (
        LeadSentence("What you get", f"About {count(rate)} env steps/s",
                     f", likely {range_text((low, high))}, with {v.actors} actors."),
        LeadSentence("What limits it", part[0].upper() + part[1:], f", {describe_sureness(v)}."),
        LeadSentence("What would help most", *_help(balance)),
    )  # fmt: skip
    sweeps = [("cores", "Cores, an actor each", balance.cores)]
    if balance.points:
        sweeps.append(("SMs", "SMs, all cores", balance.sms))
    sweeps.append(("actors", "Actors, all cores", balance.actors))
    figures = [KeyFigure("speed", count(rate), "env steps/s", range_text((low, high)),
                         (low, rate, high))]  # fmt: skip
    if v.threads is not None and v.gpu is not None:
        enough = f"{max(1, math.ceil(v.threads)):,}" if math.isfinite(v.threads) else "none suffice"
        figures.append(KeyFigure("threads for the GPU", enough, "", v.gpu))
    figures.append(KeyFigure("cores", str(v.cores), "", v.cpu))
    tables = [t for _, name, points in sweeps if (t := sweep_table(name, points)) is not None]
    flat = [
        f"from {_size(points[0], unit)} to {_size(points[-1], unit)} {unit}"
        for unit, name, points in sweeps
        if name not in [t.title for t in tables]
    ]
    notes = [verdict_sentence(v)]
    if flat:
        notes.append(f"The rate changes by less than {percent(ALIKE)} {listed(flat)}.")
    if balance.simulated:
        notes.append(f"Excluded: {listed(balance.simulated)}, simulated.")
    sections = [_section(unit, name, points) for unit, name, points in sweeps]
    return Page(
        f"Balance of {balance.spec}",
        (Sentences("", tuple(("", note) for note in notes)), *tables),
        footer=f"pearl {pearl_version()} · {balance.platform} · predicted, energy modelled; enough "
        f"slack for every task · {v.draws} draws{f' · written {written}' if written else ''}",
        subtitle=f"Nothing has run yet · {v.cpu}{f', {v.gpu}' if v.gpu else ''}",
        lead=lead,
        figures=tuple(figures),
        sections=tuple(s for s in sections if s is not None),
        details=tuple(Detail(t.title, (replace(t, title=""),)) for t in tables),
    )


def _help(balance: Balance) -> tuple[str, str]:
    """Return the first words and the rest of the sentence on what would help."""
    halves = halves_sentence(balance).rstrip(".")
    if balance.verdict.busiest == "gpu":
        return "A faster GPU", f"; more threads do not help. {halves}." if halves else "."
    if balance.verdict.busiest == "actors":
        return "More cores, or faster environments", f". {halves}." if halves else "."
    return "A faster core for the replay", f". {halves}." if halves else "."


def _section(unit: str, name: str, points: Sequence[SweepPoint]) -> Section | None:
    bars = [
        BarRow(
            f"{_size(p, unit)} {unit.removesuffix('s') if _size(p, unit) == 1 else unit}",
            p.env_steps_per_s,
            f"{count(p.env_steps_per_s)} env steps/s, {count(p.env_steps_per_j)} per J",
        )
        for p in points
    ]
    figure = bar_chart(bars, f"Env steps per second by number of {unit}.")
    if figure is None or len(points) < 2:
        return None
    most, first = max(points, key=lambda p: p.env_steps_per_s), points[0]
    gain = most.env_steps_per_s / first.env_steps_per_s
    finding = (
        "It does not matter."
        if gain < 1.02
        else f"{_size(most, unit)} {unit} give {gain:.3g} × the rate of {_size(first, unit)}."
    )
    return Section(name, finding, "", (figure,), brief=True)


def _size(point: SweepPoint, unit: str) -> int:
    return {"cores": point.cores, "SMs": point.sms or 0}.get(unit, point.actors)
