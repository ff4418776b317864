"""Assignment by a mixed-integer linear program (HiGHS), then lane orders, then the next-best one.

Many tasks go through annealing and a bound of loads first (`load_search`), and no further where the
period form would be too large. Graphs with cycles are searched by assignments that are valued with
their orders (`loop_search`), where the period form does not prove the best plan soon.

The period form of `docs/search.md`: minimise P (or the energy of an iteration) over modes and
lanes, with node potentials u_dst − u_src + tokens · P ≥ latency + transfer for every arc of the
expansion and a load of at most P on every lane and link.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, build_timed_graph
from pearl.solvers.infeasible.iis import find_conflict
from pearl.solvers.large.load_search import FIRST, LoadSearch, applies_to, overlaps
from pearl.solvers.large.split_selection import select_splits
from pearl.solvers.methods.simple_plans import simple_plan
from pearl.solvers.model.bounds import ALL, NOTHING, CostBound
from pearl.solvers.model.cost_floor import cost_floor
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces
from pearl.solvers.orders.lane_sequencing import NODES, OrderResult, best_orders
from pearl.solvers.period.order_cuts import conflict_units, cut_period
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError, extended, within

ALONE = 0.3
"""Share of the time limit after which small search spaces with cycles are searched step by step,
where the period form has not proven the best plan by then (assumed)."""

AHEAD = 12
"""Classes of a search space with cycles from which on that search comes before the period form. The
period form proves most smaller spaces within seconds, however many firings they have (assumed)."""

STEPPED = 0.7
"""CPU-seconds of steps of that search, as a share of the time limit (assumed)."""

PAIRS_S = 4e-3
"""CPU-seconds of steps of that search at most, for each pair of classes: more gain nothing in small
search spaces (assumed)."""

FURTHER = 8
"""Searched nodes of the orders of an assignment as a multiple of the usual ones, where time is left
at the end (of 50 loops of language models in 4 parts, one more is proven by 5, none by 8 or 64)."""

ORDERING_S = 2e-3
"""Time kept for the lane orders of many tasks, for each firing (1e-3 s measured on one core)."""


def solve(problem: Problem, search: Search) -> Outcome:
    """The best plan over all search spaces, with the proven bound.

    Deterministic for small graphs, where `seed` changes nothing, and for graphs with cycles, as far
    as the time limit does not end the search; annealing of many tasks depends on the clock.

    Raises:
        InfeasibleError: no plan meets the limits.
        OutOfTimeError: the time ran out before there was any plan.
    """
    deadline = search.deadline
    few = select_splits(problem)
    spaces = search_spaces(problem, only=few.splits if few else None)
    branches = _Branches(spaces, problem, search)
    if few:
        branches.leave_out(few.bound)
    try:
        branches.run()
    except OutOfTimeError:
        branches.timed_out = True
    finally:
        annealed = branches.stop()
    branches.best = _better(branches.best, annealed, problem, deadline)
    best, bound = branches.best, branches.bound
    if best is None:
        if branches.timed_out or bound.cost < math.inf:
            raise OutOfTimeError
        raise find_conflict(problem, deadline)
    return Outcome(best, min(bound.cost, best.cost), branches.timed_out, bound.source)


class _Branches:
    """The search over some search spaces. best: the best plan so far; timed_out: time ran out."""

    def __init__(self, spaces: Sequence[SearchSpace], problem: Problem, search: Search) -> None:
        self.spaces, self.problem = spaces, problem
        self.start = search.start
        self.deadline, self.seed, self.workers = search.deadline, search.seed, search.workers
        self.limit_s = search.limit_s
        self._offer = search.offer
        self._best: Candidate | None = None
        self.timed_out = False
        # number of a search space → no plan of it costs less
        self._open = dict.fromkeys(range(len(spaces)), NOTHING)
        self._models: dict[int, PeriodForm] = {}  # made when their turn comes
        self._loose = ALL  # least bound of what is given up
        self._ordered: list[tuple[CostBound, Assignment]] = []  # whose orders were not exhausted
        self._annealing: dict[int, LoadSearch] = {}
        self._loops: list[int] = []  # search spaces with cycles that are not searched yet
        self._until = self.deadline  # of the period form's next run

    @property
    def best(self) -> Candidate | None:
        return self._best

    @best.setter
    def best(self, found: Candidate | None) -> None:
        better = found is not None and found is not self._best
        self._best = found
        if found is not None and better:
            self._offer(found)

    def leave_out(self, bound: float) -> None:
        """Say that there are plans in no search space here. None, there or here, costs less."""
        self._loose, self.timed_out = CostBound(bound, "work"), True
        self._open = dict.fromkeys(self._open, self._loose)

    @property
    def bound(self) -> CostBound:
        """No plan costs less that is not `best`."""
        bounds = (bound for bound, _ in self._ordered)
        return min(self._loose, *self._open.values(), *bounds, ALL)

    def stop(self) -> list[Assignment]:
        """The assignments that annealing found; ends all annealing in the background."""
        return [a for search in self._annealing.values() for a in search.stop()]

    def run(self) -> None:
        self._raise_floors(programs=False)
        floors = sorted((floor.cost, i) for i, floor in self._open.items())
        likely = [(floor, self.spaces[i]) for floor, i in floors]
        self.best = simple_plan(likely, self.problem, self.deadline)
        if self.start is not None and self._worth(self.start.cost):
            self.best = self.start
        self._raise_floors(programs=True)  # after there is a plan: HiGHS may take all the time
        self._loops = [i for i, space in enumerate(self.spaces) if overlaps(space, self.problem)]
        if any(len(self.spaces[i].classes) >= AHEAD for i in self._loops):
            self._overlap()
        self._anneal()
        if self._loops:
            now = time.monotonic()
            self._until = now + ALONE * max(0.0, self.deadline - now)
        while True:
            worth = [i for i in self._open if self._worth(self._open[i].cost)]
            small = [i for i in worth if i not in self._annealing or self._annealing[i].small]
            if small and self._until <= time.monotonic() < self.deadline:
                self._until = self.deadline
                self._overlap()
                continue
            if not small or time.monotonic() >= self.deadline:
                self.timed_out = self.timed_out or bool(worth)
                break
            self._next(min(small, key=lambda i: (self._open[i], i)))  # least bound first
        self._order_further()

    def _raise_floors(self, *, programs: bool) -> None:
        for i, space in enumerate(self.spaces):
            floor = cost_floor(space, self.problem.objective, programs=programs)
            self._open[i] = max(self._open[i], floor)

    def _worth(self, cost: float) -> bool:
        """Whether a plan of this cost would be better than the best."""
        return self.best is None or cost < self.best.cost * (1 - SAME)

    def _next(self, i: int) -> None:
        """The best assignment of a search space that is not cut off, its orders, and the next
        cut."""
        problem = self.problem
        if i not in self._models:
            self._models[i] = PeriodForm(self.spaces[i], problem, self.best)
        model, seconds = self._models[i], max(0.0, self._until - time.monotonic())
        dual, assignment, finished = model.run(self.best.cost if self.best else math.inf, seconds)
        self._open[i] = max(self._open[i], CostBound(dual, "search"))
        if assignment is None:
            if not finished and self._until < self.deadline:
                return
            bound = self._open.pop(i)
            if not finished:
                self.timed_out = True
                self._loose = min(self._loose, bound)
            return
        timed = build_timed_graph(assignment)
        least, _ = cost_of(problem, assignment, timed.order_bound_s)
        if finished and dual >= least * (1 - 1e-6):  # equal, to the solver's tolerance
            self._open[i] = max(self._open[i], CostBound(least, "search"))
        to_blame = None
        if self._worth(least):
            self._order(assignment, NODES)
            best = self.best
            if best and least < best.cost * (1 - SAME):
                worth_s = cut_period(self.spaces[i], assignment, problem.objective, best.cost)
                to_blame = conflict_units(self.spaces[i], assignment, worth_s)
        model.cut(assignment, to_blame)

    def _order(self, a: Assignment, nodes: int) -> None:
        """Take the best orders of an assignment that are found within so many searched nodes."""
        below = _period_at(self.problem, a, self.best.cost) if self.best else math.inf
        timed = build_timed_graph(a)
        ordered = best_orders(timed, below_s=below, deadline=self.deadline, nodes=nodes)
        cost, paced = cost_of(self.problem, a, ordered.period_s)
        proven, _ = cost_of(self.problem, a, ordered.bound_s)
        if proven < cost:
            self._ordered.append((CostBound(proven, "search"), a))
        if cost < (self.best.cost if self.best else math.inf):
            self.best = Candidate(a, ordered, paced, cost)

    def _order_further(self) -> None:
        """Search the orders of assignments again that were not exhausted, the least bound first."""
        for bound, a in sorted(self._ordered, key=lambda ordered: ordered[0]):
            if not self._worth(bound.cost) or time.monotonic() >= self.deadline:
                break
            self._ordered.remove((bound, a))
            self._order(a, FURTHER * NODES)

    def _overlap(self) -> None:
        """Plans and bounds of the search spaces whose iterations overlap around cycles, by as many
        steps as suit the time limit."""
        from pearl.solvers.large.loop_search import LoopSearch

        worth = [i for i in self._loops if i in self._open and self._worth(self._open[i].cost)]
        self._loops = []
        for i in sorted(worth, key=lambda i: (self._open[i].cost, i)):
            if time.monotonic() >= self.deadline:
                break
            search = LoopSearch(self.spaces[i], self.seed)
            ordering = min(0.1 * self.limit_s, ORDERING_S * len(self.spaces[i].expansion.nodes))
            most = PAIRS_S * len(self.spaces[i].classes) ** 2
            with within(self.deadline - ordering):
                search.run(min(STEPPED * self.limit_s / len(worth), most))
            if search.bound is not None:
                self._open[i] = max(self._open[i], CostBound(search.bound.bound_s, "chains"))
            with extended(math.inf):  # what was found is not lost
                self._take(search.orders())
            for place in search.every() if search.few else ():
                if time.monotonic() >= self.deadline:
                    break
                a = search.b.assignment(place)
                if not self.spaces[i].violates_coupling(a):
                    self.best = _better(self.best, [a], self.problem, self.deadline)

    def _take(self, found: tuple[Assignment, Orders, float] | None) -> None:
        """Take an assignment with orders and their exact period if it is better than the best."""
        if found is None:
            return
        a, orders, period_s = found
        cost, paced = cost_of(self.problem, a, period_s)
        if cost < (self.best.cost if self.best else math.inf):
            bound_s = build_timed_graph(a).order_bound_s
            self.best = Candidate(a, OrderResult(orders, period_s, bound_s), paced, cost)

    def _anneal(self) -> None:
        """Plans and bounds from the loads of search spaces of many tasks; some searches go on in
        the background."""
        for i, space in enumerate(self.spaces):
            if not applies_to(space, self.problem) or not self._worth(self._open[i].cost):
                continue
            best = self.best
            same = best is not None and best.assignment.expansion is space.expansion
            start = best.assignment if best and same else None
            start_s = best.period_s if best else space.serial_s
            search = self._annealing[i] = LoadSearch(space, start, start_s, self.seed, self.workers)
            now = time.monotonic()
            left = max(0.0, self.deadline - now)
            ordering = min(0.1 * left, ORDERING_S * len(space.expansion.nodes))
            share = FIRST if search.small else 1.0
            until = now + (left - ordering) * share / (len(self.spaces) - i)
            search.run(self.deadline - ordering, until)
            self._open[i] = max(self._open[i], search.bound)
            assignments = search.found()
            self.best = _better(best, assignments, self.problem, self.deadline)


def _better(
    best: Candidate | None,
    candidates: Sequence[Assignment],
    problem: Problem,
    deadline: float,
) -> Candidate | None:
    """The best of a plan and some assignments with the best orders found for them. Past the time
    limit they get list orders, so that what was found is not lost."""
    for a in candidates:
        with extended(math.inf):
            timed = build_timed_graph(a)
            least, _ = cost_of(problem, a, timed.order_bound_s)
            if best and least >= best.cost * (1 - SAME):
                continue
            below = _period_at(problem, a, best.cost) if best else math.inf
            ordered = best_orders(timed, below_s=below, deadline=deadline)
            cost, paced = cost_of(problem, a, ordered.period_s)
        if cost < (best.cost if best else math.inf):
            best = Candidate(a, ordered, paced, cost)
    return best


def least_cost(spaces: Sequence[SearchSpace], problem: Problem) -> float:
    """The least cost (seconds or joules of an iteration) of any assignment, orders left out."""
    least = math.inf
    for space in spaces:
        model = PeriodForm(space, problem, None)
        _, assignment, _ = model.run(least, 600.0)
        if assignment:
            bound = build_timed_graph(assignment).order_bound_s
            least = min(least, cost_of(problem, assignment, bound)[0])
    return least


def _period_at(problem: Problem, a: Assignment, cost: float) -> float:
    """The period at which an assignment costs `cost`: no use in a longer one."""
    if problem.objective == "throughput":
        return cost
    if a.idle_power_w == 0:
        return math.inf
    return max(0.0, (cost - a.dynamic_j) / a.idle_power_w)
