"""A run of one method: its time limit, start and spare plan, ties, and the plan of its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

from pearl.errors import InfeasibleError
from pearl.formatting import marked
from pearl.graph.limits import Limits
from pearl.planning.bands import Regret
from pearl.planning.capacities import Channels
from pearl.planning.draws import Draws
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment
from pearl.solvers import find_method
from pearl.solvers.channel_fit import fit_channels
from pearl.solvers.incumbents import ListenerError
from pearl.solvers.infeasible.iis import add_conflict_set
from pearl.solvers.known_plan import from_start, or_spare, translate_plan
from pearl.solvers.methods.relaxation_bounds import cheap_bound, work_bound
from pearl.solvers.methods.simple_plans import first_plan
from pearl.solvers.model.bounds import CostBound
from pearl.solvers.model.method import Search, Solve
from pearl.solvers.model.result import Candidate, Outcome
from pearl.solvers.outcome_check import fault_of, fault_of_candidate
from pearl.solvers.period.tie_breaking import break_ties
from pearl.time_limit import OutOfTimeError, extended, within
from pearl_devices.cpu_count import usable_cpu_count
from pearl_devices.user_imports import error_text

FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Exceptions that mean a fault in a method's code, not in the machine or the problem."""

GRACE_S, GRACE = 0.05, 0.03
"""Seconds, and share of the time limit, by which a step of a method may exceed the limit before it
is stopped."""

CHEAP_S = 0.2
"""Seconds after the time limit for the cheap bounds, if a method proved nothing."""

ASSEMBLING_S, WIRING_S, PART_S, ASSEMBLING = 4e-5, 2e-5, 1.3e-4, 0.6
"""Time to build a plan and to check it: seconds per firing, per message of an edge in an iteration,
and per task or edge, copies counted; the largest share of the time limit. Measured on one core:
0.33 CPU-seconds for 4,097 firings and 8,192 messages of 3 tasks, 0.88 for a chain of 3,000 tasks,
1.32 for 400 tasks with 7,643 edges."""

BUILDING_S, MOST_FIRINGS = 1e-4, 25_000
"""Time to make any plan, in seconds per firing (measured on one core: the expansion, the channels
and the bands take most), and the largest number of firings for which a plan is made even if the
time limit is below it. For more firings, such a limit ends the solve at once."""

MANY_FIRINGS = 5_000
"""Number of firings per iteration from which the spare plan is made before the method begins. For
fewer firings, the spare plan takes 150 ms and is made after the method, if needed."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run of a method.

    best: the plan. channels: its channels, which fit into memory. bound: no plan costs less.
    timed_out: whether the time limit ended the search. regret: of a robust objective.
    """

    best: Candidate
    channels: Channels | None
    bound: CostBound
    timed_out: bool
    regret: Regret | None


def begin_search(
    problem: Problem, method: str, seed: int, time_limit_s: float, workers: int | None
) -> Search:
    """Return the options of a search that begins now, with time left to build its plan.

    Raises:
        InfeasibleError: the time limit is below the time to build any plan.
    """
    firings = _count_firings(problem)
    if firings > MOST_FIRINGS and BUILDING_S * firings > time_limit_s:
        raise _no_time(problem, firings, time_limit_s)
    deadline = time.monotonic() + time_limit_s - ending_s(problem, firings, time_limit_s)
    return Search(
        deadline, seed, method, workers=workers or usable_cpu_count(), limit_s=time_limit_s
    )


def run_method(
    problem: Problem,
    search: Search,
    *,
    known: Plan | None,
    robust: Literal["mean", "worst"] | None,
    offer: Callable[[Candidate], None] | None,
) -> RunResult:
    """Run the method of a search.

    known: a plan from which the search begins. robust: the regret to minimise, if any. offer:
    called with each better plan.

    Raises:
        InfeasibleError: a limit cannot be met, or no plan was found in time; names the limit.
        SpecError: the method's code is at fault.
    """
    method, name, firings = find_method(search.method), search.method, _count_firings(problem)
    late = search.deadline + GRACE_S + GRACE * search.limit_s
    simulated = [d.name for d in problem.costs.platform.devices if d.simulated]
    spare = cache(partial(first_plan, problem))
    solve = partial(or_spare, partial(from_start, method.load(name)), spare, problem)
    regret: Regret | None = None
    quiet = search
    try:
        if offer is not None:
            search = replace(search, offer=offer)
        if known is not None:
            search = replace(search, start=translate_plan(known, problem))
        elif firings > MANY_FIRINGS:
            spare()
        with within(late):
            if robust:
                outcome, regret = _least_regret(problem, search, solve, robust)
            else:
                outcome = solve(problem, search)
        fault = fault_of(outcome)
        if not fault and not method.code.startswith("pearl."):
            fault = fault_of_candidate(outcome.best, problem)
    except InfeasibleError as error:
        error = add_conflict_set(error, problem, search.deadline)
        raise InfeasibleError(marked(str(error), simulated), error.conflict) from None
    except OutOfTimeError:
        raise _no_time(problem, firings, search.limit_s) from None
    except ListenerError as error:
        raise error.__cause__ or error from None
    except FAULTS as error:
        fault = f"it failed with {type(error).__name__}: {error_text(error)}"
        raise method.fault_error(name, fault) from error
    if fault:
        raise method.fault_error(name, fault)
    best, bound = outcome.best, _find_bound(outcome, problem, search.deadline, late)
    with suppress(OutOfTimeError), within(late):
        if problem.objective != "makespan" and not robust:
            # draws of a robust objective may need slack that the estimates do not
            exact = name == "milp" and not outcome.timed_out
            best = break_ties(best, problem, quiet, solve, exact=exact)
    try:
        best, channels = fit_channels(best, _others(outcome.best, spare), problem, search.deadline)
    except InfeasibleError as error:
        raise InfeasibleError(marked(str(error), simulated), error.conflict) from None
    return RunResult(best, channels, bound, outcome.timed_out, regret)


