"""`advise`: one page of verdicts about a spec, each with how sure it is.

Every figure comes from a solved plan. The certainty of a verdict is the share of samples of the
estimates' bands in which it holds (`pearl.planning.draws`). The page names questions for which the
time ran out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pearl.advice import hardware, limits_cost, measuring, sizes
from pearl.advice.case import Case, Finding
from pearl.errors import SpecError
from pearl.explanation.resolve import LEAST_S
from pearl.graph.limits import time_limit_faults
from pearl.notebook import HasPage
from pearl.planner.planner import as_system, plan
from pearl.planning.draws import NUMBER, Draws
from pearl.planning.plans import Plan, plain
from pearl.report.document import Page
from pearl.seeds import checked_seed
from pearl.spec.messages import suggest_nearest
from pearl.spec.system import System
from pearl_devices.validation import check_type, is_names, quote

__all__ = ["advise", "case", "page"]


@dataclass(frozen=True)
class Advice(HasPage):
    """The verdicts about a spec, in the order of the page.

    plan: of the spec. draws, seed: number of samples that compare plans, and their seed.
    left_out: questions for which the time ran out. seconds: time spent.
    settled: questions to which this spec and platform leave one answer; empty if the user asked.
    """

    plan: Plan
    verdicts: tuple[Finding, ...]
    draws: int
    seed: int
    left_out: tuple[str, ...]
    seconds: float
    settled: tuple[str, ...] = ()

    def __str__(self) -> str:
        from pearl.advice.page import text

        return text(self)

    def page(self, written: str = "") -> Page:
        """Return the advice as a page. written: the date, for the footer; empty for none."""
        from pearl.advice.page import advice_page

        return advice_page(self, written)

    def save(self, path: str | Path) -> None:
        """Write the advice, completely or not at all, in the format of the suffix: .html, .json or
        .txt.

        Raises:
            SpecError: the suffix is another one.
        """
        self._save(path, "advice", txt=lambda: f"{self}\n")

    def to_json(self) -> dict[str, Any]:
        """Return a plain object as `pearl/schemas/advise.json` describes it."""
        value: dict[str, Any] = plain(
            {
                "schema": 1,
                "plan": self.plan.to_json(),
                "draws": self.draws,
                "seed": self.seed,
                "verdicts": [v.to_json() for v in self.verdicts],
                "left_out": list(self.left_out),
                "settled": list(self.settled),
                "seconds": self.seconds,
            }
        )
        return value


Listener = Callable[[str, Sequence[Finding]], None]
"""Called before each question with its name and no verdict, and after it with its verdicts."""


def advise(
    spec: System | str | Path | Mapping[str, Any],
    *,
    add: Sequence[str] = (),
    time_limit_s: float = 20.0,
    seed: int = 0,
    about: Sequence[str] = (),
    listener: Listener | None = None,
    words: Sequence[str] = (),
) -> Advice:
    """Find what bounds a spec and what would help: limits, devices, replay, sizes, power,
    measurements.

    Args:
        spec: a loaded system, a mapping, or the path or name of a spec.
        add: devices of the catalogue whose purchase is evaluated; default a GPU if the platform has
            only its host.
        time_limit_s: for all questions after the plan itself.
        seed: of the samples.
        about: only these questions, of bound, limits, devices, buy, replay, environments, power,
            sure, sizes, actors, learners, capacities; default all.
        listener: called before and after each question.
        words: the spec as commands name it; default its path or name.

    Examples:
        >>> system = pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"})
        >>> advice = pearl.advise(system, about=["devices"])
        >>> [verdict.question for verdict in advice.verdicts]
        ['Should gpu be used?']

    Raises:
        SpecError: the spec, a device or a number is wrong.
        InfeasibleError: no plan meets the limits.
    """
    problems = time_limit_faults(time_limit_s)
    names = "a list of names of"
    problems += check_type("advise: about", about, Sequence, f"{names} questions")
    if isinstance(add, str) or not is_names(add):
        problems.append(f"advise: add is {quote(add)}; {names} the catalogue is needed")
    if problems:
        raise SpecError(*problems)
    questions = _questions(add)
    problems += [
        f"advise: about {quote(name)}: no such question{suggest_nearest(str(name), questions)}; "
        "there are "
        f"{', '.join(questions)}"
        for name in ([about] if isinstance(about, str) else about)
        if name not in questions
    ]
    if problems:
        raise SpecError(*problems)
    began = time.monotonic()
    system = as_system(spec)
    whole = [
        system.platform,
        *(hardware.platform_with(system.platform, d, hardware.MOST)[0] for d in add),
    ]
    simulated = {d.name for platform in whole for d in platform.devices if d.simulated}
    notify = listener or (lambda question, verdicts: None)
    notify("plan", ())
    first = plan(system, time_limit_s=time_limit_s, seed=seed)
    spelt = tuple(words) or (str(spec) if isinstance(spec, str | Path) else system.name,)
    draws = Draws(NUMBER, checked_seed(seed))
    end = time.monotonic() + time_limit_s
    case = Case(system, first, draws, end, spelt)
    findings: list[Finding] = []
    left_out: list[str] = []
    settled: list[str] = []
    chosen = {name: ask for name, ask in questions.items() if not about or name in about}
    for n, (question, ask) in enumerate(chosen.items()):
        notify(question, ())
        left = end - time.monotonic()
        share = time.monotonic() + 2 * left / (len(chosen) - n + 1)
        question_case = replace(case, deadline=share)
        verdicts = tuple(v.marked(simulated) for v in ask(question_case)) if left > LEAST_S else ()
        if question_case.left_s <= LEAST_S and not verdicts:
            left_out.append(question)
        if not about:  # without a choice, the answer is only for users who ask
            if any(not v.decides for v in verdicts):
                settled.append(question)
            verdicts = tuple(v for v in verdicts if v.decides)
        if verdicts:
            notify(question, verdicts)
        findings += verdicts
    seconds = time.monotonic() - began
    return Advice(
        first, tuple(findings), draws.number, draws.seed, tuple(left_out), seconds, tuple(settled)
    )


Answers = Callable[[Case], Iterator[Finding]]


def _questions(add: Sequence[str]) -> dict[str, Answers]:
    """The questions by their names, in order."""
    return {
        "bound": limits_cost.what_bounds,
        "limits": limits_cost.what_limits_cost,
        "devices": hardware.device_findings,
        "buy": lambda case: hardware.purchase_findings(case, add),
        "replay": hardware.where_replay,
        "environments": sizes.how_many_environments,
        "power": measuring.rates_and_power,
        "sure": measuring.how_sure,
        "sizes": sizes.which_sizes_matter,
        "actors": sizes.how_many_actors,
        "learners": sizes.how_many_learners,
        "capacities": sizes.which_capacities_matter,
    }
