"""The section of a report about an explanation: sentences and tables of ready text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl.explanation.bound import Bound
from pearl.explanation.crossover import Crossover
from pearl.explanation.what_if import WhatIf
from pearl.formatting import NONE, count, figure, listed, percent, si
from pearl.report.document import Column, Sentences, Table

if TYPE_CHECKING:
    from pearl.explanation import Explanation
    from pearl.planning.bands import Regret

TITLE = "Explanation"
VISIBLE = 0.001
"""A change of throughput and efficiency below this share is only named."""

FEW = 3
"""Of the changes for which no time was left, so many are named."""


def blocks(e: Explanation, *, every_change: bool = False) -> tuple[Sentences, Table, Table]:
    """Return the answers, the near-optimal plans and the changes of an explanation.

    every_change: list the changes without an effect in the table too.
    """
    sentences = [("Bound", bound_sentence(e.bound))]
    sentences += [(s.question, s.answer) for s in e.answers]
    sentences += [("Batch size", crossover_sentence(c)) for c in e.crossovers]
    shown = tuple(w for w in e.what_ifs if every_change or _is_visible(e, w))
    nothing = [w.text for w in e.what_ifs if w not in shown and w.proven]
    unproved = [w.text for w in e.what_ifs if w not in shown and not w.proven]
    notes = []
    if unproved:
        notes.append(
            f"No plan that differs by {percent(VISIBLE)} was found in the time, none proved the "
            f"best: {'; '.join(unproved)}."
        )
    if nothing:
        notes.append(f"Less than {percent(VISIBLE)} either way: {'; '.join(nothing)}.")
    if any(not w.proven for w in shown):
        notes.append("* not proved to be the best.")
    if e.left_out:
        notes.append(f"No time was left for: {_few(e.left_out)}.")
    return (
        Sentences(TITLE, tuple(sentences)).marked(e.simulated),
        _runner_ups(e).marked(e.simulated),
        _changes(e, shown, notes).marked(e.simulated),
    )


def _few(texts: tuple[str, ...]) -> str:
    more = f"; and {len(texts) - FEW} more" if len(texts) > FEW else ""
    return "; ".join(texts[:FEW]) + more


def _is_visible(e: Explanation, w: WhatIf) -> bool:
    if w.value is None:
        return True
    pairs = (
        (w.value, e.value),
        (w.throughput or 0.0, e.throughput),
        (w.efficiency or 0.0, e.efficiency or 0.0),
    )
    return abs(w.gain or 0.0) >= VISIBLE or any(abs(a - b) >= VISIBLE * b for a, b in pairs if b)


def bound_sentence(b: Bound) -> str:
    """The bound of the period, with its parts in seconds."""
    parts = [
        f"{p.task}{f' × {p.firings}' if p.firings > 1 else ''} {si(p.seconds, 's')}"
        f" ({percent(p.share)})"
        for p in sorted(b.parts, key=lambda p: -p.seconds)
    ]
    took = f"{si(b.seconds, 's')}: {listed(parts)}" if parts else si(b.seconds, "s")
    period = si(b.period_s, "s")
    if b.kind == "cycle":
        text = f"The critical cycle takes {took}"
        text += f"; with {b.tokens} tokens on it, the period is {period}." if b.tokens > 1 else "."
    elif b.kind == "path":
        text = f"The longest path of the first iteration takes {took}."
    elif b.kind == "pace":
        text = f"The pace: an iteration every {period}, though {b.name} needs only {took}."
    else:
        text = f"{b.kind.capitalize()} {b.name} is taken all the period of {took}."
    if b.next_name is not None:
        text += f" The next is {b.next_name}, taken {percent(b.next_share)} of the period."
    return text


def crossover_sentence(c: Crossover) -> str:
    """The device of a task as the batch grows."""
    looked = f"batch sizes {count(c.least)} to {count(c.most)} were tried"
    sure = "" if c.proven else ", not all of them solved to proof"
    if not c.moves:
        return f"{c.task} is on {c.device} at every size; {looked}{sure}."
    steps = [f"moves to {m.dst} at {count(m.batch)}" for m in c.moves]
    return (
        f"{c.task} starts on {c.starts_on} and {listed(steps)}; "
        f"now it is {count(c.batch)}; {looked}{sure}."
    )


def _runner_ups(e: Explanation) -> Table:
    kind = e.regret.kind if e.regret else None
    rows = tuple(
        (
            str(n + 1),
            "; ".join(r.differs),
            figure(r.plan.value, e.value_unit),
            *([_regret(r.plan.regret)] if kind else []),
            f"{-100 * r.loss:+.1f} %" if r.loss else "equal",
            "proved" if r.proven else "found",
        )
        for n, r in enumerate(e.runner_ups.plans)
    )
    columns = (
        Column("", "right"),
        Column("what differs", folds=True),
        Column("makespan" if e.objective == "makespan" else e.value_unit, "right"),
        *([Column(f"{kind} regret", "right")] if kind else []),
        Column("loss", "right"),
        Column("best of its kind"),
    )
    notes = [] if rows else [f"No other plan was found within {percent(e.within)}."]
    if e.regret and rows:
        notes.append(
            f"loss: of 1 + {kind} regret over {e.regret.draws} draws of the times, by which this "
            f"plan was chosen (its own {kind} regret: {_regret(e.regret)}); {e.value_unit} by the "
            "estimates alone"
        )
    if any(r.loss < 0 for r in e.runner_ups.plans):
        notes.append("A plan with + is better than this one, which is not proved: solve longer.")
    if e.runner_ups.complete:
        notes.append(f"No further assignment of devices comes within {percent(e.within)}; proved.")
    return Table(f"Plans within {percent(e.within)}", columns, rows, tuple(notes))


def _regret(r: Regret | None) -> str:
    return NONE if r is None else percent(r.mean if r.kind == "mean" else r.worst)


def _changes(e: Explanation, shown: tuple[WhatIf, ...], notes: list[str]) -> Table:
    single = e.objective == "makespan"
    rows = []
    for w in shown:
        star = "" if w.proven else "*"
        first = w.value if single else w.throughput
        if w.infeasible is not None:
            rows.append((w.text, *([NONE] if e.regret else []), f"no plan{star}", NONE))
            notes.insert(0, f"{w.text}: {w.infeasible}")
        else:
            now = _change_text(first, e.value if single else e.throughput, "s" if single else "")
            drawn = [f"{100 * (w.gain or 0.0):+.1f} %{star}"] if e.regret else []
            rows.append(
                (w.text, *drawn, now + star, _change_text(w.efficiency, e.efficiency) + star)
            )
    if e.regret and rows:
        notes.append(
            f"over the draws: of 1 + {e.regret.kind} regret, by which this plan was chosen, in "
            "units of the least seconds of each draw as it is now; the rest by the estimates alone"
        )
    columns = (
        Column("what if", folds=True),
        *([Column("over the draws", "right")] if e.regret else []),
        Column("makespan" if single else f"{e.counted}/s", "right"),
        Column(f"{e.counted}/J", "right"),
    )
    return Table("What would change it", columns, tuple(rows), tuple(notes))


def _change_text(after: float | None, before: float | None, unit: str = "") -> str:
    if after is None or not before:
        return figure(after, unit)
    return f"{figure(after, unit)} ({100 * (after / before - 1):+.1f} %)"
