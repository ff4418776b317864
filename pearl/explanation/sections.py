"""The parts of a report about an explanation: sentences, tables and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl.explanation.bound import Bound
from pearl.explanation.crossover import Crossover
from pearl.explanation.what_if import WhatIf
from pearl.formatting import NONE, count, figure, listed, percent, si
from pearl.report import words
from pearl.report.document import (
    Block,
    Column,
    Detail,
    LeadSentence,
    Section,
    Sentences,
    Table,
)
from pearl.report.figures.bars import BarRow, almost_as_good, bar_chart
from pearl.report.lead import HELPS, NOTHING
from pearl.report.lead import percent as rounded_percent

if TYPE_CHECKING:
    from pearl.explanation import Explanation
    from pearl.planning.bands import Regret

TITLE = "Explanation"
VISIBLE = 0.001
"""A smaller fractional change of throughput and efficiency is only named."""

SHOWN = 8
"""Most bars of the chart."""

SLACK = {
    "policy_lag": "act on weights one iteration old",
    "prefetch": "fetch one batch ahead",
    "insertion_lag": "store one iteration late",
    "priority_staleness": "priorities one step old",
}
"""Limit on slack → the meaning of one more of it, in words."""

FEW = 3
"""Most of the changes for which the time ran out that are named."""


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
    """Return the bound of the period, with its parts in seconds."""
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
    """Return the device of a task as the batch grows."""
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


def change_words(w: WhatIf) -> str:
    """Return a change in few words: `learn 20 % faster`, `fetch one batch ahead`."""
    if w.kind == "task":
        return f"{w.name} 20{words.BLANK}% faster"
    if w.kind == "slack":
        return SLACK.get(w.name, w.text)
    if w.kind == "link":
        return f"link {w.name} twice as fast"
    if w.kind == "lanes":
        return f"one more unit and call at a time on {words.device_name(w.name)}"
    device = words.device_name(w.name)
    return f"nothing on {device}" if w.text.startswith("nothing") else f"without {device}"


def gain_text(gain: float) -> str:
    """Return a change of speed with its sign: `+21 %`."""
    sign = "+" if gain >= 0 else ""
    return f"{sign}{rounded_percent(gain)}"


def help_sentence(e: Explanation) -> LeadSentence:
    """Return the change that helps most, and the best one that changes what is learned."""
    gains = [w for w in e.what_ifs if w.gain is not None and w.kind != "device"]
    plain = max((w for w in gains if w.kind != "slack"), key=lambda w: w.gain or 0, default=None)
    slack = max((w for w in gains if w.kind == "slack"), key=lambda w: w.gain or 0, default=None)
    good = [w for w in (plain, slack) if w is not None and (w.gain or 0.0) >= NOTHING]
    if not good:
        least = rounded_percent(NOTHING)
        text = f": none of {len(e.what_ifs)} changes that were tried gives {least} or more."
        return LeadSentence(HELPS, "Nothing that was tried", text)
    first = max(good, key=lambda w: w.gain or 0.0)
    name = change_words(first)
    answer = f"{name[:1].upper()}{name[1:]} gives {gain_text(first.gain or 0.0)}"
    others = [w for w in good if w is not first]
    older = ", with older data" if first.kind == "slack" else ""
    if others:
        other = others[0]
        how = "without a faster call, " if other.kind == "slack" else ""
        tail = ", with older data" if other.kind == "slack" else ""
        text = f"{older}; {how}{change_words(other)} gives {gain_text(other.gain or 0.0)}{tail}."
    else:
        rest = "nothing else that was tried" if e.left_out else "nothing else"
        text = f"{older}; {rest} gives {rounded_percent(NOTHING)} or more."
    return LeadSentence(HELPS, answer, text)


def page_sections(e: Explanation) -> tuple[Section, ...]:
    """Return the sections on changes and on near-optimal plans."""
    return tuple(s for s in (_what_if(e), _almost(e)) if s is not None)


def _what_if(e: Explanation) -> Section | None:
    known = [w for w in e.what_ifs if w.gain is not None]
    bars = [
        BarRow(change_words(w), w.gain or 0.0, gain_text(w.gain or 0.0), w.kind == "slack")
        for w in known
        if w.kind != "device" and abs(w.gain or 0.0) >= VISIBLE
    ][:SHOWN]
    small = [w for w in known if w.kind != "device" and abs(w.gain or 0.0) < VISIBLE]
    if small:
        tasks = [w.name for w in small if w.kind == "task"]
        named = f"{', '.join(tasks)} faster" if tasks else f"{len(small)} other changes"
        bars.append(BarRow(named, 0.0, "< 0.1 %"))
    gone = [
        f"{change_words(w)} {gain_text(w.gain or 0.0)}"
        for w in known
        if w.kind == "device"
    ]  # fmt: skip
    figure = bar_chart(bars, "What a change would bring, in speed, by falling gain.")
    if figure is None:
        return None
    helps = [b for b in bars if b.value >= NOTHING]
    if not helps:
        finding = "No change matters."
    elif len(helps) < 3:
        only = "Of what was tried only" if e.left_out else "Only"
        verb = "matters" if len(helps) == 1 else "matter"
        finding = f"{only} {' and '.join(b.name for b in helps)} {verb}."
    else:
        finding = f"{len(helps)} changes give {rounded_percent(NOTHING)} or more."
    guide = f"Change in {e.value_unit}, each solved anew."
    if e.left_out:
        guide += f" No time was left for {len(e.left_out)} more; Details list them."
    if any(b.hollow for b in bars):
        guide += " Hollow: also changes what is learned, as data are older."
    notes = [f"Taking something away: {'; '.join(gone)}."] if gone else []
    blocks: list[Block] = [figure]
    if notes:
        blocks.append(Sentences("", (("", notes[0]),), inline=True))
    return Section("What if", finding, guide, tuple(blocks))


def _almost(e: Explanation) -> Section | None:
    close = e.runner_ups.plans
    if not close:
        return None
    rows = [("this plan", e.value, 0.0)]
    rows += [("; ".join(r.differs), r.plan.value, r.loss) for r in close]
    figure = almost_as_good(rows, e.value_unit, e.within)
    if figure is None:
        return None
    n = len(close)
    finding = f"{n} other plan{'s are' if n > 1 else ' is'} within {rounded_percent(e.within)}."
    guide = "Loss against this plan."
    if e.runner_ups.complete:
        guide += " No further placement comes as close; proved."
    return Section("Almost as good", finding, guide, (figure,))


def details(e: Explanation) -> tuple[Detail, ...]:
    """Return the answers, the near-optimal plans and every change in numbers."""
    return (Detail("The explanation in numbers", blocks(e, every_change=True)),)


def short_blocks(e: Explanation) -> tuple[Block, ...]:
    """Return the terminal's text: the relevant changes and plans, a line each."""
    rows: list[tuple[str, str, str]] = []
    for w in e.what_ifs:
        if w.gain is not None and abs(w.gain) >= VISIBLE and len(rows) < SHOWN:
            after = "" if w.value is None else f"{count(w.value)} {e.value_unit}"
            rows.append((change_words(w), gain_text(w.gain), after))
    table = Table(
        "", (Column("what if"), Column("change", "right"), Column("gives", "right")), tuple(rows)
    )
    close = e.runner_ups.plans
    text = "; ".join(f"{'; '.join(r.differs)} ({gain_text(-r.loss)})" for r in close[:3])
    said = Sentences("", (("almost as good", text),)) if close else None
    return tuple(b for b in (table if rows else None, said) if b is not None)
