"""Assignment by a mixed-integer linear program (HiGHS), then lane orders, then the next-best one.

The period form of `docs/theory.md`: minimise P (or the energy of an iteration) over modes and
lanes, with node potentials u_dst − u_src + tokens · P ≥ latency + transfer for every arc of the
expansion and a load of at most P on every lane and link. HiGHS: Huangfu and Hall 2018, through
`scipy.optimize.milp`.
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
from pearl.solvers.orders import best_orders
from pearl.solvers.outcome import SAME, Found, Outcome
from pearl.solvers.period_form import PeriodForm


def solve(
    graph: TaskGraph,
    costs: CostTable,
    objective: str,
    limits: Limits,
    deadline: float,
    seed: int,
) -> Outcome:
    """The best plan over all programs, with the proven bound. deadline: `time.monotonic()` seconds.

    Raises InfeasibleError where no plan meets the limits. Deterministic; `seed` changes nothing.
    """
    choices = programs(graph, costs, limits)
    best = _first(choices, objective, limits, deadline)
    models = [PeriodForm(p, objective, limits, best) for p in choices]
    open_programs = [(0.0, i) for i in range(len(models))]  # least dual bound first
    loose = math.inf  # least bound of assignments whose orders were not exhausted
    late = False
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
        models[i].cut(assignment)
        if least < (best.cost * (1 - SAME) if best else math.inf):
            below = _period_at(objective, assignment, best.cost, limits) if best else math.inf
            ordered = best_orders(timed, below_s=below, deadline=deadline)
            cost, paced = cost_of(objective, assignment, ordered.period_s, limits)
            proven, _ = cost_of(objective, assignment, ordered.bound_s, limits)
            if cost < (best.cost if best else math.inf):
                best = Found(assignment, ordered, paced, cost)
            if proven < cost:
                loose = min(loose, proven)
        heapq.heappush(open_programs, (bound, i))
    bound = min([loose, *(b for b, _ in open_programs)])
    if best is None:
        if late or bound < math.inf:
            raise InfeasibleError(
                f"no plan of graph {graph.name!r} that meets the limits was found in the time "
                "given; whether there is one is not decided: give more time or relax a limit"
            )
        raise explain(graph, costs, limits)
    return Outcome(best, min(bound, best.cost), late)


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
