"""The plan that many draws of the times regret least (objectives `robust` and `robust_worst`).

Regret of a plan in a draw: its seconds an iteration over those of the best plan of that draw, less
1 (minimax regret: Savage 1951; in scheduling Kouvelis and Yu 1997). The best plans of the draws,
and of weighted means of them, are the candidates; each is valued under every draw without solving.

Bound: a plan's period is a maximum of linear functions of the times, so by Jensen's inequality the
weighted mean of its periods is at least its period at the weighted mean of the times. One exact
solve of the mean table bounds every plan's mean regret, and with other weights on the draws its
worst one; these weights are those of a game that the draws play (Freund and Schapire 1999). Where
the bound leaves a gap and there are few assignments, all are enumerated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pearl.errors import InfeasibleError, SpecError
from pearl.planning.bands import Regret
from pearl.planning.costs import CostTable, Mode
from pearl.planning.draws import Draws, Vector, scaled
from pearl.planning.replica_costs import split_costs
from pearl.planning.replicas import Split
from pearl.planning.timing import Assignment, Orders, timing
from pearl.planning.valuation import least_periods, valued
from pearl.solvers.methods.enumeration import assignments, every_space
from pearl.solvers.model.lane_sequencing import Ordered, best_orders
from pearl.solvers.model.list_orders import ring_period
from pearl.solvers.model.request import Request
from pearl.solvers.model.result import SAME, Found, Outcome
from pearl.solvers.model.search_space import cost_of
from pearl.time_limit import OutOfTimeError

DRAWS = 40
"""Draws that are solved: the few assignments that matter show in 30 to 50."""

ROUNDS = 12
"""Weights on the draws that are tried for a bound on the worst regret."""

FEW = 500
"""Assignments up to which all are enumerated where the bound leaves a gap."""

Kind = Literal["mean", "worst"]
Run = Callable[[Request], Outcome]


def regrets(seconds: NDArray[np.float64], least_s: Vector) -> NDArray[np.float64]:
    """Seconds (plans, draws) over the least of each draw, less 1; 0 in a draw that has no plan at
    all, where idling alone exceeds a limit on power."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(least_s), 0.0, seconds / least_s - 1)


@dataclass(frozen=True)
class Rival:
    """An assignment with the estimates themselves, and its lane orders."""

    assignment: Assignment
    orders: Orders

    def seconds(self, draws: Draws, power_w: float | None) -> Vector:
        """Seconds of an iteration in each draw."""
        timed = timing(self.assignment)
        return valued(timed, self.orders, draws, power_w=power_w).period_s

    @property
    def key(self) -> object:
        x = self.assignment.expansion
        lanes = tuple(self.assignment.lane(u) for u in range(len(x.units)))
        modes = tuple((m.tasks, m.key) for m in self.assignment.modes)
        slack = tuple(e.slack for e in x.graph.edges)
        return modes, lanes, slack, tuple(sorted(self.orders.items()))


def rivals(request: Request, run: Run, draws: Draws) -> tuple[list[Rival], Vector]:
    """The best plan of the estimates, first, and of each draw, each once; and the least seconds
    that were found in each draw by solving it, infinite where time ran out. Limits on the period
    hold for the estimates, and not for each draw."""
    began, found, solved = time.monotonic(), {}, np.full(draws.number, math.inf)
    first = of_estimates(run(request).best, request.costs)
    found[first.key] = first
    tables = draws.tables(request.graph, request.costs)
    for n, table in enumerate(tables):
        left = request.deadline - time.monotonic()
        share = 2 * left / (draws.number - n)
        if left <= 0.1 * (request.deadline - began):
            break
        best = _best(request, run, table, time.monotonic() + share)
        if best is not None:
            rival = of_estimates(best, request.costs)
            found.setdefault(rival.key, rival)
            solved[n] = best.period_s
    return list(found.values()), solved


def _free(request: Request) -> Request:
    """The request without limits on the period, which a draw may break."""
    limits = replace(request.limits, period_s=None, min_throughput_per_s=None)
    return replace(request, limits=limits)


def _best(request: Request, run: Run, table: CostTable, deadline: float) -> Found | None:
    outcome = _solved(request, run, table, deadline)
    return outcome.best if outcome else None


def _solved(request: Request, run: Run, table: CostTable, deadline: float) -> Outcome | None:
    try:
        return run(replace(_free(request), costs=table, deadline=deadline))
    except (InfeasibleError, OutOfTimeError):
        return None


def of_estimates(best: Found, costs: CostTable) -> Rival:
    """A plan of a drawn table with the modes of the estimates."""
    a = best.assignment
    parts = [t.part for t in a.expansion.graph.tasks if t.part]
    split = Split(tuple(dict.fromkeys(p.task for p in parts)), parts[0].shares if parts else ())
    table = split_costs(costs, split)

    def own(mode: Mode) -> Mode:
        return next(m for m in table.of(*mode.tasks) if m.key == mode.key)

    whole = replace(a, costs=table, modes=tuple(own(m) for m in a.modes))
    return Rival(whole, best.ordered.orders)


def least_regret(request: Request, run: Run, kind: Kind, draws: Draws) -> tuple[Outcome, Regret]:
    """The plan of least mean or worst regret over the draws, with what the estimates themselves say
    of it, and its regret.

    Raises:
        InfeasibleError: no plan meets the limits.
    """
    nominal = run(replace(request, deadline=_share(request, 0.2)))
    game = _Game(request, run, kind, draws)
    game.add(of_estimates(nominal.best, request.costs))
    others, solved = rivals(replace(request, deadline=_share(request, 0.6)), run, draws)
    for rival in others:
        game.add(rival)
    game.least_s = np.minimum(solved, game.seconds.min(axis=0))
    game.play()
    if game.gap > SAME and time.monotonic() < request.deadline:
        game.enumerate()
    return game.outcome(nominal), game.regret()


