"""Solving a changed problem again: by the plan's own method and objective, in a shared time limit.

Of a robust plan the objective is that of its draws (`pearl.solvers.under_draws`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import networkx as nx

from pearl.errors import InfeasibleError
from pearl.planning.bands import Regret
from pearl.planning.costs import CostTable, Mode
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plans import Placement, Plan
from pearl.planning.problem import Problem
from pearl.solvers import METHODS
from pearl.solvers.model.method import Search
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.period.symmetry import find_orbits
from pearl.solvers.solver import GRACE, GRACE_S, default_method, solve_problem
from pearl.solvers.under_draws import Scale, rival_of
from pearl.time_limit import OutOfTimeError, within

LEAST_S = 0.02
"""Less time than this is not worth a solve (assumed)."""

SAME = 1e-6
"""Relative difference below which two values count as equal: the tolerance of a proof."""


@dataclass(frozen=True)
class Answer:
    """The result of a solve.

    plan: None where there is none.
    reason: why there is none, in words.
    proven: the plan is the best one, or it is proved that there is none.
    gain: how much better it is than the plan that is explained, by the objective of that plan, as
        a share. max_gain: no plan of the problem has a larger gain.
    """

    plan: Plan | None
    reason: str
    proven: bool
    gain: float = 0.0
    max_gain: float = math.inf


@dataclass(frozen=True)
class Resolver:
    """A plan, its problem, and the time (`time.monotonic()` seconds) until which to solve anew."""

    plan: Plan
    problem: Problem
    deadline: float

    @property
    def out_of_time(self) -> bool:
        return self.deadline - time.monotonic() < LEAST_S

    @property
    def method(self) -> str | None:
        """The plan's own, so that a difference is the change's and not the method's."""
        return self.plan.method if self.plan.method in METHODS else None

    def with_time_share(self, share: float) -> Resolver:
        """The same with only this share of the time that is left."""
        now = time.monotonic()
        return replace(self, deadline=now + share * (self.deadline - now))

    def solve(self, problem: Problem | None = None, *, waiting: int = 1) -> Answer | None:
        """The best plan of a problem, by the objective of the plan; None where no time is left.

        problem: a changed one; None: the problem of the plan.
        waiting: how many solves share what is left; one may take twice its share.
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
        """The plan of least cost under the draws."""
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
        plan = build_plan(rival.assignment, rival.orders, proof, power_w=problem.limits.power_w)
        gain, max_gain = self.own_cost / drawn.cost - 1, math.inf
        if drawn.bound > 0:
            max_gain = self.own_cost / drawn.bound - 1
        return Answer(plan, "", max_gain - gain <= SAME, gain, max_gain)

    @cached_property
    def scale(self) -> Scale | None:
        """The draws by which a robust plan was chosen; None of any other plan."""
        regret = self.plan.regret
        return None if regret is None else Scale.from_regret(regret, self.problem.costs)

    @cached_property
    def own_cost(self) -> float:
        """Of a robust plan under its draws."""
        return self.cost_of(self.plan)

    def cost_of(self, plan: Plan) -> float:
        """A plan of this problem under the draws of the robust plan: 1 + its regret."""
        assert self.scale is not None
        return self.scale.cost(rival_of(plan, self.problem), self.problem.limits.power_w)

    def regret_of(self, plan: Plan, regret: Regret) -> Regret:
        """Of a plan of this problem, by the draws of this regret of the robust plan; its upper ends
        are known where those draws are all solved."""
        assert self.scale is not None
        rival = rival_of(plan, self.problem)
        least = self.scale.ratios(rival, self.problem.limits.power_w) - 1
        mean, worst = float(least.mean()), float(least.max())
        solved = regret.solved == regret.draws
        ends = (mean, worst) if solved else (None, None)
        return replace(regret, mean=mean, worst=worst, mean_high=ends[0], worst_high=ends[1])

    def gain(self, value: float) -> float:
        """How much better a value is than the plan's by the estimates, as a share of the plan's."""
        if self.plan.objective == "makespan":
            return self.plan.value / value - 1
        return value / self.plan.value - 1

    @cached_property
    def interchangeable(self) -> tuple[tuple[str, ...], ...]:
        """The devices that can be exchanged, as `interchangeable_devices`."""
        sets = interchangeable_devices(self.problem, self.plan)
        return sets if self.plan.regret is None else one_model(sets, self.problem.costs)

    @property
    def throughput(self) -> float:
        return throughput(self.plan)

    @property
    def efficiency(self) -> float | None:
        return efficiency(self.plan)


def throughput(plan: Plan) -> float:
    """Env steps per second; iterations where the graph has no env_step."""
    return plan.rates["env_steps_per_s"] or 1 / plan.period_s


def efficiency(plan: Plan) -> float | None:
    """Env steps (iterations) per joule; None where no energy is known."""
    if plan.env_steps_per_j is not None:
        return plan.env_steps_per_j
    energy = plan.energy_per_iteration_j
    return 1 / energy if energy > 0 else None


def interchangeable_devices(problem: Problem, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Sets of devices that can be exchanged in any plan without changing what it is worth, in each
    those first that the plan uses."""
    space = search_spaces(problem)[0]
    used = {t.device for t in plan.tasks}
    sets = find_orbits(space, [range(len(options)) for options in space.options])
    return tuple(tuple(sorted(names, key=lambda name: name not in used)) for names in sets)


