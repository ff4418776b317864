"""The page of verdicts, and the verdicts as plain text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pearl.advice import cards
from pearl.advice.comparison import number
from pearl.formatting import si
from pearl.report import plan_page
from pearl.report.document import Detail, Facts, LeadSentence, Page
from pearl.report.lead import HELPS, plan_lead
from pearl.report.origin import estimates_text
from pearl.report.terminal import terminal_width

if TYPE_CHECKING:
    from pearl.advice import Advice
    from pearl.advice.case import Finding

INDENT = "  "

WORTH = 1.02
"""Least factor of speed for which a better plan is mentioned."""


def advice_page(advice: Advice, written: str = "") -> Page:
    """Return the page of an advice. written: the date, for the footer; empty for none."""
    plan, findings = advice.plan, advice.verdicts
    system = plan.problem.system if plan.problem is not None else None
    simulated = plan.simulated
    rows = tuple((v.question, f"{v.answer} `{v.command}`") for v in findings)
    footer_ = (
        f"pearl {plan.pearl_version} · seed {advice.seed} · {si(advice.seconds, 's')} · "
        f"{advice.draws} draws of the times from the 90 % bands of their estimates · estimates: "
        f"{estimates_text(plan)} · power modelled · a click on a command selects all of it"
    )
    subtitle = plan_page.what_it_is(plan, system, "plan")
    gets, limits, _ = plan_lead(plan)
    lead = (gets, limits, _help(advice))
    return Page(
        f"Advice for {system.name if system is not None else plan.host}",
        footer=footer_ + (f" · written {written}" if written else ""),
        subtitle=subtitle,
        lead=tuple(s.marked(simulated) for s in lead),
        figures=plan_page.key_figures(plan),
        sections=tuple(s.marked(simulated) for s in cards.sections(findings, advice.draws, plan)),
        details=(
            Detail("All questions asked, in full", (Facts("", rows),), note=_left_out(advice)),
            *plan_page.details(plan, None),
        ),
    )


def _left_out(advice: Advice) -> str:
    return f"no time was left for {', '.join(advice.left_out)}" if advice.left_out else ""


def _help(advice: Advice) -> LeadSentence:
    """The verdict that gains most."""
    better = [
        v
        for v in advice.verdicts
        if v.numbers.get("choice") == "other" and v.numbers.get("ratio", 0.0) >= WORTH
    ]
    if not better:
        rest = "no time was left for all questions" if advice.left_out else "leave it as it is"
        text = f": no answer beats this plan by {100 * (WORTH - 1):.0f} %; {rest}."
        return LeadSentence(HELPS, "No change", text)
    best = max(better, key=lambda v: v.numbers["ratio"])
    c = cards.card(best, advice.draws, number(advice.plan))
    verdict = c.verdict.partition(":")[0]
    about = "" if cards.is_slack(best) else f" ({best.question})"
    older = ", with older data" if cards.is_slack(best) else ""
    text = f"{about}: {best.numbers['ratio']:.2f} × as fast{older}."
    return LeadSentence(HELPS, verdict, text)


def text(advice: Advice) -> str:
    """Return the whole page for this terminal."""
    said: list[str] = []
    parts = [verdict_text(v, said) for v in advice.verdicts]
    return "\n".join([*parts, footer(advice)])


def verdict_text(verdict: Finding, said: list[str]) -> str:
    """Return a question, its answer in lines of the terminal's width, and the command.

    said: commands that the page has shown; each is shown once, and this one is added.
    """
    width = min(terminal_width(), 100)
    lines = textwrap.wrap(
        _printable(verdict.answer), width, initial_indent=INDENT, subsequent_indent=INDENT
    )
    command = [] if verdict.command in said else [f"{INDENT}{_printable(verdict.command)}"]
    said.append(verdict.command)
    return "\n".join([_printable(verdict.question), *lines, *command])


def footer(advice: Advice) -> str:
    """Return the meaning of the shares, and the questions that were left out."""
    lines = [
        f"{advice.draws} draws of the times from the 90 % bands of their estimates, seed "
        f"{advice.seed} (docs/theory.md); {si(advice.seconds, 's')}."
    ]
    if advice.settled:
        lines.append(f"No choice is left about: {'; '.join(advice.settled)} (--about shows each).")
    if advice.left_out:
        lines.append(f"No time was left for: {'; '.join(advice.left_out)}.")
    return "\n".join(lines)


def _printable(words: str) -> str:
    """Text without control characters, which a name may hold."""
    return "".join(c if c.isprintable() else "�" for c in words)
