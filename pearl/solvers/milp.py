"""Assignment by a mixed-integer linear program (HiGHS), then lane orders, then the next-best one.

Many tasks go through annealing and a bound of loads first (`many_tasks`), and no further where the
period form would be too large.

The period form of `docs/theory.md`: minimise P (or the energy of an iteration) over modes and
lanes, with node potentials u_dst − u_src + tokens · P ≥ latency + transfer for every arc of the
expansion and a load of at most P on every lane and link.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator, Sequence

from pearl.assignment import Assignment, timing
from pearl.costs import CostTable, Mode
from pearl.errors import InfeasibleError
from pearl.graph import TaskGraph
from pearl.limits import Limits
from pearl.solvers.choices import Program, cost_of, programs
from pearl.solvers.conflict import explain
from pearl.solvers.many_tasks import FIRST, ManyTasks, concerns
from pearl.solvers.order_cuts import blamed, worth
from pearl.solvers.orders import best_orders
from pearl.solvers.outcome import SAME, Found, Outcome
from pearl.solvers.period_form import PeriodForm

ORDERING_S = 2e-3
"""Time kept for the lane orders of many tasks, for each firing (1e-3 s measured on one core)."""


def solve(
    graph: TaskGraph,
    costs: CostTable,
    objective: str,
    limits: Limits,
    deadline: float,
    seed: int,
) -> Outcome:
    """The best plan over all programs, with the proven bound. deadline: `time.monotonic()` seconds.

    Raises InfeasibleError where no plan meets the limits. Deterministic for fewer than MANY tasks,
    where `seed` changes nothing; annealing of more goes by the clock.
    """
    choices = programs(graph, costs, limits)
    best = _first(choices, objective, limits, deadline)
    best, floors, searching = _many_tasks(choices, objective, limits, best, deadline, seed)
    small = [i for i in range(len(choices)) if i not in searching or searching[i].small]
    models = {i: PeriodForm(choices[i], objective, limits, best) for i in small}
    open_programs = [(floors[i], i) for i in small]  # least dual bound first
    heapq.heapify(open_programs)
    large = min((floors[i] for i in range(len(choices)) if i not in small), default=math.inf)
    loose = math.inf  # least bound of assignments whose orders were not exhausted
    late = large < (best.cost * (1 - SAME) if best else math.inf)
    while open_programs:
        bound, i = heapq.heappop(open_programs)
        if best and bound >= best.cost * (1 - SAME):
            heapq.heappush(open_programs, (bound, i))
            break
        left = deadline - time.monotonic()
        if left <= 0:
            late = True
            heapq.heappush(open_programs, (bound, i))
            break
        dual, assignment, finished = models[i].run(best.cost if best else math.inf, left)
        bound = max(bound, dual)
        if assignment is None:
            if not finished:
                late = True
                loose = min(loose, bound)
            continue
        timed = timing(assignment)
        least, _ = cost_of(objective, assignment, timed.order_bound_s, limits)
        if finished and dual >= least * (1 - 1e-6):  # equal, to the solver's tolerance
            bound = max(bound, least)
        to_blame = None
        if least < (best.cost * (1 - SAME) if best else math.inf):
            below = _period_at(objective, assignment, best.cost, limits) if best else math.inf
            ordered = best_orders(timed, below_s=below, deadline=deadline)
            cost, paced = cost_of(objective, assignment, ordered.period_s, limits)
            proven, _ = cost_of(objective, assignment, ordered.bound_s, limits)
            if cost < (best.cost if best else math.inf):
                best = Found(assignment, ordered, paced, cost)
            if proven < cost:
                loose = min(loose, proven)
            if best and least < best.cost * (1 - SAME):
                worth_s = worth(choices[i], assignment, objective, best.cost)
                to_blame = blamed(choices[i], assignment, worth_s)
        models[i].cut(assignment, to_blame)
        heapq.heappush(open_programs, (bound, i))
    for search in searching.values():
        best = _better(best, search.stop(), objective, limits, deadline)
    bound = min([loose, large, *(b for b, _ in open_programs)])
    if best is None:
        if late or bound < math.inf:
            raise InfeasibleError(
                f"no plan of graph {graph.name!r} that meets the limits was found in the time "
                "given; whether there is one is not decided: give more time or relax a limit"
            )
        raise explain(graph, costs, limits, deadline)
    return Outcome(best, min(bound, best.cost), late)


def _many_tasks(
    choices: Sequence[Program],
    objective: str,
    limits: Limits,
    best: Found | None,
    deadline: float,
    seed: int,
) -> tuple[Found | None, list[float], dict[int, ManyTasks]]:
    """What annealing finds for programs of many tasks, a bound for each program, and the searches,
    some of which go on in the background."""
    floors = [0.0] * len(choices)
    searching: dict[int, ManyTasks] = {}
    for i, program in enumerate(choices):
        if not concerns(program, objective, limits):
            continue
        known = best.assignment if best and best.assignment.expansion is program.expansion else None
        known_s = best.period_s if best else program.serial_s
        search = searching[i] = ManyTasks(program, known, known_s, seed)
        now = time.monotonic()
        left = max(0.0, deadline - now)
        ordering = min(0.1 * left, ORDERING_S * len(program.expansion.nodes))
        share = FIRST if search.small else 1.0
        until = now + (left - ordering) * share / (len(choices) - i)
        search.run(deadline - ordering, until)
        floors[i] = search.bound_s
        best = _better(best, search.found(), objective, limits, deadline)
    return best, floors, searching


def _better(
    best: Found | None,
    candidates: Sequence[Assignment],
    objective: str,
    limits: Limits,
    deadline: float,
) -> Found | None:
    """The best of a plan and some assignments with the best orders found for them."""
    for a in candidates:
        timed = timing(a)
        least, _ = cost_of(objective, a, timed.order_bound_s, limits)
        if best and least >= best.cost * (1 - SAME):
            continue
        below = _period_at(objective, a, best.cost, limits) if best else math.inf
        ordered = best_orders(timed, below_s=below, deadline=deadline)
        cost, paced = cost_of(objective, a, ordered.period_s, limits)
        if cost < (best.cost if best else math.inf):
            best = Found(a, ordered, paced, cost)
    return best


def least_cost(choices: Sequence[Program], objective: str, limits: Limits) -> float:
    """The least cost (seconds or joules of an iteration) of any assignment, orders left out."""
    known = math.inf
    for program in choices:
        model = PeriodForm(program, objective, limits, None)
        _, assignment, _ = model.run(known, 600.0)
        if assignment:
            bound = timing(assignment).order_bound_s
            known = min(known, cost_of(objective, assignment, bound, limits)[0])
    return known


def _period_at(objective: str, a: Assignment, cost: float, limits: Limits) -> float:
    """The period at which an assignment costs `cost`: no use in a longer one."""
    if objective == "throughput":
        return cost
    if a.idle_power_w == 0:
        return math.inf
    return max(0.0, (cost - a.dynamic_j) / a.idle_power_w)


def _first(
    choices: Sequence[Program], objective: str, limits: Limits, deadline: float
) -> Found | None:
    """A plan to scale by and to beat: all on one device as far as possible, or each at its best."""
    trials: list[tuple[float, int, Assignment]] = []
    for program in choices:
        for a in _simple(program):
            if not program.broken(a):
                cost, _ = cost_of(objective, a, timing(a).order_bound_s, limits)
                if cost < math.inf:
                    trials.append((cost, len(trials), a))
    best: Found | None = None
    for least, _, a in sorted(trials, key=lambda t: t[:2])[:3]:
        if best and least >= best.cost * (1 - SAME):
            break
        ordered = best_orders(timing(a), deadline=deadline, nodes=20)
        cost, paced = cost_of(objective, a, ordered.period_s, limits)
        if cost < (best.cost if best else math.inf):
            best = Found(a, ordered, paced, cost)
    return best


def _simple(program: Program) -> Iterator[Assignment]:
    def seconds(m: Mode) -> float:
        return m.estimate.occupancy_s

    def joules(m: Mode) -> float:
        return m.estimate.energy_j

    for taste in (seconds, joules):
        for favourite in [*(d.name for d in program.costs.platform.devices), None]:
            modes: list[Mode | None] = [None] * len(program.options)
            for members in program.classes:
                common = set.intersection(
                    *({m.device for m in program.options[u]} for u in members)
                )
                device = (
                    favourite
                    if favourite in common
                    else min(
                        sorted(common),
                        key=lambda d: sum(
                            program.expansion.firings(u)
                            * min(taste(m) for m in program.options[u] if m.device == d)
                            for u in members
                        ),
                    )
                )
                for u in members:
                    modes[u] = min((m for m in program.options[u] if m.device == device), key=taste)
            chosen = tuple(m for m in modes if m is not None)
            yield Assignment(program.expansion, program.costs, chosen, (0,) * len(chosen))
            used: dict[str, int] = {}
            lanes = []
            for m in chosen:
                used[m.device] = used.get(m.device, -1) + 1
                lanes.append(used[m.device] % program.lanes[m.device])
            yield Assignment(program.expansion, program.costs, chosen, tuple(lanes))
