"""The common input of every question of `advise`: the spec, its plan, samples, and a deadline."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from pearl.advice.comparison import Comparison, compare, how_sure, number
from pearl.errors import InfeasibleError, SpecError
from pearl.explanation.resolve import LEAST_S, interchangeable_devices
from pearl.formatting import count, listed, marked, si
from pearl.planner.planner import build_problem, plan_graph
from pearl.planning.draws import Draws
from pearl.planning.plans import Plan, closed_forms
from pearl.planning.problem import Problem
from pearl.report.bands_text import range_text
from pearl.solvers.model.method import ROBUST
from pearl.solvers.solver import solve_problem
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl_devices.kernels import kind_of

SOLVE_S = 2.0
"""Most seconds of one plan; the best plan by then counts, and is called unproved."""


@dataclass(frozen=True)
class Finding:
    """An answer.

    question, answer: in words. command: shows more.
    share: of the samples in which the answer holds; None if nothing is compared.
    numbers: the figures of the answer, SI units.
    decides: the answer leaves a choice; else the page shows it only if the user asked.
    """

    question: str
    answer: str
    command: str
    share: float | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    decides: bool = True

    def marked(self, simulated: Collection[str]) -> Finding:
        """Return the same answer with "simulated" at each of these devices."""
        question, answer = marked(self.question, simulated), marked(self.answer, simulated)
        return replace(self, question=question, answer=answer)

    def to_json(self) -> dict[str, Any]:
        """Return a plain object as `pearl/schemas/advise.json` describes it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "decides"}


@dataclass(frozen=True)
class Case:
    """A spec and its plan, which has the problem.

    spec: as a command names it, with the keys that are set. deadline: `time.monotonic()` seconds.
    """

    system: System
    plan: Plan
    draws: Draws
    deadline: float
    spec: tuple[str, ...]

    @property
    def problem(self) -> Problem:
        assert self.plan.problem is not None
        return self.plan.problem

    @cached_property
    def interchangeable(self) -> tuple[tuple[str, ...], ...]:
        """The sets of interchangeable devices; in each set, devices in use come first."""
        return interchangeable_devices(self.problem, self.plan)

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def command(self, name: str, *more: str, sets: Mapping[str, object] | None = None) -> str:
        """Return a command line about this spec, each key set once."""
        keys = [f"{key}={_yaml_text(value)}" for key, value in (sets or {}).items()]
        spec = [word for word in self.spec if word.partition("=")[0] not in (sets or {})]
        words = [name, *map(shlex.quote, (*spec, *keys)), *more]
        return " ".join(("pearl", *words))

    def plan_with(self, sets: Mapping[str, object]) -> Plan | None:
        """Return the plan of the spec with other values of these keys; None if the spec allows
        none."""
        try:
            other = load(self.system.raw, set=dict(sets))
        except SpecError:  # a size that the rules of specs forbid
            return None
        return self.plan_system(replace(other, platform=self.system.platform))

    def plan_system(self, system: System) -> Plan | None:
        """Return the plan of another spec; None if there is none, or no time is left."""
        if self.left_s < LEAST_S:
            return None
        try:
            if system.objective in ROBUST:  # a robust search for each question takes too long
                system = replace(system, objective="throughput")
            return plan_graph(build_problem(system), time_limit_s=min(self.left_s, SOLVE_S))
        except (InfeasibleError, SpecError):
            return None

    def solve_variant(self, problem: Problem, objective: str | None = None) -> Plan | None:
        """Return the best plan of a changed problem. objective: None for that of the plan."""
        if self.left_s < LEAST_S:
            return None
        try:
            return solve_problem(
                replace(problem, objective=objective or self.plan.objective),
                time_limit_s=min(self.left_s, SOLVE_S),
                seed=self.plan.seed,
                known=self.plan,
            )
        except (InfeasibleError, SpecError):
            return None

    def compare(self, other: Plan) -> Comparison:
        """Compare another plan with this one."""
        return compare(self.plan, other, self.draws)

    @property
    def unit(self) -> str:
        per = "J" if self.plan.objective == "power_efficiency" else "s"
        return f"{'env steps' if self.problem.graph.env_steps else 'iterations'}/{per}"

    def value_text(self, plan: Plan) -> str:
        """Return a plan's value with the 90 % band: `29,389 env steps/s (9,672–49,824)`; without a
        band if it rests on closed forms."""
        text = f"{count(number(plan))} {self.unit}"
        b = None if closed_forms(plan) else plan.bands
        per_j = plan.objective == "power_efficiency"
        ends = b and (b.env_steps_per_j if per_j else b.env_steps_per_s)
        return f"{text} ({range_text(ends)})" if ends and ends[0] < ends[1] else text

    def comparison_text(self, other: Plan) -> str:
        """Return another plan's value, this one's, and the certainty of the recommended one."""
        c = self.compare(other)
        values = f"{self.value_text(other)} instead of {count(number(self.plan))}"
        if c.choice == "plan":
            return f"{values}: as it is now, the plan is {how_sure(c)}"
        return f"{values}: {how_sure(c)}"

    def setting(self, plan: Plan, other: Plan, names: Collection[str]) -> str:
        """Return the assumptions of a comparison of two plans: the variants of the tasks on these
        devices, the CPU and its cores in use, and the watts. plan: the one that uses the
            devices."""
        platform = (plan.problem or self.problem).costs.platform
        host = platform.device(platform.host)
        there = [t for t in plan.tasks if t.device in names]
        learning = [t for t in there if t.task in self.tasks("gradient")]
        variants: dict[str, list[str]] = {}
        for t in learning or there:
            if t.task not in variants.setdefault(t.variant, []):
                variants[t.variant].append(t.task)
        ways = [f"variant {variant} ({listed(tasks)})" for variant, tasks in variants.items()]
        cores = [sum(k.width for k in p.lanes if k.device == host.name) for p in (plan, other)]
        used = f"{cores[0] or 'none'} {'is' if cores[0] < 2 else 'are'} in use"
        if cores[0] != cores[1]:
            used += f" with it, {cores[1] or 'none'} without"
        parts = [
            *([f"It counts on {listed(ways)} on {listed(list(names))}"] if ways else []),
            f"the CPU is {host.model or host.name} with {cores_text(host.width)}, of which {used}",
            f"{si(plan.power_w, 'W')} with it, {si(other.power_w, 'W')} without (modelled)",
        ]
        text = "; ".join(parts)
        return f" {text[:1].upper()}{text[1:]}."

    def tasks(self, *structures: str) -> list[str]:
        """Return the tasks of the graph whose kernels have one of these structures."""
        return [
            t.name for t in self.problem.graph.tasks if kind_of(t.kernel).structure in structures
        ]


def cores_text(number: int) -> str:
    """Return `1 core` or `16 cores`."""
    return f"{number} core{'' if number == 1 else 's'}"


def _yaml_text(value: object) -> str:
    if value is None:
        return "null"
    return str(list(value)) if isinstance(value, tuple | list) else str(value)


def numbers(c: Comparison, other: Plan) -> dict[str, Any]:
    """Return a comparison as figures."""
    found = {"value": number(other), "ratio": c.ratio, "choice": c.choice}
    if c.closed:
        return found
    return {**found, "better": c.better, "lose": c.lose, "win": c.win, "draws": c.draws}
