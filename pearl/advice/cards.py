"""Verdicts as cards: a question, its answer in a few words, and its certainty."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pearl.advice.case import Finding
from pearl.advice.comparison import number
from pearl.explanation.sections import SLACK
from pearl.planning.plans import Plan
from pearl.report.document import Block, Card, Cards, Command, Section, Sentences
from pearl.report.figures.bars import BarRow, Part, bar_chart, stacked_bar
from pearl.report.figures.front import sureness, tried_numbers
from pearl.report.lead import percent, the_device

LONGEST = 58
"""Most letters of a verdict; a longer first clause is part of the reason."""

SAME = "It does not matter"


def name_devices(text: str, plan: Plan) -> str:
    """Return a text with the display names of the devices of the plan's platform."""
    platform = plan.problem.costs.platform.devices if plan.problem is not None else ()
    for d in platform:
        name = the_device(plan, d.name)
        pattern = rf"(?:the )?(?<![\w.=,:'-]){re.escape(d.name)}(?![\w.=-])"
        text = re.sub(pattern, lambda _, name=name: name, text)  # type: ignore[misc]
    return text


def card(finding: Finding, draws: int, rate: float) -> Card:
    """Return a verdict as a card. rate: of the plan, to find its number among the tried ones."""
    verdict, reason = _slack(finding.answer) or _split(finding.answer)
    numbers = finding.numbers
    choice = numbers.get("choice")
    low = finding.answer.lower()
    glyph = "yes"
    if choice == "either" or re.search(r"does not matter|others .*give less than", low):
        glyph, verdict = "same", verdict if verdict.startswith(SAME) else SAME
    elif re.match(r"(no|nothing|none)\b", low):
        glyph = "no"
    elif "changes what is learned" in low:
        glyph = "if"
    by_size = numbers.get("by_size")
    figure = None
    if finding.share is not None:
        worst = numbers.get("win" if choice == "plan" else "lose")
        figure = sureness(finding.share, draws, worst)
    elif isinstance(by_size, dict) and len(by_size) > 1:
        now = _now(finding, rate)
        if now is not None:
            figure = tried_numbers(list(by_size.items()), now)
    return Card(
        finding.question,
        verdict,
        glyph,  # type: ignore[arg-type]
        reason,
        finding.command,
        figure.draw if figure else None,
        figure.sentence if figure else "",
    )


def is_slack(finding: Finding) -> bool:
    """Whether a verdict says what older data would gain."""
    return _slack(finding.answer) is not None


def _slack(answer: str) -> tuple[str, str] | None:
    """The verdict about one more of a slack: `Priorities one step old gives 1.37 ×`."""
    found = re.match(r"(\w+): \d+ is worth ([\d.]+) x: (.*)", answer)
    if found is None or found[1] not in SLACK:
        return None
    name = SLACK[found[1]]
    return f"{name[:1].upper()}{name[1:]}: {found[2]} ×", found[3]


def _split(answer: str) -> tuple[str, str]:
    """The first clause of an answer, and the rest."""
    found = re.search(r"[:;,.] | \(", answer)
    if found is None or found.start() > LONGEST:
        head = " ".join(answer.split(" ")[:7])
        return (answer.rstrip("."), "") if len(answer) <= LONGEST else (f"{head} …", answer)
    rest = answer[found.start() :].lstrip(":;,. ")
    rest = re.sub(r"^\(([^()]*)\)", r"\1", rest)
    return answer[: found.start()], rest[:1].upper() + rest[1:]


def _now(finding: Finding, rate: float) -> str | None:
    """The number around which others are tried: the one with the rate of the plan."""
    by_size = finding.numbers.get("by_size", {})
    return next((n for n, r in by_size.items() if abs(r / rate - 1) < 1e-6), None)


def sections(findings: Sequence[Finding], draws: int, plan: Plan) -> tuple[Section, ...]:
    """Return sections: what matters, what does not, certainty, what to measure next, and power."""
    rate = number(plan)
    findings = [
        replace(f, question=name_devices(f.question, plan), answer=name_devices(f.answer, plan))
        for f in findings
    ]
    kinds: dict[str, list[Finding]] = {}
    for f in findings:
        kinds.setdefault(_kind(f), []).append(f)
    cards = [card(f, draws, rate) for f in kinds.get("card", ())]
    matters = tuple(c for c in cards if c.glyph != "same")
    same = tuple(c for c in cards if c.glyph == "same")
    guide = (
        "Each card: the verdict, why, and how sure. 20 dots are all draws of the times from their "
        "bands; filled: the verdict holds. The line below, from 1 × to 10 ×: the worst loss in the "
        "other draws."
    )
    found = [
        Section("What matters", "", guide, (Cards(matters),), brief=True) if matters else None,
        Section("What does not matter", "Leave these as they are.", "", (Cards(same),), brief=True)
        if same
        else None,
    ]
    found += [_sure(f) for f in kinds.get("sure", ())]
    found += [_measure(f, plan) for f in kinds.get("measure", ())]
    found += [_power(f) for f in kinds.get("power", ())]
    return tuple(s for s in found if s is not None)


def _kind(finding: Finding) -> str:
    keys = {"bound": "bound", "regret_worst": "sure", "family": "measure", "power_w": "power"}
    return next((kind for key, kind in keys.items() if key in finding.numbers), "card")


def _command(finding: Finding) -> tuple[Block, ...]:
    return (Command(finding.command),) if finding.command else ()


def _sure(finding: Finding) -> Section:
    best = float(finding.numbers.get("best", 0.0))
    figure = stacked_bar(
        [Part("this plan", best, "grey t10"), Part("another plan", 1 - best, "grey t4")],
        in_seconds=False,
    )
    mean, worst = (float(finding.numbers[k]) for k in ("regret_mean", "regret_worst"))
    text = f"This plan is the best one in {percent(best)} of the draws."
    more = "No other plan is better in any of them."
    if best <= 0.9995:
        more = (
            "In the others another one is faster: keeping this plan loses "
            f"{percent(mean)} on average over all draws, {percent(worst)} at worst."
        )
    blocks = (*((figure,) if figure else ()), Sentences("", (("", finding.answer),), inline=True))
    return Section("How sure", text, more, (*blocks, *_command(finding)))


def _measure(finding: Finding, plan: Plan) -> Section:
    gain, now = (float(finding.numbers[k]) for k in ("gain", "regret_mean"))
    bars = [
        BarRow("now", now, percent(now), hollow=True),
        BarRow("measured", max(now - gain, 0.0), percent(max(now - gain, 0.0))),
    ]
    figure = bar_chart(bars, "Loss on average by not knowing the true times.")
    text = f"Knowing its time, the plan chosen is expected to be {percent(gain)} faster."
    family = name_devices(str(finding.numbers["family"]), plan)
    if family:
        family = f"Task {family}"
    return Section(
        "What to measure next",
        f"{family}.",
        f"{text} Bars: loss on average by not knowing the true times.",
        (*((figure,) if figure else ()), *_command(finding)),
    )


def _power(finding: Finding) -> Section:
    per_j = finding.numbers.get("env_steps_per_j")
    more = f", {per_j:.3g} env steps/J" if per_j else ""
    return Section(
        "Power",
        f"{finding.numbers['power_w']:.3g} W on average{more}.",
        "Modelled. The page of the front has more.",
        (Sentences("", (("", finding.answer),), inline=True), *_command(finding)),
    )
