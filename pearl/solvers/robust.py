"""The plan with the least regret over many draws of the times (`robust` and `robust_worst`).

The regret of a plan in a draw is its seconds per iteration, divided by those of the best plan of
the draw, minus 1 (minimax regret: Savage 1951; in scheduling Kouvelis and Yu 1997). The candidates
are the best plans of the draws and of weighted means of the draws. Each candidate is evaluated
under every draw without solving.

The least seconds of a draw lie in an interval: its upper end is the best candidate, its lower end a
bound that some solve proved. If time ran out before a draw was solved, the ends differ, and so do
the ends of the regret.

Bound: a plan's period is a maximum of linear functions of the times. So, by Jensen's inequality,
the weighted mean of its periods is at least its period at the weighted mean of the times. One exact
solve of the mean table bounds the mean regret of every plan. Other weights on the draws bound the
worst regret; the weights come from a game that the draws play (Freund and Schapire 1999). If the
bound leaves a gap and there are few assignments, all are enumerated.
"""

from __future__ import annotations

import itertools
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.cycle_ratio import Arc
from pearl.planning.bands import Regret
from pearl.planning.capacities import Channels
from pearl.planning.costs import CostTable, Mode
from pearl.planning.draws import Draws, Vector
from pearl.planning.problem import Problem, split_costs
from pearl.planning.replicas import split_of
from pearl.planning.timing import Assignment, Orders, build_timed_graph
from pearl.planning.valuation import evaluate_samples, least_periods
from pearl.solvers.channel_fit import fit_channels
from pearl.solvers.methods.enumeration import assignments, every_space
from pearl.solvers.methods.simple_plans import first_plan
from pearl.solvers.model.method import Search, Solve
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import cost_of
from pearl.solvers.orders.lane_sequencing import OrderResult, best_orders
from pearl.solvers.orders.list_orders import ring_period
from pearl.time_limit import OutOfTimeError

DRAWS = 40
"""Number of draws that are solved: 30 to 50 show the few assignments that matter."""

SOLVED = 1e-6
"""Relative difference up to which the ends of a draw's least seconds are equal: the tolerance of a
proof."""

ROUNDS = 12
"""Number of weights on the draws that are tried for a bound on the worst regret."""

FEW = 500
"""Largest number of assignments that are all enumerated if the bound leaves a gap."""

Kind = Literal["mean", "worst"]


