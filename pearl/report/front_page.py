"""The page of a front of throughput and power, and HTML of plans and runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pearl.formatting import NONE, count, listed, si
from pearl.planner.energy_front import FrontAssignment, front_assignments
from pearl.planning.plans import Plan, closed_forms
from pearl.report import words
from pearl.report.bands_text import proof_text, range_text, rate_band
from pearl.report.document import Column, Detail, KeyFigure, LeadSentence, Page, Section, Table
from pearl.report.figures.graph import task_graph
from pearl.report.figures.timeline import timeline
from pearl.report.front_section import front_section, labelled, per_joule
from pearl.report.lead import largest_task, percent, where
from pearl.report.origin import estimates_text


def front_page(plans: Sequence[Plan], title: str = "", written: str = "") -> Page:
    """Return the page of a front. title: of the spec. written: the date, for the footer."""
    rows = front_assignments(plans)
    fastest, least = rows[-1].fastest, min(plans, key=lambda p: p.power_w)
    best = max(plans, key=per_joule)
    system = fastest.problem.system if fastest.problem is not None else None
    name = system.name if system is not None else fastest.host
    unit, open_w = fastest.value_unit, getattr(plans, "open_w", ())
    section = front_section(plans)
    sections = [section] if section is not None else []
    strip = timeline(fastest)
    graph = task_graph(fastest)
    shown = tuple(f for f in (graph, strip) if f is not None)
    text = where(fastest).removeprefix("with ")
    finding = f"{text[:1].upper()}{text[1:]}."
    sections.append(Section("The fastest plan", finding, "Hatched: waiting.", shown))
    figures = [
        KeyFigure(p.label, si(p.power_w, "W").partition(" ")[0], "W", f"{count(p.rate)} {unit}")
        for p in labelled(rows)
    ]
    per_j, note = f"{unit.removesuffix('/s')}/J", f"at {si(best.power_w, 'W')}"
    figures.append(KeyFigure("most efficient", f"{per_joule(best):.3g}", per_j, note))
    footer = (
        f"pearl {fastest.pearl_version} · spec {fastest.spec_sha256[:8]} · planned for "
        f"{fastest.host} · estimates: {estimates_text(fastest)} · power modelled · {len(plans)} "
        f"plans, each {'proved' if not open_w else 'proved except in the ranges named'}"
    )
    table = front_table(rows, open_w)
    return Page(
        title or f"Front for {name}",
        (table,),
        footer=footer + (f" · written {written}" if written else ""),
        subtitle=f"Speed and power, nothing has run yet · {fastest.host}",
        lead=_lead(rows, least, best, open_w),
        figures=tuple(figures),
        sections=tuple(s for s in sections if s.blocks),
        details=(Detail("Every placement in numbers", (table,)),),
    )


def _lead(
    rows: Sequence[FrontAssignment], least: Plan, best: Plan, open_w: Sequence[tuple[float, float]]
) -> tuple[LeadSentence, ...]:
    fastest = rows[-1].fastest
    unit = fastest.value_unit
    gets = LeadSentence(
        "What you get",
        f"From {count(least.value)} to {count(fastest.value)} {unit}",
        f", for {si(least.power_w, 'W')} to {si(fastest.power_w, 'W')}, in "
        f"{len(rows)} placement{'s' if len(rows) > 1 else ''}.",
    )
    most = largest_task(fastest, fastest.bottleneck.tasks)
    limit = LeadSentence(
        "What limits it",
        f"{most.task.capitalize()} at the fast end",
        f": {words.task_word(most)} takes {percent(most.share_of_period)} of each "
        f"{si(fastest.period_s, 's')} there.",
    )
    if open_w:
        text = f": better plans may be missing from {len(open_w)} ranges of power."
        helps = LeadSentence("What would help most", "More time for the solver", text)
    elif per_joule(fastest) >= 0.999 * per_joule(best):
        text = ": the fastest plan is also the most efficient; a limit on power only costs speed."
        helps = LeadSentence("What would help most", "Nothing: run at full speed", text)
    else:
        gain = per_joule(best) / per_joule(fastest) - 1
        text = f" gives {percent(gain)} more work per joule than the fastest plan."
        helps = LeadSentence("What would help most", f"A limit of {si(best.power_w, 'W')}", text)
    return gets, limit, helps


def front_table(
    rows: Sequence[FrontAssignment], open_w: Sequence[tuple[float, float]] = ()
) -> Table:
    """Return one row per assignment, with the part of the front that it holds."""
    cells = []
    for row, place in zip(rows, _placement_texts([row.fastest for row in rows]), strict=True):
        low, high = row.slowest, row.fastest
        ends = rate_band(high)
        watts = [si(low.power_w, "W"), si(high.power_w, "W")]
        rates = [count(low.value), count(high.value)]
        cells.append(
            (
                " – ".join(dict.fromkeys(watts)),
                " – ".join(dict.fromkeys(rates)),
                range_text(ends) if ends else NONE,
                f"{per_joule(high):.3g}" if math.isfinite(per_joule(high)) else NONE,
                proof_text(high),
                place,
            )
        )
    unit = rows[-1].fastest.value_unit
    per_j = f"{unit.removesuffix('/s')}/J"
    columns = (
        Column("power", "right"), Column(unit, "right"), Column("90 % band", "right"),
        Column(per_j, "right"), Column("proof", folds=True), Column("where", folds=True),
    )  # fmt: skip
    notes = _front_notes(rows, per_j, open_w)
    simulated = {name for row in rows for name in row.fastest.simulated}
    return Table("", columns, tuple(cells), tuple(notes)).marked(simulated)


def _front_notes(
    rows: Sequence[FrontAssignment], per_j: str, open_w: Sequence[tuple[float, float]]
) -> Iterator[str]:
    """Yield the sentences below the table of a front."""
    if any(len(row.plans) > 1 for row in rows):
        yield (
            "A range of power is one assignment at decreasing speed: an iteration takes the same "
            "joules above idle, so power between its ends is linear in the rate. Band, "
            f"{per_j} and proof are those of the upper end."
        )
    for row in rows:
        plan, last = row.fastest, row is rows[-1]
        if plan.pace_s is not None:
            why = "to keep the limit on power" if last else "because more power allows a faster one"
            yield (
                f"At {si(plan.power_w, 'W')} the assignment is slowed down too, to an iteration "
                f"every {si(plan.pace_s, 's')}, {why}."
            )
    if closed := closed_forms(*(row.fastest for row in rows)):
        yield (
            f"Plans with times of closed forms ({listed(closed)}) have no band: of a design that "
            "nobody built the range is assumed, without a probability."
        )
    missed = max((row.fastest.bands.missed for row in rows if row.fastest.bands), default=0)
    if missed:
        yield f"Up to {missed} draws exceed the limit on power by idling and count as 0."
    if open_w:
        ranges = listed([f"{si(low, 'W')} to {si(high, 'W')}" for low, high in open_w[:3]])
        more = f" and {len(open_w) - 3} more ranges" if len(open_w) > 3 else ""
        yield f"Not proved: better plans may be missing from {ranges}{more}; solve longer."


def _placement_texts(plans: Sequence[Plan]) -> list[str]:
    """Describe the tasks of each device, for each plan.

    The variant is named if a task has several on one device, and the number of lanes if only that
    distinguishes two plans.
    """
    variants: dict[tuple[str, str], set[str]] = {}
    for t in (t for plan in plans for t in plan.tasks):
        variants.setdefault((t.task, t.device), set()).add(t.variant)
    texts = []
    for plan in plans:
        places: dict[str, list[str]] = {}
        for t in plan.tasks:
            details = [t.variant] if len(variants[t.task, t.device]) > 1 else []
            details += [f"{t.shares[t.replica]} envs"] if t.shares else []
            name = f"{t.task} ({', '.join(details)})" if details else t.task
            places.setdefault(t.device, []).append(name)
        texts.append("; ".join(f"{device}: {', '.join(all_)}" for device, all_ in places.items()))
    lanes = [len({t.lane for t in plan.tasks}) for plan in plans]
    return [
        f"{text}; {n} lane{'' if n == 1 else 's'}" if texts.count(text) > 1 else text
        for text, n in zip(texts, lanes, strict=True)
    ]
