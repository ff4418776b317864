"""Solving a changed problem again, with the plan's own method and objective and a shared time
limit.

The objective of a robust plan is that of its samples (`pearl.solvers.under_draws`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pearl.errors import InfeasibleError
from pearl.planning.bands import Regret
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plans import Placement, Plan
from pearl.planning.problem import Problem
from pearl.solvers import METHODS
from pearl.solvers.method_run import GRACE, GRACE_S
from pearl.solvers.model.method import Search
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.period.symmetry import find_orbits
from pearl.solvers.solver import default_method, solve_problem
from pearl.solvers.under_draws import Scale, rival_of
from pearl.time_limit import OutOfTimeError, within

LEAST_S = 0.02
"""A solve with less time than this is skipped (assumed)."""

SAME = 1e-6
"""Relative difference below which two values count as equal: the tolerance of a proof."""


@dataclass(frozen=True)
class Answer:
    """The result of a solve.

    plan: None if there is none.
    reason: why there is none, in words.
    proven: the plan is proved to be the best one, or it is proved that there is none.
    gain: how much better it is than the explained plan, by the objective of that plan, as a
        fraction. max_gain: no plan of the problem has a larger gain.
    """

    plan: Plan | None
    reason: str
    proven: bool
    gain: float = 0.0
    max_gain: float = math.inf


@dataclass(frozen=True)
class Resolver:
    """A plan, its problem, and the deadline of further solves (`time.monotonic()` seconds)."""

    plan: Plan
    problem: Problem
    deadline: float

    @property
    def out_of_time(self) -> bool:
        return self.deadline - time.monotonic() < LEAST_S

    @property
    def method(self) -> str | None:
        """The plan's own method, so that a difference comes from the change, not from the
        method."""
        return self.plan.method if self.plan.method in METHODS else None

    def with_time_share(self, share: float) -> Resolver:
        """Return the same resolver with only this share of the remaining time."""
        now = time.monotonic()
        return replace(self, deadline=now + share * (self.deadline - now))

    def solve(self, problem: Problem | None = None, *, waiting: int = 1) -> Answer | None:
        """Find the best plan of a problem, by the objective of the plan; None if no time is left.

        problem: a changed one; None for the problem of the plan.
        waiting: number of solves that share the remaining time; one may take twice its share.
        """
        if self.out_of_time:
            return None
        left = self.deadline - time.monotonic()
        seconds = max(LEAST_S, min(left, 2 * left / max(waiting, 1)))
        problem = replace(problem or self.problem, objective=self.plan.objective)
        try:
            if self.scale is not None:
                return self._solve_under_draws(self.scale, problem, seconds)
            plan = solve_problem(
                problem,
                method=self.method,
                time_limit_s=seconds,
                seed=self.plan.seed,
                known=self.plan,
            )
        except InfeasibleError as error:
            return Answer(None, str(error), bool(error.conflict))
        bound = plan.bound_value
        max_gain = self.gain(bound) if bound else math.inf
        return Answer(plan, "", plan.status == "optimal", self.gain(plan.value), max_gain)

    def _solve_under_draws(self, scale: Scale, problem: Problem, seconds: float) -> Answer:
        """The plan of least cost under the samples."""
        began, seed = time.monotonic(), self.plan.seed
        deadline = began + seconds
        name = self.method or default_method("throughput")
        search, run = Search(deadline, seed, name), METHODS[name].load(name)
        try:
            with within(deadline + GRACE_S + GRACE * seconds):
                drawn = scale.solve(problem, search, run, self.plan)
        except OutOfTimeError:
            return Answer(None, f"none was found in {seconds:.2g} s", False)
        proof = Proof("throughput", name, seed, time.monotonic() - began, 0.0, 0.0, timed_out=False)
        rival = drawn.rival
        power_w, channels = problem.limits.power_w, rival.channels
        plan = build_plan(rival.assignment, rival.orders, proof, power_w=power_w, channels=channels)
        gain, max_gain = self.own_cost / drawn.cost - 1, math.inf
        if drawn.bound > 0:
            max_gain = self.own_cost / drawn.bound - 1
        return Answer(plan, "", max_gain - gain <= SAME, gain, max_gain)

    @cached_property
    def scale(self) -> Scale | None:
        """The samples by which a robust plan was chosen; None for other plans."""
        regret = self.plan.regret
        return None if regret is None else Scale.from_regret(regret, self.problem.costs)

    @cached_property
    def own_cost(self) -> float:
        """The cost of a robust plan under its samples."""
        return self.cost_of(self.plan)

    def cost_of(self, plan: Plan) -> float:
        """Return the cost of a plan of this problem under the robust plan's samples: 1 + its
        regret."""
        assert self.scale is not None
        return self.scale.cost(rival_of(plan, self.problem), self.problem.limits.power_w)

    def regret_of(self, plan: Plan, regret: Regret) -> Regret:
        """Return the regret of a plan of this problem, by the samples of this regret of the robust
        plan; its upper ends are known if all those samples are solved."""
        assert self.scale is not None
        rival = rival_of(plan, self.problem)
        least = self.scale.ratios(rival, self.problem.limits.power_w) - 1
        mean, worst = float(least.mean()), float(least.max())
        solved = regret.solved == regret.draws
        ends = (mean, worst) if solved else (None, None)
        return replace(regret, mean=mean, worst=worst, mean_high=ends[0], worst_high=ends[1])

    def gain(self, value: float) -> float:
        """Return how much better a value is than the plan's by the estimates, as a fraction of
        it."""
        if self.plan.objective == "makespan":
            return self.plan.value / value - 1
        return value / self.plan.value - 1

    @cached_property
    def interchangeable(self) -> tuple[tuple[str, ...], ...]:
        """The sets of interchangeable devices, as `interchangeable_devices`."""
        sets = interchangeable_devices(self.problem, self.plan)
        return sets if self.plan.regret is None else one_model(sets, self.problem.costs)

    @property
    def throughput(self) -> float:
        return throughput(self.plan)

    @property
    def efficiency(self) -> float | None:
        return efficiency(self.plan)


def throughput(plan: Plan) -> float:
    """Return env steps per second; iterations if the graph steps no environment."""
    return plan.rates["env_steps_per_s"] or 1 / plan.period_s


def efficiency(plan: Plan) -> float | None:
    """Return env steps (iterations) per joule; None if no energy is known."""
    if plan.env_steps_per_j is not None:
        return plan.env_steps_per_j
    energy = plan.energy_per_iteration_j
    return 1 / energy if energy > 0 else None


def interchangeable_devices(problem: Problem, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Return sets of devices that can be exchanged in any plan without changing its value; in each
    set, devices that the plan uses come first."""
    space = search_spaces(problem)[0]
    used = {t.device for t in plan.tasks}
    sets = find_orbits(space, [range(len(options)) for options in space.options])
    return tuple(tuple(sorted(names, key=lambda name: name not in used)) for names in sets)


