"""Verdicts about simulated devices: a range over the designs of their kind.

The time of a simulated device is a closed form of a design. No sample gives the probability that
somebody builds a design, or how well, so these verdicts have a range and no percentage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pearl.advice.case import Case, Finding
from pearl.advice.comparison import LITTLE, number
from pearl.explanation.what_if import without_devices
from pearl.formatting import count, listed
from pearl.planning.plans import CLOSED, Plan
from pearl_devices import Platform, backend

DEPENDS = "That depends on the design"


def has_closed_forms(plan: Plan, names: Sequence[str]) -> bool:
    """Return whether times of these devices, in a plan's problem, are closed forms of a design."""
    assert plan.problem is not None
    modes = plan.problem.costs.modes
    return any(m.device in names and m.estimate.rung == CLOSED for m in modes)


def plan_without(case: Case, names: Sequence[str]) -> Plan | None:
    """Return the best plan without these devices."""
    problem = without_devices(case.problem, names)
    if case.plan.objective != "power_efficiency":  # an idle device draws power all the same
        costs = replace(problem.costs, platform=case.problem.costs.platform)
        problem = replace(problem, costing=costs)
    return case.solve_variant(problem)


def plans_by_design(
    case: Case, platform: Platform, names: Sequence[str], now: Plan
) -> dict[str, Plan]:
    """Return design → the best plan with these devices of that design. now: the present plan."""
    first = platform.device(names[0])
    designs = getattr(backend(first.kind), "DESIGNS", ("its only design",))
    own = first.design or designs[0]
    plans = {own: now}
    for design in designs:
        devices = tuple(
            replace(d, design=design) if d.name in names and d.kind == first.kind else d
            for d in platform.devices
        )
        system = replace(case.system, platform=replace(platform, devices=devices))
        if design != own and (other := case.plan_system(system)) is not None:
            plans[design] = other
    return plans


def designs_text(case: Case, base: Plan, plans: Mapping[str, Plan], names: Sequence[str]) -> str:
    """Return the value by each design, the least first, with that of the plan without the
    devices."""
    rows = [
        f"{design} {count(number(plan))} ({number(plan) / number(base):.2f} x"
        + (")" if any(t.device in names for t in plan.tasks) else ", without using it)")
        for design, plan in sorted(plans.items(), key=lambda item: number(item[1]))
    ]
    unit = case.unit[:1].upper() + case.unit[1:]
    return (
        f"{unit} by design: {listed(rows)}, against {count(number(base))} without it. "
        "These are closed forms of designs; none was timed on a board, so there is no percentage."
    )


def range_verdict(
    case: Case,
    finding: Finding,
    base: Plan,
    plans: Mapping[str, Plan],
    names: Sequence[str],
    words: tuple[str, str] = ("Yes, by every design", "No, by no design"),
) -> Finding:
    """Return the finding with its answer over the designs.

    base: the plan without the devices. words: if every design gains more than LITTLE, and if none
        does.
    """
    ratios = {design: number(plan) / number(base) for design, plan in plans.items()}
    worth = [ratio >= 1 + LITTLE for ratio in ratios.values()]
    word = words[0] if all(worth) else DEPENDS if any(worth) else words[1]
    best = max(plans.values(), key=number)
    return replace(
        finding,
        answer=f"{word}. {designs_text(case, base, plans, names)}"
        + case.setting(best, base, [n for n in names if any(t.device == n for t in best.tasks)]),
        share=None,
        numbers={
            "without": number(base),
            "by_design": {design: number(plan) for design, plan in plans.items()},
        },
    )