def regrets(seconds: NDArray[np.float64], least_s: Vector) -> NDArray[np.float64]:
    """Return seconds (plans, draws) over the least of each draw, minus 1. The regret is 0 in a draw
    without any plan, in which idle power alone exceeds a limit on power."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isinf(least_s), 0.0, seconds / least_s - 1)


@dataclass(frozen=True)
class Rival:
    """An assignment with the modes of the estimates, its lane orders, and channels that fit into
    memory.

    channels: None if memory has no limit: then channels are as large as the plan needs.
    held: the arcs of full channels, if they make the period of the estimates longer.
    """

    assignment: Assignment
    orders: Orders
    channels: Channels | None = None
    held: tuple[Arc, ...] = ()

    def seconds(self, draws: Draws, power_w: float | None) -> Vector:
        """Return the seconds of an iteration in each draw."""
        timed = build_timed_graph(self.assignment)
        held = self.held
        return evaluate_samples(timed, self.orders, draws, held=held, power_w=power_w).period_s

    def to_candidate(self, problem: Problem) -> Candidate:
        """Return the plan with its exact period by the estimates."""
        timed = build_timed_graph(self.assignment)
        waiting = replace(timed, arcs=(*timed.arcs, *self.held))
        period_s = ring_period(waiting, self.orders)
        cost, paced = cost_of(problem, self.assignment, period_s)
        ordered = OrderResult(self.orders, period_s, min(timed.order_bound_s, period_s))
        return Candidate(self.assignment, ordered, paced, cost, self.channels)

    def with_channels(self, problem: Problem, deadline: float) -> Rival:
        """Return the plan with channels that fit into memory.

        Raises:
            InfeasibleError: none were found.
        """
        free = without_period(problem)
        fitted, channels = fit_channels(self.to_candidate(free), (), free, deadline)
        if channels is None:
            return self
        a, orders = fitted.assignment, fitted.ordered.orders
        natural_s = ring_period(build_timed_graph(a), orders)
        longer = fitted.ordered.period_s > natural_s * (1 + SAME)
        return Rival(a, orders, channels, channels.held if longer else ())

    @property
    def key(self) -> object:
        x = self.assignment.expansion
        lanes = tuple(self.assignment.lane(u) for u in range(len(x.units)))
        modes = tuple((m.tasks, m.key) for m in self.assignment.modes)
        slack = tuple(e.slack for e in x.graph.edges)
        return modes, lanes, slack, tuple(sorted(self.orders.items()))


def rivals(problem: Problem, search: Search, run: Solve, draws: Draws) -> list[Rival]:
    """Return the best plan of the estimates, then those of the draws solved in time, without
    duplicates. Limits on the period apply to the estimates, not to each draw."""
    game = _Game(problem, search, run, "mean", draws, run(problem, search))
    game.solve_draws(search.deadline)
    return list(game.known.values())


def with_estimates(best: Candidate, costs: CostTable) -> Rival:
    """Return the plan of a drawn table with the modes of the estimates."""
    a = best.assignment
    table = split_costs(costs, split_of(a.expansion.graph))

    def own(mode: Mode) -> Mode:
        return next(m for m in table.of(*mode.tasks) if m.key == mode.key)

    whole = replace(a, costs=table, modes=tuple(own(m) for m in a.modes))
    return Rival(whole, best.ordered.orders)


def least_regret(
    problem: Problem, search: Search, run: Solve, kind: Kind, draws: Draws
) -> tuple[Outcome, Regret]:
    """Return the plan of least mean or worst regret over the draws, and its regret.

    The value and the bound of the outcome are those of the estimates.

    Raises:
        InfeasibleError: no plan is within the limits.
    """
    try:
        nominal = run(problem, replace(search, deadline=_share(search, 0.2)))
    except OutOfTimeError:  # without a plan of the estimates, no draw can be compared
        nominal = run(problem, search)
    game = _Game(problem, search, run, kind, draws, nominal)
    game.solve_draws(_share(search, 0.6))
    game.play()
    game.solve_draws(search.deadline)
    if not game.proved and time.monotonic() < search.deadline:
        with suppress(OutOfTimeError):
            game.enumerate()
    return game.outcome(), game.regret()


def _share(search: Search, share: float) -> float:
    now = time.monotonic()
    return now + share * max(0.0, search.deadline - now)


class _Game:
    """The candidates, their seconds in every draw, and the bounds.

    nominal: the outcome of the estimates.
    low_s: (draws,), seconds; no plan takes less in a draw.
    least_s: (draws,), seconds; some plan takes no more in a draw. low_s and least_s are infinite in
        a draw that is proved to have no plan.
    unfinished: (draws,), draws whose solve ran out of time or has not begun.
    bound: a share; no plan has less regret.
    """

    def __init__(
        self,
        problem: Problem,
        search: Search,
        run: Solve,
        kind: Kind,
        draws: Draws,
        nominal: Outcome,
    ) -> None:
        self.problem, self.search, self.run = problem, search, run
        self.kind, self.draws = kind, draws
        self.free = without_period(problem)
        self.nominal = nominal
        self.known: dict[object, Rival] = {}
        self.tried: dict[object, Vector | None] = {}
        self.rows: list[Vector] = []
        self.allowed: list[bool] = []
        self.low_s: Vector = np.zeros(draws.number)
        self.least_s: Vector = np.full(draws.number, math.inf)
        self.unfinished: NDArray[np.bool_] = np.ones(draws.number, bool)
        self.bound = 0.0
        graph, costs = problem.graph, problem.costs
        self.tables = draws.tables(graph, costs)
        self.factors = np.array([draws.factors(m, graph, costs) for m in costs.modes])
        self.link_factors = draws.link_factors(costs)
        for start in filter(None, (search.start, nominal.best)):
            self.add(with_estimates(start, costs))
        if not self.known:
            spare = first_plan(problem)
            fitted, _ = fit_channels(
                nominal.best, [spare] if spare else [], problem, search.deadline
            )
            self.add(with_estimates(fitted, costs))
        self.bound_draws(np.ones(len(costs.modes)), {}, nominal.bound)

    def add(self, rival: Rival) -> Vector | None:
        """Add a candidate with channels that fit into memory. Return its seconds in each draw; None
        if its channels do not fit."""
        if rival.key not in self.tried:
            self.tried[rival.key] = self._add(rival)
        return self.tried[rival.key]

    def _add(self, rival: Rival) -> Vector | None:
        try:
            rival = rival.with_channels(self.problem, self.search.deadline)
        except InfeasibleError:
            return None
        if rival.key in self.known:
            return self.rows[list(self.known).index(rival.key)]
        row = rival.seconds(self.draws, self.problem.limits.power_w)
        self.known[rival.key] = rival
        self.rows.append(row)
        self.allowed.append(rival.to_candidate(self.problem).cost < math.inf)
        self.least_s = np.minimum(self.least_s, row)
        return row

    def solve_draws(self, deadline: float) -> None:
        """Solve the unsolved draws for their best plans and bounds."""
        began = time.monotonic()
        waiting = np.flatnonzero(self.unfinished & ~self.solved).tolist()
        for done, n in enumerate(waiting):
            left = deadline - time.monotonic()
            if left <= 0.1 * (deadline - began):
                return
            self._solve_draw(n, time.monotonic() + 2 * left / (len(waiting) - done))

    def _solve_draw(self, n: int, deadline: float) -> None:
        try:
            outcome = self._solve(replace(self.free, costing=self.tables[n]), deadline)
        except OutOfTimeError:
            return
        except InfeasibleError as error:
            if error.conflict:  # proved: with the drawn watts, no plan is within the power limit
                self.low_s[n], self.unfinished[n] = math.inf, False
            return
        self.add(with_estimates(outcome.best, self.problem.costs))
        self.unfinished[n] = outcome.timed_out
        self.low_s[n] = max(self.low_s[n], outcome.bound)
        links = {name: float(row[n]) for name, row in self.link_factors.items()}
        self.bound_draws(self.factors[:, n], links, outcome.bound)

    def _solve(self, problem: Problem, deadline: float) -> Outcome:
        return self.run(problem, replace(self.search, deadline=deadline, start=None))

    def bound_draws(self, factors: Vector, links: dict[str, float], bound_s: float) -> None:
        """Bound every draw from a bound of the table with these factors.

        If all times are longer, so are the periods; if all are longer by one factor, the periods
        are too. A limit on power excludes this, because the pace follows other numbers.
        """
        if self.problem.limits.power_w is not None:
            return
        ratios = [*(self.factors / factors[:, None])]
        drawn = self.link_factors
        ratios += [row / links.get(name, 1.0) for name, row in drawn.items()]
        if len(drawn) < len(self.problem.costs.platform.links):
            ratios.append(np.ones(self.draws.number))
        self.low_s = np.maximum(self.low_s, np.minimum.reduce(ratios) * bound_s)

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Whether the least seconds are proved, by draw."""
        return np.asarray(self.low_s >= self.least_s * (1 - SOLVED))

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of an iteration of every candidate in every draw: (candidates, draws)."""
        return np.array(self.rows)

    def regrets(self) -> NDArray[np.float64]:
        """Return the lower ends of the regrets, shares: (candidates, draws)."""
        return regrets(self.seconds, self.least_s)

    def of_kind(self, regrets: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean or the worst regret over the draws, the last axis."""
        values = regrets.mean(axis=-1) if self.kind == "mean" else regrets.max(axis=-1)
        return np.asarray(values)

    @property
    def chosen(self) -> int:
        values = np.where(self.allowed, self.of_kind(self.regrets()), math.inf)
        return int(np.argmin(values))

    @property
    def value(self) -> float:
        """The lower end of the regret of the chosen candidate."""
        return float(self.of_kind(self.regrets())[self.chosen])

    @property
    def proved(self) -> bool:
        return bool(self.solved.all()) and self.value - self.bound <= SAME

    def play(self) -> None:
        """Find bounds from mean tables; their best plans become candidates."""
        weight = np.full(self.draws.number, 1 / self.draws.number)
        for turn in range(1 if self.kind == "mean" else ROUNDS):
            left = self.search.deadline - time.monotonic()
            if left <= 0:
                return
            outcome = self._mean(weight, time.monotonic() + left / (ROUNDS - turn))
            if outcome is None:
                return
            row = self.add(with_estimates(outcome.best, self.problem.costs))
            whole = float((weight / self.least_s).sum())
            self.bound = max(self.bound, whole * outcome.bound - 1)
            if row is None or self.value - self.bound <= SAME:
                return
            lost = regrets(row, self.least_s)
            weight = weight * np.exp(2 * lost / max(float(lost.max()), 1e-12))
            weight /= weight.sum()

    def _mean(self, weight: Vector, deadline: float) -> Outcome | None:
        """Return the best plan of the weighted mean of the drawn times, in shares of the least
        seconds."""
        per_s = weight / self.least_s
        if not per_s.sum() > 0:
            return None
        mean = build_mean_problem(self.problem, self.draws, per_s / per_s.sum())
        try:
            return self._solve(mean, deadline)
        except (InfeasibleError, OutOfTimeError):
            return None

    def enumerate(self) -> None:
        """Evaluate every assignment if there are few. The bound over all lane orders of each
        assignment bounds the least seconds of each draw, and the regret."""
        listed = self._listed()
        floors: list[Vector] = []
        for a in listed:
            if time.monotonic() > self.search.deadline:
                return
            floors.append(least_periods(build_timed_graph(a), self.draws))
        if not floors:
            return
        floor_s, tried = np.array(floors), set[int]()
        self.low_s = np.maximum(self.low_s, floor_s.min(axis=0))
        while True:
            floor, value = self.of_kind(regrets(floor_s, self.least_s)), self.value
            quicker = (floor_s < self.least_s * (1 - SOLVED)) & ~self.solved
            worth = np.flatnonzero((floor < value - SAME) | quicker.any(axis=1)).tolist()
            worth = [i for i in worth if i not in tried]
            if not worth:
                break
            for i in worth:
                if time.monotonic() > self.search.deadline:
                    return
                tried.add(i)
                ordered: OrderResult = best_orders(
                    build_timed_graph(listed[i]), deadline=self.search.deadline
                )
                self.add(Rival(listed[i], ordered.orders))
        loose = min((float(floor[i]) for i in tried), default=math.inf)
        self.bound = max(self.bound, min(value, loose))

    def _listed(self) -> list[Assignment]:
        """Return every assignment; none if there are more than FEW."""
        try:
            every = assignments(every_space(self.free))
            listed = list(itertools.islice(every, FEW + 1))
        except SpecError:  # too many
            return []
        return listed if len(listed) <= FEW else []

    def outcome(self) -> Outcome:
        """The chosen plan, with the bound on the value of the estimates."""
        best = list(self.known.values())[self.chosen].to_candidate(self.problem)
        timed_out = self.nominal.timed_out or bool((self.unfinished & ~self.solved).any())
        timed_out = timed_out or time.monotonic() >= self.search.deadline
        return Outcome(best, self.nominal.bound, timed_out, self.nominal.bound_from)

    def regret(self) -> Regret:
        """The ends of the chosen plan's regret. Its value is at least the bound."""
        row, solved = self.rows[self.chosen], self.solved
        least = regrets(row, self.least_s)
        most = regrets(row, np.where(solved, self.least_s, self.low_s))
        mean, worst = float(least.mean()), float(least.max())
        mean_high, worst_high = float(most.mean()), float(most.max())
        bound = max(0.0, min(self.bound, worst_high if self.kind == "worst" else mean_high))
        return Regret(
            self.kind,
            self.draws.number,
            self.draws.seed,
            max(mean, bound) if self.kind == "mean" else mean,
            max(worst, bound) if self.kind == "worst" else worst,
            bound,
            int(solved.sum()),
            mean_high if math.isfinite(mean_high) else None,
            worst_high if math.isfinite(worst_high) else None,
            tuple(np.where(np.isinf(self.least_s), 0.0, self.least_s).tolist()),
        )


def build_mean_problem(problem: Problem, draws: Draws, weight: Vector) -> Problem:
    """Return the problem of the weighted mean of the drawn times, without limits on the period. The
    pace is not linear in watts: if watts are drawn, their limit is left out too."""
    free = without_period(problem)
    table = draws.mean_table(problem.graph, problem.costs, weight)
    limits = replace(free.limits, power_w=None) if draws.watts(problem.costs) else free.limits
    return replace(free, costing=table, limits=limits)


def without_period(problem: Problem) -> Problem:
    """Return the problem without limits on the period, which a draw may break."""
    limits = replace(problem.limits, period_s=None, min_throughput_per_s=None)
    return replace(problem, limits=limits)