def _find_bound(outcome: Outcome, problem: Problem, deadline: float, late: float) -> CostBound:
    """Return the bound of an outcome; a cheap one if time ran out before the method proved any."""
    bound = CostBound(outcome.bound, outcome.bound_from)
    if bound.cost <= 0:
        until = max(deadline, time.monotonic()) + CHEAP_S + late - deadline
        with suppress(OutOfTimeError), extended(until):
            bound = cheap_bound(problem, outcome.best)
    if bound.cost <= 0:
        bound = min(work_bound(problem), CostBound(outcome.best.cost, "search"))
    return bound


def build_result_plan(result: RunResult, problem: Problem, search: Search, solve_s: float) -> Plan:
    """Return the plan of a result. solve_s: seconds of the whole solve."""
    best, regret, bound = result.best, result.regret, result.bound
    steady = problem.objective == "throughput"
    proof = Proof(
        objective=problem.objective,
        method=search.method,
        seed=search.seed,
        solve_s=solve_s,
        bound=bound.cost,
        period_bound_s=bound.cost if steady else best.ordered.bound_s,
        timed_out=result.timed_out,
        bound_from=bound.source,
    )
    power_w = problem.limits.power_w
    orders, channels = best.ordered.orders, result.channels
    plan = build_plan(best.assignment, orders, proof, power_w=power_w, channels=channels)
    if regret is not None:
        late = "time_limit" if result.timed_out else "feasible"
        status = "optimal" if regret.is_proved else late
        plan = replace(plan, regret=regret, status=status, gap=regret.gap)  # type: ignore[arg-type]
    return replace(plan, note=_free_weights_note(best.assignment))


def _others(found: Candidate, spare: Callable[[], Candidate | None]) -> Iterator[Candidate]:
    """Yield the plan before ties were broken, and the spare plan."""
    yield found
    with suppress(InfeasibleError, OutOfTimeError):
        plan = spare()
        if plan is not None:
            yield plan


def _least_regret(
    problem: Problem, search: Search, run: Solve, robust: Literal["mean", "worst"]
) -> tuple[Outcome, Regret]:
    """Return the outcome and the regret of a robust objective; if time runs out, of the best plan
    so far.

    Raises:
        InfeasibleError: no plan is within the limits.
        OutOfTimeError: no plan was found in time.
    """
    from pearl.solvers.robust import DRAWS, least_regret

    draws = Draws(DRAWS, search.seed)
    try:
        return least_regret(problem, search, run, robust, draws)
    except OutOfTimeError:
        nominal = run(problem, search)
        with extended(math.inf):
            return least_regret(
                problem, replace(search, start=nominal.best), lambda *_: nominal, robust, draws
            )


def _count_firings(problem: Problem) -> int:
    """Return the firings of an iteration, copies counted."""
    graph, limits = problem.graph, problem.limits
    return sum(graph.repetition[t.name] * _copies(t.name, limits) for t in graph.tasks)


def ending_s(problem: Problem, firings: int, time_limit_s: float) -> float:
    """Return the seconds of the time limit reserved to check and build a plan."""
    graph = problem.graph
    copies = {t.name: _copies(t.name, problem.limits) for t in graph.tasks}
    joined = [max(copies[e.src], copies[e.dst]) for e in graph.edges]
    messages = sum(max(graph.repetition[e.src], graph.repetition[e.dst]) for e in graph.edges)
    parts = sum(copies.values()) + sum(joined)
    each_s = ASSEMBLING_S * firings + WIRING_S * messages + PART_S * parts
    return min(ASSEMBLING * time_limit_s, each_s)


def _copies(task: str, limits: Limits) -> int:
    """Return the number of copies into which a task may be split."""
    return max(1, limits.replicas.get(task, 1))


def _free_weights_note(a: Assignment) -> str:
    """Return a warning if a plan moves weights to another device at no cost, else an empty text.

    The cost is missing if the weights' bytes are on the edge from a sender to a reader on the same
    device, and the edge into the sender comes from another device and has no bytes.
    """
    edges = a.expansion.graph.edges
    for out in edges:
        here = a.device_of(out.src)
        if out.limit != "policy_lag" or not out.bytes or a.device_of(out.dst) != here:
            continue
        for into in (e for e in edges if e.dst == out.src and e.src != out.src):
            if not into.bytes and a.device_of(into.src) != here:
                return (
                    f"weights move at no cost: {out.src} and {out.dst} run on {here}, and the edge "
                    f"{into.src} → {out.src} from {a.device_of(into.src)} has no bytes; give that "
                    f"edge the {out.bytes:.3g} bytes, or keep {out.src} with {into.src} "
                    "(Task.group, limits.together)"
                )
    return ""


def _no_time(problem: Problem, firings: int, time_limit_s: float) -> InfeasibleError:
    least, name = work_bound(problem).cost, problem.graph.name
    unit = "J an iteration" if problem.objective == "power_efficiency" else "s"
    needed = max(2 * time_limit_s, BUILDING_S * firings)
    return InfeasibleError(
        f"no plan of graph {name!r} within the limits was found in {time_limit_s:g} s, and none is "
        f"excluded; by the work of its tasks, every plan takes at least {least:.6g} {unit}: give "
        f"more time (time_limit_s, `pearl plan --time-limit`), such as {needed:.3g} s, relax a "
        f"limit, or use rates with fewer than the present {firings:,} firings per iteration"
    )
