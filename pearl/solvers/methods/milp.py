"""Assignment by a mixed-integer linear program (HiGHS), then lane orders, then the next-best one.

For many tasks, annealing and a bound of loads come first (`load_search`); if the period form would
be too large, nothing follows. For graphs with cycles, assignments are evaluated with their orders
(`loop_search`) if the period form does not prove the best plan soon.

The period form of `docs/search.md`: minimise P (or the energy of an iteration) over modes and
lanes, with node potentials u_dst − u_src + tokens · P ≥ latency + transfer for every arc of the
expansion and a load of at most P on every lane and link.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pearl.errors import InfeasibleError, SpecError
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.infeasible.iis import find_conflict
from pearl.solvers.methods.simple_plans import simple_plan
from pearl.solvers.methods.split_selection import select_splits
from pearl.solvers.model.bounds import ALL, NOTHING, CostBound
from pearl.solvers.model.cost_floor import cost_floor
from pearl.solvers.model.fusion_space import FusionSpace, fusion_spaces
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.search_space import (
    SearchSpace,
    cost_of,
    search_spaces,
)
from pearl.solvers.model.tables import to_places
from pearl.solvers.model.traits import (
    FIRST,
    MANY,
    applies_to,
    complete,
    has_large,
    is_acyclic,
    is_pooled,
    overlaps,
    require_large,
)
from pearl.solvers.orders.lane_sequencing import NODES, OrderResult, best_orders
from pearl.solvers.period.fusion_form import FusionForm
from pearl.solvers.period.period_form import PeriodForm
from pearl.time_limit import OutOfTimeError, extended, within

if TYPE_CHECKING:
    from pearl.solvers.large.load_search import LoadSearch

ALONE = 0.3
"""Share of the time limit after which small search spaces with cycles are searched step by step,
unless the period form has proven the best plan (assumed)."""

AHEAD = 12
"""Number of classes of a search space with cycles from which that search precedes the period form.
The period form proves most smaller spaces within seconds, for any number of firings (assumed)."""

LIMITED = 0.25
"""Least share of the work of that search in a pool after the search of the graph in one part
(assumed)."""

UNCOUPLED = 0.9
"""Share of the time limit for annealing without the rules that couple lanes, for many tasks without
cycles. Its plan is kept if it is within these rules (assumed)."""

WIDER, FUSED = 2, 0.2
"""Largest work of that search in pools of units, and for one of many sets of fused calls, as
multiples of the usual work: with less, more time is left for the bound of all sets (assumed)."""

POOLED = 9
"""The same number if modes are wider than an even share of their device: groups of a pool of units.
The period form proves loops of seven components in a second, and leaves large gaps for ten."""

STEPPED = 0.7
"""CPU-seconds of steps of that search, as a share of the time limit (assumed)."""

PAIRS_S = 4e-3
"""Largest number of CPU-seconds of that search for each pair of a class and a class or firing: more
gain nothing in small search spaces (assumed)."""

FURTHER = 8
"""Searched nodes of the orders of an assignment, as a multiple of the usual number, if time is left
at the end. Of 50 loops of language models in 4 parts, one more is proven with 5; 64 prove no
other."""

ORDERING_S = 1e-3
"""Time reserved for the lane orders of many tasks, per firing (0.4e-3 s measured on one core)."""


def solve(problem: Problem, search: Search) -> Outcome:
    """Return the best plan over all search spaces, with the proven bound.

    The result is deterministic for small graphs, where `seed` has no effect, and for graphs with
    cycles, unless the time limit ends the search. Annealing of many tasks depends on the clock.

    Raises:
        InfeasibleError: no plan is within the limits.
        OutOfTimeError: the time ran out before the first plan.
    """
    deadline = search.deadline
    few = select_splits(problem)
    splits = few.splits if few else None
    fusions = fusion_spaces(problem, splits)
    spaces = [] if fusions else search_spaces(problem, only=splits)
    branches = _Branches(spaces, problem, search, fusions)
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

    def __init__(
        self,
        spaces: Sequence[SearchSpace],
        problem: Problem,
        search: Search,
        fusions: Sequence[FusionSpace] = (),
    ) -> None:
        # a set of fused calls becomes a search space when it is chosen
        self.spaces, self.fusions, self.problem = list(spaces), fusions, problem
        self.start = search.start
        self.deadline, self.seed, self.workers = search.deadline, search.seed, search.workers
        self.limit_s = search.limit_s
        self._offer = search.offer
        self._best: Candidate | None = None
        self.timed_out = False
        # index of a search space → no plan of the space costs less
        self._open = dict.fromkeys(range(len(spaces)), NOTHING)
        # number of a fusion space → no plan of a set that is not chosen yet costs less
        self._unchosen = dict.fromkeys(range(len(fusions)), NOTHING)
        self._forms: dict[int, FusionForm] = {}  # built on first use
        self._models: dict[int, PeriodForm] = {}  # built on first use
        self._loose = ALL  # least bound of search spaces that were given up
        # bound of an assignment whose orders were not all searched
        self._ordered: list[tuple[CostBound, Assignment]] = []
        self._annealing: dict[int, LoadSearch] = {}
        self._loops: list[int] = []  # search spaces with cycles that are not searched yet
        self._until = self.deadline  # time limit of the period form's next run

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
        """Record that plans exist outside these search spaces, and that none costs less than
        this."""
        self._loose, self.timed_out = CostBound(bound, "work"), True
        self._open = dict.fromkeys(self._open, self._loose)

    @property
    def bound(self) -> CostBound:
        """A lower bound on the cost of every plan except `best`."""
        bounds = (bound for bound, _ in self._ordered)
        return min(self._loose, *self._open.values(), *self._unchosen.values(), *bounds, ALL)

    def stop(self) -> list[Assignment]:
        """Stop all annealing in the background and return the assignments that it found."""
        return [a for search in self._annealing.values() for a in search.stop()]

    def run(self) -> None:
        self._raise_floors(programs=False)
        self._loops = [i for i, space in enumerate(self.spaces) if self._is_loop(space)]
        if self.start is not None:
            self.best = self.start
        for i in sorted(self._loops, key=lambda i: (self._open[i], i)):
            if self._worth(self._open[i].cost) and complete(self.spaces[i], self.problem):
                self._value_all(i)
        floors = sorted((floor.cost, i) for i, floor in self._open.items())
        likely = [(floor, self.spaces[i]) for floor, i in floors if self._worth(floor)]
        likely += [(0.0, each.exact()) for each in self.fusions]
        simple = simple_plan(likely, self.problem, self.deadline)
        if simple is not None and self._worth(simple.cost):
            self.best = simple
        self._raise_floors(programs=True)  # after a plan exists: HiGHS may take all of the time
        self._loops = [i for i in self._loops if i in self._open]
        around = [self.spaces[i] for i in self._loops if not is_acyclic(self.spaces[i])]
        if any(len(s.classes) >= (POOLED if is_pooled(s) else AHEAD) for s in around):
            self._overlap()
        self._anneal()
        if any(i in self._annealing for i in self._loops):
            self._overlap()
        if self._loops:
            now = time.monotonic()
            self._until = now + ALONE * max(0.0, self.deadline - now)
        while True:
            self._choose()
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

    def _is_loop(self, space: SearchSpace) -> bool:
        """Return whether the searches of loops suit a search space and are not left out."""
        return overlaps(space, self.problem) and has_large()

    def _raise_floors(self, *, programs: bool) -> None:
        for i in self._open:
            floor = cost_floor(self.spaces[i], self.problem.objective, programs=programs)
            self._open[i] = max(self._open[i], floor)

    def _worth(self, cost: float) -> bool:
        """Return whether a plan of this cost would be better than the best."""
        return self.best is None or cost < self.best.cost * (1 - SAME)

    def _choose(self) -> None:
        """Add the search space of the best set of fused calls, unless an open space may have a
        better plan."""
        while True:
            least = min(self._open.values(), default=ALL).cost
            worth = [i for i, floor in self._unchosen.items() if self._worth(floor.cost)]
            first = min(worth, key=lambda i: self._unchosen[i], default=None)
            if first is None or self._unchosen[first].cost > least:
                return
            seconds = self.deadline - time.monotonic()
            if seconds <= 0:
                self.timed_out = True
                return
            fusions = self.fusions[first]
            if first not in self._forms:
                self._forms[first] = FusionForm(fusions, self.problem, self.best)
            form = self._forms[first]
            below = self.best.cost if self.best else math.inf
            dual, chosen, finished = form.choose(below, seconds)
            self._unchosen[first] = max(self._unchosen[first], CostBound(dual, "search"))
            if chosen is None:
                if not finished:
                    self.timed_out = True
                    self._loose = min(self._loose, self._unchosen[first])
                del self._unchosen[first]
                continue
            try:
                space = fusions.exact(chosen)
            except SpecError:  # a call would wait for itself
                form.exclude(chosen, larger=True)
                continue
            except InfeasibleError:
                form.exclude(chosen)
                continue
            form.exclude(chosen)
            self._open[len(self.spaces)] = cost_floor(space, self.problem.objective, programs=False)
            self.spaces.append(space)
            if self._is_loop(space):
                self._loops.append(len(self.spaces) - 1)
                if len(space.classes) >= AHEAD:
                    self._overlap()

    def _next(self, i: int) -> None:
        """Solve a search space for its best assignment that is not cut off, order its lanes, and
        add the next cut."""
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
        if self._worth(least):
            self._order(assignment, NODES)
        model.cut(assignment)

    def _order(self, a: Assignment, nodes: int, bound_s: float = 0.0) -> None:
        """Accept an assignment with its best orders if they are better than the best plan.

        nodes: largest number of searched nodes. bound_s: no orders have a shorter period.
        """
        below = _period_at(self.problem, a, self.best.cost) if self.best else math.inf
        timed = build_timed_graph(a)
        limits = {"below_s": below, "deadline": self.deadline, "bound_s": bound_s}
        ordered = best_orders(timed, nodes=nodes, **limits)
        cost, paced = cost_of(self.problem, a, ordered.period_s)
        proven, _ = cost_of(self.problem, a, ordered.bound_s)
        if proven < cost:
            self._ordered.append((CostBound(proven, "search"), a))
        if cost < (self.best.cost if self.best else math.inf):
            self.best = Candidate(a, ordered, paced, cost)

    def _order_further(self) -> None:
        """Search more nodes of the orders that were not all searched, the least bound first."""
        for bound, a in sorted(self._ordered, key=lambda ordered: ordered[0]):
            if not self._worth(bound.cost) or time.monotonic() >= self.deadline:
                break
            self._ordered.remove((bound, a))
            self._order(a, FURTHER * NODES)

    def _overlap(self) -> None:
        """Search plans and bounds of the search spaces whose iterations overlap around cycles, with
        a number of steps that suits the time limit."""
        from pearl.solvers.large.loop_search import LoopSearch, start_of_stream

        worth = [i for i in self._loops if i in self._open and self._worth(self._open[i].cost)]
        self._loops = []
        for i in sorted(worth, key=lambda i: (self._open[i].cost, i)):
            if time.monotonic() >= self.deadline:
                break
            space, annealed = self.spaces[i], self._annealing.get(i)
            starts = annealed.found(coupled=False) if annealed else []
            if self.best and self.best.assignment.expansion is space.expansion:
                starts.append(self.best.assignment)
            firings = len(space.expansion.nodes)
            most = PAIRS_S * len(space.classes) * max(len(space.classes), firings)
            most *= WIDER if is_pooled(space) else FUSED if self.fusions else 1
            ordering = min(0.1 * self.limit_s, ORDERING_S * firings)
            problem = self.problem
            whole = STEPPED * self.limit_s / len(worth)
            work = min(whole, most)
            if is_pooled(space) and firings > len(space.expansion.units):
                # the search of the same graph in one part, whose plan may be the best one
                lumped_work = min(whole, WIDER * PAIRS_S * len(space.classes) ** 2)
                with within(self.deadline - ordering):
                    place = start_of_stream(space, self.seed, problem, starts, lumped_work)
                if place is not None:
                    starts.insert(0, to_places(space, problem).assignment(place))
                work = min(max(whole - lumped_work, LIMITED * whole), most)
            search = LoopSearch(space, self.seed, problem, starts)
            with within(self.deadline - ordering):
                search.run(work)
            if search.bound is not None and problem.objective == "throughput":
                self._open[i] = max(self._open[i], CostBound(search.bound.bound_s, "chains"))
            with extended(math.inf):  # keeps what was found
                found = search.orders()
                if found is not None:
                    a, orders, period_s = found
                    cost, paced = cost_of(problem, a, period_s)
                    if cost < (self.best.cost if self.best else math.inf):
                        bound_s = build_timed_graph(a).order_bound_s
                        ordered = OrderResult(orders, period_s, bound_s)
                        self.best = Candidate(a, ordered, paced, cost)
            for place in search.every() if search.few else ():
                if time.monotonic() >= self.deadline:
                    break
                a = to_places(space, problem).assignment(place)
                if not space.violates_coupling(a):
                    self.best = _better(self.best, [a], self.problem, self.deadline)

    def _value_all(self, i: int) -> None:
        """Value every assignment of a search space with few of them, the least bound first, and
        search the orders of those that may be better than the best plan."""
        from pearl.solvers.large.loop_search import LoopSearch

        search = LoopSearch(self.spaces[i], self.seed)
        for bound_s, place in search.bounds():
            self._open[i] = max(self._open[i], CostBound(bound_s * (1 - SAME), "search"))
            if bound_s == math.inf or not self._worth(bound_s * (1 - SAME)):
                break  # infinite: the assignment is forbidden
            if time.monotonic() >= self.deadline:
                return
            a = search.b.assignment(place)
            if self.spaces[i].violates_coupling(a):
                continue
            self._order(a, NODES, bound_s)
        del self._open[i]

    def _anneal(self) -> None:
        """Search plans and bounds of spaces with many tasks by loads. Some searches continue in the
        background."""
        for i, space in enumerate(self.spaces):
            if i not in self._open or not self._worth(self._open[i].cost):
                continue
            if not applies_to(space, self.problem):
                continue
            if len(space.classes) < MANY and not has_large():
                continue  # the period form suffices
            require_large(len(space.classes))
            from pearl.solvers.large.load_search import LoadSearch
            from pearl.solvers.large.starts import mended

            best = self.best
            same = best is not None and best.assignment.expansion is space.expansion
            start = best.assignment if best and same else None
            start_s = best.period_s if best else space.serial_s
            search = self._annealing[i] = LoadSearch(space, start, start_s, self.seed, self.workers)
            now = time.monotonic()
            left = max(0.0, self.deadline - now)
            ordering = min(0.1 * left, ORDERING_S * len(space.expansion.nodes))
            share = FIRST if search.small else 1.0
            if i in self._loops and share == 1.0:
                share = UNCOUPLED
                search.small = search.fits
            until = now + (left - ordering) * share / (len(self.spaces) - i)
            search.run(self.deadline - ordering, until)
            self._open[i] = max(self._open[i], search.bound)
            assignments = search.found()
            if i in self._loops:
                b = to_places(space, self.problem)
                places = [mended(b, b.place_of(a)) for a in search.found(coupled=False)]
                more = [b.assignment(place) for place in places if place is not None]
                assignments += [a for a in more if not space.violates_coupling(a)]
            self.best = _better(best, assignments, self.problem, self.deadline)


def _better(
    best: Candidate | None,
    candidates: Sequence[Assignment],
    problem: Problem,
    deadline: float,
) -> Candidate | None:
    """Return the best of a plan and some assignments with the best orders found for them. After
    the time limit, assignments get list orders, so that what was found is kept."""
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


def _period_at(problem: Problem, a: Assignment, cost: float) -> float:
    """Return the period at which an assignment costs `cost`; a longer period is useless."""
    if problem.objective == "throughput":
        return cost
    if a.idle_power_w == 0:
        return math.inf
    return max(0.0, (cost - a.dynamic_j) / a.idle_power_w)
