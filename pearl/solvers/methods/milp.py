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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, Orders, build_timed_graph
from pearl.solvers.infeasible.iis import find_conflict
from pearl.solvers.large.greedy_replicas import place_replicas
from pearl.solvers.large.load_search import FIRST, LoadSearch, applies_to, overlaps
from pearl.solvers.large.split_selection import select_splits
from pearl.solvers.model.bounds import ALL, NOTHING, CostBound
from pearl.solvers.model.cost_floor import cost_floor
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces
from pearl.solvers.orders.lane_sequencing import OrderResult, best_orders
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

TRIED = 3
"""Simple assignments that are given orders (assumed)."""

TRYING = 0.3
"""Share of the time limit that finding and ordering them may take (assumed)."""

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
    with suppress(OutOfTimeError):
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
        self._loose = ALL  # least bound of assignments whose orders were not exhausted
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
        return min(self._loose, *self._open.values(), ALL)

    def stop(self) -> list[Assignment]:
        """The assignments that annealing found; ends all annealing in the background."""
        return [a for search in self._annealing.values() for a in search.stop()]

    def run(self) -> None:
        for i, space in enumerate(self.spaces):
            self._open[i] = max(self._open[i], cost_floor(space, self.problem.objective))
        floors = sorted((floor.cost, i) for i, floor in self._open.items())
        likely = [(floor, self.spaces[i]) for floor, i in floors]
        self.best = _first(likely, self.problem, self.deadline)
        if self.start is not None and self._worth(self.start.cost):
            self.best = self.start
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
            best = self.best
            below = _period_at(problem, assignment, best.cost) if best else math.inf
            ordered = best_orders(timed, below_s=below, deadline=self.deadline)
            cost, paced = cost_of(problem, assignment, ordered.period_s)
            proven, _ = cost_of(problem, assignment, ordered.bound_s)
            if proven < cost:
                self._loose = min(self._loose, CostBound(proven, "search"))
            if cost < (best.cost if best else math.inf):
                best = self.best = Candidate(assignment, ordered, paced, cost)
            if best and least < best.cost * (1 - SAME):
                worth_s = cut_period(self.spaces[i], assignment, problem.objective, best.cost)
                to_blame = conflict_units(self.spaces[i], assignment, worth_s)
        model.cut(assignment, to_blame)

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
    """The best of a plan and some assignments with the best orders found for them."""
    for a in candidates:
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


def _first(
    spaces: Sequence[tuple[float, SearchSpace]], problem: Problem, deadline: float
) -> Candidate | None:
    """A plan to scale by and to beat: all on one device as far as possible, or each at its best, or
    copies side by side. spaces: with a cost that no plan of each undercuts, the least first."""
    now = time.monotonic()
    until = now + TRYING * max(0.0, deadline - now)
    trials: list[tuple[float, int, Assignment]] = []
    for floor, space in spaces:
        if len(trials) >= TRIED and floor > sorted(trials)[TRIED - 1][0]:
            break
        for a in _simple(space):
            if trials and time.monotonic() > until:
                break
            if not space.violates_coupling(a):
                cost, _ = cost_of(problem, a, build_timed_graph(a).order_bound_s)
                if cost < math.inf:
                    trials.append((cost, len(trials), a))
    best: Candidate | None = None
    for least, _, a in sorted(trials, key=lambda t: t[:2])[:TRIED]:
        if best and (least >= best.cost * (1 - SAME) or time.monotonic() > until):
            break
        with suppress(OutOfTimeError):
            ordered = best_orders(build_timed_graph(a), deadline=until, nodes=20, effort=0.1)
            cost, paced = cost_of(problem, a, ordered.period_s)
            if cost < (best.cost if best else math.inf):
                best = Candidate(a, ordered, paced, cost)
    return best


def _simple(space: SearchSpace) -> Iterator[Assignment]:
    def seconds(m: Mode) -> float:
        return m.estimate.occupancy_s

    def joules(m: Mode) -> float:
        return m.estimate.energy_j

    for taste in (seconds, joules):
        there = [_best_there(space, members, taste) for members in space.classes]
        usual = [min(sorted(best), key=lambda d: best[d][0]) for best in there]
        for favourite in [*_different(space, there), None]:
            modes: dict[int, Mode] = {}
            for members, best, device in zip(space.classes, there, usual, strict=True):
                chosen_there = best[favourite if favourite and favourite in best else device][1]
                modes |= zip(members, chosen_there, strict=True)
            chosen = tuple(modes[u] for u in range(len(space.options)))
            yield Assignment(space.expansion, space.costs, chosen, (0,) * len(chosen))
            used: dict[str, int] = {}
            lanes = []
            for m in chosen:
                used[m.device] = used.get(m.device, -1) + 1
                lanes.append(used[m.device] % space.lanes[m.device])
            yield Assignment(space.expansion, space.costs, chosen, tuple(lanes))
    yield from place_replicas(space)


There = dict[str, tuple[float, list[Mode]]]
"""Device that a class may be on → its cost there, and the best mode of each of its units."""


def _best_there(
    space: SearchSpace, members: Sequence[int], taste: Callable[[Mode], float]
) -> There:
    best: list[dict[str, Mode]] = []
    for u in members:
        best_modes: dict[str, Mode] = {}
        for m in space.options[u]:
            if m.device not in best_modes or taste(m) < taste(best_modes[m.device]):
                best_modes[m.device] = m
        best.append(best_modes)
    firings = [space.expansion.firings(u) for u in members]
    return {
        d: (sum(n * taste(b[d]) for n, b in zip(firings, best, strict=True)), [b[d] for b in best])
        for d in set.intersection(*map(set, best))
    }


def _different(space: SearchSpace, there: Sequence[There]) -> list[str]:
    """The devices, of those that cost the same and are linked alike the first."""
    platform, first_of = space.costs.platform, dict[object, str]()
    for d in platform.devices:
        way = platform.route(platform.host, d.name)
        links = [(k.latency_s, k.per_message_s, k.bytes_per_s, k.paid_by) for k in way]
        properties = space.lanes[d.name], space.capacity_bytes[d.name], d.idle_power_w, tuple(links)
        costs = tuple(best[d.name][0] if d.name in best else None for best in there)
        first_of.setdefault((d.name == platform.host, *properties, costs), d.name)
    return list(first_of.values())
