"""The bound of a plan, and the cost of each of the user's limits."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

from pearl.advice.case import Case, Finding, numbers
from pearl.explanation.bound import bound_of
from pearl.explanation.sections import bound_sentence
from pearl.formatting import listed
from pearl.graph.limits import SLACK_LIMITS
from pearl.planning.plans import Plan
from pearl.spec.models import LimitsSection
from pearl.spec.reading import load

VISIBLE = 1.005
"""The page only names a limit that costs less than this factor."""

FREE: dict[str, Any] = asdict(LimitsSection())
"""Limit → its value if nothing is limited."""

ALLOWING = (*SLACK_LIMITS, "env_groups", "learners", "averaging", "replicas", "any_order")
"""Limits that allow something; `sizes` asks about them."""


def what_bounds(case: Case) -> Iterator[Finding]:
    """Yield the bound of the plan, with its rate."""
    plan = case.plan
    said = bound_sentence(bound_of(plan, case.problem))
    proof = "" if plan.status == "optimal" else f" Not proved to be the best ({plan.status})."
    yield Finding(
        "What bounds you now?",
        f"{case.value_text(plan)}. {said}{proof}",
        case.command("plan", "--explain"),
        numbers={"value": plan.value, "period_s": plan.period_s, "bound": plan.bottleneck.name},
    )


def what_limits_cost(case: Case) -> Iterator[Finding]:
    """Yield the plan without each limit of the spec; then the gain by slack that it does not
    allow."""
    own: dict[str, Any] = dict(case.system.raw.get("limits") or {})
    cheap, closed = [], []
    costly: list[tuple[float, Finding]] = []
    for key, value in own.items():
        if not value or key in ALLOWING:
            continue
        raw = deepcopy(dict(case.system.raw))
        raw["limits"][key] = FREE[key]  # explicit, because an omitted key may have a default
        other = case.plan_system(replace(load(raw), platform=case.system.platform))
        if other is None:
            closed.append(key)
            continue
        c = case.compare(other)
        if c.ratio < VISIBLE:
            cheap.append(key)
            continue
        costly.append(
            (
                c.ratio,
                Finding(
                    f"What does your limit {key}: {value} cost?",
                    f"{c.ratio:.2f} x. Without it {case.comparison_text(other)}.",
                    case.command("plan", "--explain", sets={f"limits.{key}": FREE[key]}),
                    c.confidence,
                    numbers(c, other),
                ),
            )
        )
    yield from (v for _, v in sorted(costly, key=lambda pair: -pair[0]))
    if cheap or closed:
        parts = [f"{listed(cheap)} cost{'s' if len(cheap) == 1 else ''} nothing"] if cheap else []
        parts += [f"without {k} no plan was found in time" for k in closed]
        yield Finding(
            f"What do your {'other ' if costly else ''}limits cost?",
            f"By the estimates {'; '.join(parts)}.",
            case.command("plan", "--explain"),
        )
    yield from _slack(case)


def _slack(case: Case) -> Iterator[Finding]:
    """Yield the gain by one more of each slack of the graph; figures for the best one only."""
    if case.plan.objective == "makespan":
        return
    keys = list(dict.fromkeys(e.limit for e in case.problem.graph.edges if e.limit))
    tried: list[tuple[float, str, int, Plan]] = []
    for key in keys:
        more = getattr(case.system.limits, key) + 1
        other = case.plan_with({f"limits.{key}": more})
        if other is not None:
            tried.append((case.compare(other).ratio, key, more, other))
    if not tried:
        return
    ratio, key, more, other = max(tried, key=lambda t: t[0])
    names = listed(keys)
    if ratio < VISIBLE:
        yield Finding(
            "Would a wider limit help?",
            f"Nothing by the estimates: one more of {names} changes less than 0.5 %.",
            case.command("plan", "--explain"),
            decides=False,
        )
        return
    c = case.compare(other)
    yield Finding(
        "Would a wider limit help?",
        f"{key}: {more} is worth {ratio:.2f} x: {case.comparison_text(other)}. It changes what "
        "is learned: docs/theory.md says by how much data are older.",
        case.command("plan", "--explain", sets={f"limits.{key}": more}),
        c.confidence,
        numbers(c, other),
    )
