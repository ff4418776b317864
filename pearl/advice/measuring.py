"""Rate and power of a plan, how often it is the best one, and which measurement would help.

Value of information (Raiffa and Schlaifer 1961): a measurement of one kernel family in one variant
on one model of device reveals the errors of its modes. Given samples of these errors, the others
are sampled again and the plan is chosen again. The expected regret that this saves is the value of
the measurement. Given some of the normal numbers behind the factors, the others are normal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pearl.advice.case import Case, Finding
from pearl.advice.comparison import share_text
from pearl.advice.designs import designs_text, plan_without, plans_by_design
from pearl.explanation.near_optimal import differences
from pearl.explanation.resolve import LEAST_S
from pearl.formatting import count, listed, percent, si
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.draws import PARTS, Draws, Uncertainty, Vector, uncertainties
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plans import CLOSED, Plan, closed_forms
from pearl.report.bands_text import range_text
from pearl.solvers import METHODS
from pearl.solvers.model.method import Search
from pearl.solvers.robust import Rival, regrets, rivals
from pearl.solvers.under_draws import rival_of
from pearl_devices import Device
from pearl_estimators.host.probe import load_probe

SOLVED = 30
"""Samples that are solved to find the relevant plans."""

OUTER, INNER = 24, 48
"""Samples of a measurement's result, and of everything else given each result."""

RIVALS = 10
"""Most plans among which a choice is made: those that are best most often."""


def rates_and_power(case: Case) -> Iterator[Finding]:
    """Yield rates, watts and work per joule, and the plan with most work per joule."""
    plan = case.plan
    b = None if closed_forms(plan) else plan.bands
    per_j = plan.env_steps_per_j
    parts = [
        f"{count(plan.rates['env_steps_per_s'])} env steps/s"
        if case.problem.graph.env_steps
        else ""
    ]
    parts[0] = parts[0] or case.value_text(plan)
    if b and b.env_steps_per_s and case.problem.graph.env_steps:
        parts[0] += f" ({range_text(b.env_steps_per_s)})"
    parts.append(f"{si(plan.power_w, 'W')} on average")
    if per_j is not None:
        ends = f" ({range_text(b.env_steps_per_j)})" if b and b.env_steps_per_j else ""
        parts.append(f"{count(per_j)} env steps/J{ends}")
    text = f"{listed(parts)}, modelled."
    frugal = case.solve_variant(case.problem, "power_efficiency")
    if frugal is not None and plan.energy_per_iteration_j > 0:
        gain = plan.energy_per_iteration_j / frugal.energy_per_iteration_j
        slower = frugal.period_s / plan.period_s
        if gain < 1.005:
            text += " No plan does more per joule by the estimates."
        else:
            text += (
                f" The plan with most work per joule does {gain:.2f} x as much with one and takes "
                f"{slower:.2f} x as long."
            )
    yield Finding(
        "What does it yield, and what does it draw?",
        text,
        case.command("pareto"),
        numbers={
            "env_steps_per_s": plan.rates["env_steps_per_s"],
            "power_w": plan.power_w,
            "env_steps_per_j": per_j,
        },
    )


def how_sure(case: Case) -> Iterator[Finding]:
    """Yield how often the plan is the best of those that are best in some sample."""
    if case.plan.objective != "throughput" or case.left_s < LEAST_S:
        return
    candidates = _rivals(case)
    if len(candidates) == 1:
        yield Finding(
            "How sure is this plan?",
            f"Sure: it is the best one in all of {SOLVED} draws that were solved.",
            case.command("plan", "--explain"),
            1.0,
            {"best": 1.0, "regret_mean": 0.0, "regret_worst": 0.0},
        )
        return
    closed = closed_forms(case.plan) or [
        m.device for r in candidates for m in r.assignment.modes if m.estimate.rung == CLOSED
    ]
    if closed:
        names = list(dict.fromkeys(closed))
        text = f"No draw says: it or the next best plan counts on closed forms of {listed(names)}."
        other = plan_without(case, names)
        if other is not None:
            plans = plans_by_design(case, case.system.platform, names, case.plan)
            text += f" {designs_text(case, other, plans, names)}"
        yield Finding("How sure is this plan?", text, case.command("plan", "--explain"))
        return
    rows = _iteration_s(candidates, case.draws, case)
    losses = regrets(rows, rows.min(axis=0))
    best = float(np.mean(losses[0] <= 1e-3))
    mean, worst = float(losses[0].mean()), float(losses[0].max())
    often = [float(np.mean(row <= 0)) for row in losses]
    rival = max(range(1, len(candidates)), key=lambda i: often[i])
    other = _to_plan(case, candidates[rival])
    yield Finding(
        "How sure is this plan?",
        f"It is the best one in {share_text(best, case.draws.number)}; its regret is "
        f"{percent(mean)} in the mean and {percent(worst)} at worst. Next is "
        f"{'; '.join(differences(case.plan, other)[:3])}.",
        case.command("plan", "--objective robust"),
        best,
        {"best": best, "regret_mean": mean, "regret_worst": worst, "rivals": len(candidates)},
    )
    yield from _measurement_finding(case, candidates)


