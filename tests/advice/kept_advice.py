"""What comparisons recommend, and pages of advice by hand, whose words are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from pearl.advice import Advice, hardware
from pearl.advice.case import Finding
from pearl.advice.comparison import Comparison, how_sure, ratio_text, share_text
from tests.examples import fused_plan, two_device_plan
from tests.report.kept_pages import BOTH, first, listed, news, words

HOST = {"platform": {"devices": {"cpu": "xeon_gold_6326"}}, "limits": {}}
"""Keys of a spec on a CPU alone."""


def comparisons() -> list[str]:
    """Return what comparisons recommend, at the edges of each rule."""
    rows = []
    for ratio, better, worse, near, closed in (
        (1.5, 0.9, 0.1, 0.0, False), (1.5, 0.1, 0.9, 0.0, False), (0.5, 0.9, 0.1, 0.0, False),
        (0.5, 0.1, 0.9, 0.0, False), (1.0, 0.5, 0.5, 0.0, False), (1.1, 0.5, 0.5, 0.0, False),
        (0.9, 0.5, 0.5, 0.0, False), (1.019, 0.9, 0.1, 0.9, False), (1.02, 0.9, 0.1, 0.9, False),
        (0.981, 0.9, 0.1, 0.9, False), (0.99, 0.9, 0.1, 0.89, False), (1.3, 0.9, 0.1, 0.0, True),
        (0.7, 0.9, 0.1, 0.0, True), (1.01, 0.0, 1.0, 0.0, True), (0.0, 0.0, 1.0, 0.0, False),
        (1.2, 0.55, 0.45, 0.0, False), (1.2, 0.6, 0.4, 0.0, False),
    ):  # fmt: skip
        c = Comparison(ratio, better, worse, 1.001, 4.0, 200, near, closed)
        r = c.recommended
        rows.append(f"{ratio} {better} {worse} {near} {closed}: {c.choice} {c.confidence} "
                    f"{c.is_disputed} {r.ratio:.6g} {r.better} {r.worse} {r.lose} {r.win}: "
                    f"{how_sure(c)}; {hardware._verdict('Word', c)}"
                    f"{hardware._confidence_text(c, 'With', 'Without')}")  # fmt: skip
    rows += [ratio_text(f) for f in (1.0, 1.094, 1.1, 99.94, 100.0, 12_345.6)]
    rows += [share_text(part, 300) for part in (0.0, 0.001, 0.004, 0.006, 0.5, 0.994, 0.997, 1.0)]
    return rows


def findings() -> tuple[Finding, ...]:
    """Return findings by hand, one for each form of a card and of a section."""
    sure = {"best": 0.71, "regret_mean": 0.03, "regret_worst": 0.4, "rivals": 3}
    sizes_ = {"by_size": {"1": 8_000.0, "2": 16_000.0, "4": 17_000.0}}
    long = "No device that a plan could use in any way is in the catalogue as it is now and then"
    return (
        Finding("What bounds you now?", "16,000. Lane.", "pearl plan x", None, {"bound": "gpu0/0"}),
        Finding("Is gpu worth having?", "Yes: 2 instead of 1 (2.0×). With gpu: better.",
                "pearl plan x", 0.95, {"choice": "other", "ratio": 1.5, "lose": 1.3, "win": 2.0}),
        Finding("Is it?", "No (so it is): 1.", "pearl plan y", 1.0,
                {"choice": "plan", "win": 1.0, "lose": 9.0}),
        Finding("Does it?", "Maybe (0.4 %): equal.", "pearl plan y", 0.92, {"choice": "either"}),
        Finding("How many?", "2, as now: others that were tried give less than 5 % more (2).",
                "pearl a", None, sizes_),
        Finding("How many more?", "4 are enough. It changes what is learned.", "pearl a", None,
                {"by_size": {"3": 1.0, "5": 2.0}}),
        Finding("Would a wider limit help?", "prefetch: 1 is worth 1.37 x: as it is.", "pearl z",
                0.75, {"choice": "other", "ratio": 1.37, "lose": 1.5}),
        Finding("Long?", f"{long}.", "pearl a", None, {"by_size": {"1": 1.0}}),
        Finding("Short?", "Nothing", "pearl a"),
        Finding("How sure is this plan?", "It is the best.", "pearl plan x", 0.71, sure),
        Finding("What should be measured to be surer?", "learn on gpu: it.", "pearl calibrate",
                None, {"family": "learn on gpu0", "gain": 0.02, "regret_mean": 0.03}),
        Finding("What does it yield?", "162 W.", "pearl pareto", None,
                {"power_w": 162.0, "env_steps_per_j": 98.8}),
    )  # fmt: skip


def advices() -> Iterator[tuple[str, Advice]]:
    """Yield advice by hand."""
    plan, all_ = two_device_plan(), findings()
    whole = Advice(plan, all_, 200, 7, (), 1.25)
    yield "everything", whole
    yield "left out", replace(whole, verdicts=all_[:1], left_out=("sure", "sizes"))
    yield "settled", replace(whole, verdicts=all_[2:5], settled=("replay", "buy"))
    yield "slack leads", replace(whole, verdicts=all_[6:7])
    small = replace(all_[1], numbers={**all_[1].numbers, "ratio": 1.019})
    yield "little gain", replace(whole, verdicts=(small,))
    edge = replace(all_[1], numbers={**all_[1].numbers, "ratio": 1.02})
    yield "just enough", replace(whole, verdicts=(edge,))
    best = replace(all_[9], numbers={**all_[9].numbers, "best": 1.0})
    nothing = replace(all_[11], numbers={"power_w": 162.0, "env_steps_per_j": None})
    yield "sure", replace(whole, plan=fused_plan(), verdicts=(best, nothing))


@cache
def pages() -> dict[str, list[str]]:
    """Return what each page of advice by hand says that no page before has said."""
    made = ((name, [*words(a.page()), *str(a).splitlines()]) for name, a in advices())
    return news(made, *map(first, BOTH))


CASES: dict[str, Callable[[], list[str]]] = {
    "comparisons": comparisons,
    **{f"page, {name}": (lambda name=name: pages()[name]) for name, _ in advices()},
}
"""Case → what is kept of it, a line each."""


def all_advised() -> str:
    """Everything that is kept."""
    return listed({name: made() for name, made in CASES.items()})