def one_model(sets: Iterable[tuple[str, ...]], costs: CostTable) -> tuple[tuple[str, ...], ...]:
    """The sets split by the model of the devices: those of different ones, or of none that is
    named, err differently in each draw."""
    groups = []
    for names in sets:
        models = [costs.platform.device(name).model for name in names]
        for model in dict.fromkeys(filter(None, models)):
            groups.append(tuple(n for n, m in zip(names, models, strict=True) if m == model))
    return tuple(names for names in groups if len(names) > 1)


def equivalents_of(sets: Iterable[tuple[str, ...]], device: str) -> tuple[str, ...]:
    """The other devices that can be exchanged with one. sets: of `interchangeable_devices`."""
    return next((tuple(d for d in s if d != device) for s in sets if device in s), ())


def placements(plan: Plan, task: str) -> list[Placement]:
    """How a task runs: one placement, or one for each of its copies."""
    return [t for t in plan.tasks if t.task == task]


def devices_in(plan: Plan, tasks: Iterable[str]) -> list[str]:
    """The devices on which a plan has these tasks, copies included; one, unless copies differ."""
    return list(dict.fromkeys(p.device for t in tasks for p in placements(plan, t)))


def without_modes(costs: CostTable, dropped: Iterable[Mode]) -> CostTable:
    """The table without these modes of it."""
    gone = {id(m) for m in dropped}
    return replace(costs, modes=tuple(m for m in costs.modes if id(m) not in gone))


def restrict(
    problem: Problem,
    fixed: Mapping[tuple[str, ...], str],
    banned: Mapping[tuple[str, ...], frozenset[str]],
) -> Problem:
    """The problem where the tasks of some classes have only one device, or not certain ones."""
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
    """Tasks that must share a device, because of a state, a group or limits.together."""
    graph, limits = problem.graph, problem.limits
    sets: list[Iterable[str]] = [
        *([t.name for t in graph.tasks if s in t.home] for s in graph.states),
        *(
            [t.name for t in graph.tasks if t.group == g]
            for g in {t.group for t in graph.tasks}
            if g
        ),
        *limits.together,
    ]
    ties = nx.Graph()
    ties.add_nodes_from(t.name for t in graph.tasks)
    for names in sets:
        nx.add_path(ties, names)
    order = {t.name: i for i, t in enumerate(graph.tasks)}
    groups = [tuple(sorted(c, key=order.__getitem__)) for c in nx.connected_components(ties)]
    return tuple(sorted(groups, key=lambda tasks: order[tasks[0]]))


def devices_of(tasks: tuple[str, ...], problem: Problem) -> list[str]:
    """The devices that every one of these tasks may use, in the platform's order."""

    costs, limits = problem.costs, problem.limits

    def allowed(task: str, device: str) -> bool:
        return (
            device in limits.devices.get(task, (device,))
            and limits.pin.get(task, device) == device
            and any(m.device == device and task in m.tasks for m in costs.modes)
        )

    return [d.name for d in costs.platform.devices if all(allowed(t, d.name) for t in tasks)]