def _rivals(case: Case) -> list[Rival]:
    """The plan itself, first, and the best plans of some samples, in the order of how often they
    are best."""
    plan = case.plan
    own = rival_of(plan, case.problem)
    if plan.method not in METHODS:
        return [own]
    method = METHODS[plan.method]
    deadline = time.monotonic() + 0.5 * case.left_s
    problem = replace(case.problem, objective="throughput")
    search, run = Search(deadline, plan.seed, plan.method), method.load(plan.method)
    candidates = rivals(problem, search, run, Draws(SOLVED, case.draws.seed))
    rows = _iteration_s(candidates, Draws(60, case.draws.seed), case)
    wins = np.bincount(rows.argmin(axis=0), minlength=len(candidates))
    order = np.argsort(-wins, kind="stable")
    winners = [candidates[i] for i in order if wins[i] > 0][:RIVALS]
    own_s, others = _iteration_s([own], Draws(60, case.draws.seed), case)[0], []
    for rival, row in (
        (r, _iteration_s([r], Draws(60, case.draws.seed), case)[0]) for r in winners
    ):
        if not np.allclose(row, own_s, rtol=1e-3):
            others.append(rival)
    return [own, *others]


def _iteration_s(candidates: Sequence[Rival], draws: Draws, case: Case) -> np.ndarray:
    """Seconds of an iteration, shape (rivals, draws)."""
    return np.array([r.seconds(draws, case.problem.limits.power_w) for r in candidates])


def _to_plan(case: Case, rival: Rival) -> Plan:
    proof = Proof("throughput", case.plan.method, case.plan.seed, 0.0, 0.0, 0.0, timed_out=False)
    power_w, channels = case.problem.limits.power_w, rival.channels
    return build_plan(rival.assignment, rival.orders, proof, power_w=power_w, channels=channels)


def _measurement_finding(case: Case, candidates: Sequence[Rival]) -> Iterator[Finding]:
    """A finding on the family whose measurement saves most expected regret."""
    number = OUTER * INNER
    inner = Draws(number, case.draws.seed + 1)
    rows = _iteration_s(candidates, inner, case)
    now = float(regrets(rows, rows.min(axis=0)).mean(axis=1).min())
    gains: list[tuple[float, str, str]] = []
    for family, members in _families(candidates).items():
        if case.left_s < LEAST_S:
            break
        drawn = condition_on(members, inner, case.draws.seed + 2)
        rows = _iteration_s(candidates, drawn, case)
        losses = regrets(rows, rows.min(axis=0))
        losses = losses.reshape(len(candidates), OUTER, INNER).mean(axis=2)
        gains.append((now - float(losses.min(axis=0).mean()), family, _device(case, members)))
    if not gains:
        return
    gain, family, name = max(gains)
    question = "What should be measured to be surer?"
    if gain < 1e-3:
        yield Finding(
            question,
            "Nothing: no single measurement changes the choice by more than 0.1 %.",
            case.command("plan", "--explain"),
            numbers={"gain": max(0.0, gain)},
            decides=False,
        )
        return
    device = case.problem.costs.platform.device(name)
    yield Finding(
        question,
        f"{family}: the choice made with it known is expected to be {percent(gain)} faster "
        f"(regret {percent(now)} → {percent(max(0.0, now - gain))}). "
        f"{_how_to_measure(device)}{_probe_hint(case, family)}",
        "pearl calibrate",
        numbers={"family": family, "gain": gain, "regret_mean": now, "device": name},
    )


def _how_to_measure(device: Device) -> str:
    if device.simulated:
        return (
            f"No command takes it: {device.name} is a closed form, of a design that is not built."
        )
    if device.real:
        return f"pearl calibrate takes it on this machine ({device.name})."
    return f"pearl calibrate takes it on a machine with {device.model or device.name}."


def _probe_hint(case: Case, family: str) -> str:
    """A command that measures part of it here: how fast this CPU starts torch operators on a
    GPU."""
    host = case.problem.costs.platform.device(case.problem.costs.platform.host)
    if "(eager" not in family or not host.real or host.host or load_probe() is not None:
        return ""
    return (
        " What starting its operators takes of this CPU is assumed: pearl calibrate --probe times "
        "it in seconds, without that device."
    )


def _families(candidates: Sequence[Rival]) -> Mapping[str, list[Uncertainty]]:
    """Family → the uncertainties of its modes that any of these plans uses."""
    families: dict[str, dict[str, Uncertainty]] = {}
    for rival in candidates:
        a = rival.assignment
        graph: TaskGraph = a.expansion.graph
        costs: CostTable = a.costs
        for mode in a.modes:
            for doubt, _ in uncertainties(mode, graph, costs):
                if doubt is not None:
                    families.setdefault(doubt.family, {})[doubt.own] = doubt
    return {family: list(members.values()) for family, members in families.items()}


def _device(case: Case, members: Sequence[Uncertainty]) -> str:
    """A device of the platform to which these uncertainties belong."""
    for device in case.problem.costs.platform.devices:
        if members[0].device == f"{device.kind} {device.model or device.name}":
            return device.name
    return case.problem.costs.platform.host


def condition_on(members: Sequence[Uncertainty], draws: Draws, seed: int) -> Draws:
    """Return samples with known errors of these modes: OUTER results by another seed, each INNER
    times. Every number that shares a part with them is sampled again given the result."""
    names = list(dict.fromkeys(name for d in members for name in d.parts()))
    weights = np.zeros((len(members), len(names)))
    for i, doubt in enumerate(members):
        for name in doubt.parts():
            weights[i, names.index(name)] = 1 / math.sqrt(PARTS)
    before = np.array([draws.part(name) for name in names])
    truth = Draws(OUTER, seed)
    observed = weights @ np.array([np.repeat(truth.part(name), INNER) for name in names])
    after = before + weights.T @ np.linalg.pinv(weights @ weights.T) @ (observed - weights @ before)
    parts: dict[str, Vector] = dict(zip(names, after, strict=True))
    return replace(draws, known={**draws.known, **parts})