def _share(request: Request, share: float) -> float:
    now = time.monotonic()
    return now + share * max(0.0, request.deadline - now)


class _Game:
    """The candidates, their seconds in every draw, and the bound."""

    def __init__(self, request: Request, run: Run, kind: Kind, draws: Draws) -> None:
        self.request, self.run, self.kind, self.draws = request, run, kind, draws
        self.known: dict[object, Rival] = {}
        self.rows: list[Vector] = []
        self.allowed: list[bool] = []
        self.least_s: Vector = np.full(draws.number, math.inf)
        self.bound = 0.0
        graph, costs = request.graph, request.costs
        self.factors = np.array([draws.factors(m, graph, costs) for m in costs.modes])
        self.link_factors = draws.link_factors(costs)

    def add(self, rival: Rival) -> None:
        if rival.key in self.known:
            return
        limits = self.request.limits
        self.known[rival.key] = rival
        self.rows.append(rival.seconds(self.draws, limits.power_w))
        period = ring_period(timing(rival.assignment), rival.orders)
        cost, _ = cost_of("throughput", rival.assignment, period, limits)
        self.allowed.append(cost < math.inf)
        self.least_s = np.minimum(self.least_s, self.rows[-1])

    @property
    def seconds(self) -> NDArray[np.float64]:
        """(candidates, draws)."""
        return np.array(self.rows)

    def regrets(self) -> NDArray[np.float64]:
        """(candidates, draws), as shares."""
        return regrets(self.seconds, self.least_s)

    def of_kind(self, regrets: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean or worst over the draws, the last axis."""
        found = regrets.mean(axis=-1) if self.kind == "mean" else regrets.max(axis=-1)
        return np.asarray(found)

    @property
    def chosen(self) -> int:
        values = np.where(self.allowed, self.of_kind(self.regrets()), math.inf)
        return int(np.argmin(values))

    @property
    def gap(self) -> float:
        return float(self.of_kind(self.regrets())[self.chosen]) - self.bound

    def play(self) -> None:
        """Bounds by mean tables, whose best plans are candidates too."""
        weight = np.full(self.draws.number, 1 / self.draws.number)
        for turn in range(1 if self.kind == "mean" else ROUNDS):
            left = self.request.deadline - time.monotonic()
            if left <= 0:
                return
            outcome = self._mean(weight, time.monotonic() + left / (ROUNDS - turn))
            if outcome is None:
                return
            rival = of_estimates(outcome.best, self.request.costs)
            self.add(rival)
            whole = float((weight / self.least_s).sum())
            self.bound = max(self.bound, whole * outcome.bound - 1)
            if self.gap <= SAME:
                return
            lost = regrets(self.rows[list(self.known).index(rival.key)], self.least_s)
            weight = weight * np.exp(2 * lost / max(float(lost.max()), 1e-12))
            weight /= weight.sum()

    def _mean(self, weight: Vector, deadline: float) -> Outcome | None:
        """The best plan of the weighted mean of the drawn times, in shares of the least seconds."""
        per_s = weight / self.least_s
        weight = per_s / per_s.sum()
        links = {name: float(row @ weight) for name, row in self.link_factors.items()}
        table = scaled(self.request.costs, (self.factors @ weight).tolist(), links)
        return _solved(self.request, self.run, table, deadline)

    def enumerate(self) -> None:
        """Every assignment, where they are few: the bound is then what no order of lanes beats."""
        limits, loose = _free(self.request).limits, math.inf
        try:
            spaces = every_space(self.request.graph, self.request.costs, limits)
            every: Iterator[Assignment] = assignments(spaces)
            listed = [a for a, _ in zip(every, range(FEW + 1), strict=False)]
        except SpecError:  # too many
            return
        if len(listed) > FEW:
            return
        while True:
            before = self.least_s
            for a in listed:
                if time.monotonic() > self.request.deadline:
                    return
                timed = timing(a)
                least = regrets(least_periods(timed, self.draws), self.least_s)
                floor = float(self.of_kind(least))
                if floor >= float(self.of_kind(self.regrets())[self.chosen]) - SAME:
                    continue
                ordered: Ordered = best_orders(timed, deadline=self.request.deadline)
                self.add(Rival(a, ordered.orders))
                loose = min(loose, floor)
            if np.array_equal(before, self.least_s):  # else what was passed over was by other costs
                break
        value = float(self.of_kind(self.regrets())[self.chosen])
        self.bound = max(self.bound, min(value, loose))

    def outcome(self, nominal: Outcome) -> Outcome:
        """The chosen plan, with the bound on what the estimates themselves give."""
        rival = list(self.known.values())[self.chosen]
        a, timed = rival.assignment, timing(rival.assignment)
        period = ring_period(timed, rival.orders)
        cost, paced = cost_of("throughput", a, period, self.request.limits)
        ordered = Ordered(rival.orders, period, min(timed.order_bound_s, period))
        return Outcome(Found(a, ordered, paced, cost), nominal.bound, nominal.late)

    def regret(self) -> Regret:
        row = self.regrets()[self.chosen]
        mean, worst = float(row.mean()), float(row.max())
        value = mean if self.kind == "mean" else worst
        bound = max(0.0, min(self.bound, value))
        return Regret(self.kind, self.draws.number, self.draws.seed, mean, worst, bound)