def one_model(sets: Iterable[tuple[str, ...]], costs: CostTable) -> tuple[tuple[str, ...], ...]:
    """Return the sets split by the model of the devices: devices of different models, or without a
    named model, have different errors in each sample."""
    groups = []
    for names in sets:
        models = [costs.platform.device(name).model for name in names]
        for model in dict.fromkeys(filter(None, models)):
            groups.append(tuple(n for n, m in zip(names, models, strict=True) if m == model))
    return tuple(names for names in groups if len(names) > 1)


def equivalents_of(sets: Iterable[tuple[str, ...]], device: str) -> tuple[str, ...]:
    """Return the other devices that can replace one. sets: of `interchangeable_devices`."""
    return next((tuple(d for d in s if d != device) for s in sets if device in s), ())


def placements(plan: Plan, task: str) -> list[Placement]:
    """Return the placements of a task: one, or one for each of its copies."""
    return [t for t in plan.tasks if t.task == task]


def devices_in(plan: Plan, tasks: Iterable[str]) -> list[str]:
    """Return the devices on which a plan has these tasks, copies included."""
    return list(dict.fromkeys(p.device for t in tasks for p in placements(plan, t)))


def without_modes(costs: CostTable, dropped: Iterable[Mode]) -> CostTable:
    """Return the table without these modes."""
    gone = {id(m) for m in dropped}
    return replace(costs, modes=tuple(m for m in costs.modes if id(m) not in gone))


def restrict(
    problem: Problem,
    fixed: Mapping[tuple[str, ...], str],
    banned: Mapping[tuple[str, ...], frozenset[str]],
) -> Problem:
    """Return the problem in which tasks of some classes have one device, or must avoid devices."""
    only = {t: device for tasks, device in fixed.items() for t in tasks}
    never = {t: devices for tasks, devices in banned.items() for t in tasks}
    dropped = [
        m
        for m in problem.costs.modes
        for t in m.tasks
        if only.get(t, m.device) != m.device or m.device in never.get(t, ())
    ]
    return replace(problem, costing=without_modes(problem.costs, dropped))


def classes(problem: Problem) -> tuple[tuple[str, ...], ...]:
    """Return the classes of tasks that share a device, by a state, a group or limits.together."""
    return problem.graph.classes(problem.limits.together)


def devices_of(tasks: tuple[str, ...], problem: Problem) -> list[str]:
    """Return the devices that each of these tasks may use, in the platform's order."""

    costs, limits = problem.costs, problem.limits

    def allowed(task: str, device: str) -> bool:
        return (
            device in limits.devices.get(task, (device,))
            and limits.pin.get(task, device) == device
            and any(m.device == device and task in m.tasks for m in costs.modes)
        )

    return [d.name for d in costs.platform.devices if all(allowed(t, d.name) for t in tasks)]
