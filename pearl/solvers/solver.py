"""`solve`: the best plan of a graph and its costs, by a method of `METHODS` or a user's own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import marked
from pearl.graph.limits import Limits, time_limit_faults
from pearl.graph.task_graph import TaskGraph
from pearl.planning.bands import Regret
from pearl.planning.costs import CostTable, problem_faults
from pearl.planning.draws import Draws
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment
from pearl.rooms import use_room
from pearl.seeds import checked_seed
from pearl.solvers import ABSENT_METHODS, METHODS, find_method
from pearl.solvers.channel_fit import fit_channels
from pearl.solvers.first_use import compile_searches
from pearl.solvers.garbage import collected_rarely
from pearl.solvers.incumbents import Incumbents, Listener, ListenerError
from pearl.solvers.infeasible.iis import add_conflict_set
from pearl.solvers.known_plan import from_start, or_spare, translate_plan
from pearl.solvers.methods.relaxation_bounds import cheap_bound, work_bound
from pearl.solvers.methods.simple_plans import first_plan
from pearl.solvers.model.bounds import CostBound
from pearl.solvers.model.method import OBJECTIVES, ROBUST, Search, Solve
from pearl.solvers.model.result import Candidate, Outcome
from pearl.solvers.outcome_check import fault_of, fault_of_candidate
from pearl.solvers.period.tie_breaking import break_ties
from pearl.time_limit import OutOfTimeError, extended, within
from pearl.verification import RefusedError, check_plan
from pearl_devices.cpu_count import usable_cpu_count
from pearl_devices.user_imports import error_text
from pearl_devices.validation import is_whole, quote

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


def default_method(objective: str) -> str:
    """Return the default method of an objective: milp. For makespan it is cpsat if OR-Tools is
    installed, else tabu: the list schedule and the tabu search from which cpsat begins.

    Raises:
        SpecError: the room of makespan is left out.
    """
    if objective != "makespan":
        return "milp"
    module = (METHODS | ABSENT_METHODS)["cpsat"].module
    return "cpsat" if use_room(f"{module}:installed", "objective makespan")() else "tabu"


def solve(
    graph: TaskGraph,
    costs: CostTable,
    *,
    objective: str = "throughput",
    method: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    time_limit_s: float = 20.0,
    seed: int = 0,
    known: Plan | None = None,
    workers: int | None = None,
    on_incumbent: Listener | None = None,
    certify: bool | None = None,
) -> Plan:
    """Return the best plan of a graph.

    The objective `throughput` maximises env steps per second and `power_efficiency` env steps per
    joule. `makespan` minimises the end of the first iteration. `robust` and `robust_worst` minimise
    the mean or the worst regret over draws of the times from their bands; a method for throughput
    solves them.

    Args:
        graph: the tasks and their edges.
        costs: what each task costs on each device.
        objective: what the plan maximises or minimises.
        method: one of `pearl list methods`; None for the default of the objective.
        limits: what the plan may do.
        time_limit_s: seconds of the search, without the first compilation of its programs.
        known: a plan of a similar problem. If this problem allows the plan (for makespan, with no
            slack beyond the graph's and no lane that runs ahead into the next iteration), the
            search begins from it, and the result is never worse. For a robust objective, "worse" is
            by the regret.
        seed: seed of the search and of the draws.
        workers: largest number of threads that search in parallel; by default the number of CPUs
            that this process may use, by its affinity mask and control groups.
        on_incumbent: called with each better plan during the search, without a proof, and at the
            end with the returned plan. An exception of this function ends the search. For a robust
            objective, the function is called at the end only.
        certify: whether to make a certificate, which `pearl.verify` checks, after the search; it
            may take as long as the search. None: if it is quick.

    Returns:
        The plan. Value, bound, gap and status tell what is proved. For a robust plan, gap and
        status are those of the regret, value and bound those of the estimates.

    Examples:
        >>> link = pearl.Link("a", "b", latency_s=1e-3, bytes_per_s=1e9)
        >>> platform = pearl.Platform("pair", [pearl.Device("a"), pearl.Device("b")], [link])
        >>> graph = pearl.TaskGraph("two tasks", [pearl.Task("x"), pearl.Task("y")], [])
        >>> costs = pearl.CostTable.from_seconds(
        ...     platform, {"x": {"a": 1.0, "b": 3.0}, "y": {"a": 2.0, "b": 1.0}}
        ... )
        >>> plan = pearl.solve(graph, costs)
        >>> plan.period_s, plan.status, plan.task("y").device
        (1.0, 'optimal', 'b')

    Raises:
        SpecError: an objective, a method or a name is unknown.
        InfeasibleError: a limit cannot be met, or no plan was found in time; names the limit.
    """
    problems = problem_faults(graph, costs, limits)
    problems += _faults(objective, method, time_limit_s, seed, workers)
    if on_incumbent is not None and not callable(on_incumbent):
        problems.append(
            f"on_incumbent is {quote(on_incumbent)}; it must be a function of a Plan, or None"
        )
    if problems:
        raise SpecError(*problems)
    options: dict[str, Any] = {"method": method, "time_limit_s": float(time_limit_s), "seed": seed}
    options |= {"known": known, "workers": workers, "on_incumbent": on_incumbent}
    options["certify"] = certify
    return solve_problem(Problem(graph, costs, limits, objective), **options)


def _faults(
    objective: object, method: str | None, time_limit_s: object, seed: object, workers: object
) -> list[str]:
    """Return one line for each wrong option of a solve."""
    problems = []
    if not is_whole(seed) or seed < 0:
        problems.append(f"seed is {quote(seed)}; it must be a whole number of at least 0")
    if workers is not None and (not is_whole(workers) or workers < 1):
        problems.append(
            f"workers is {quote(workers)}; it must be a whole number of at least 1, or None for "
            "the CPUs that this process may use"
        )
    if isinstance(objective, str) and objective in ROBUST:
        objective = "throughput"
    if objective not in OBJECTIVES:
        problems.append(
            f"objective {quote(objective)} is unknown; allowed are {[*OBJECTIVES, *ROBUST]}"
        )
    try:
        offered = OBJECTIVES if method is None else find_method(method).objectives
    except SpecError as error:
        problems += error.problems
    else:
        if objective in OBJECTIVES and objective not in offered:
            shipped = {name: other for name, other in METHODS.items() if "." not in name}
            able = [name for name, other in shipped.items() if objective in other.objectives]
            problems.append(
                f"method {method!r} does not support the objective {objective!r}, only "
                f"{list(offered)}; methods that support it are {able}"
            )
    return problems + time_limit_faults(time_limit_s)


@collected_rarely()
def solve_problem(
    problem: Problem,
    *,
    method: str | None = None,
    time_limit_s: float = 20.0,
    seed: int = 0,
    known: Plan | None = None,
    workers: int | None = None,
    on_incumbent: Listener | None = None,
    certify: bool | None = None,
) -> Plan:
    """Return the plan of a problem. `solve` describes the options.

    Raises:
        SpecError: an objective, a method or a name is unknown.
        InfeasibleError: a limit cannot be met, or no plan was found in time; names the limit.
    """
    if problems := _faults(problem.objective, method, time_limit_s, seed, workers):
        raise SpecError(*problems)
    whole, robust = problem, ROBUST.get(problem.objective)
    if robust:
        problem = replace(problem, objective="throughput")
    graph, costs = problem.graph, problem.costs
    objective, limits = problem.objective, problem.limits
    seed = checked_seed(seed)
    name = method or default_method(objective)
    registered = METHODS[name]
    compile_searches(problem)
    began = time.monotonic()
    firings = sum(graph.repetition[t.name] * _copies(t.name, limits) for t in graph.tasks)
    deadline = began + time_limit_s - ending_s(problem, firings, time_limit_s)
    grace_s = GRACE_S + GRACE * time_limit_s
    search = Search(
        deadline, seed, name, workers=workers or usable_cpu_count(), limit_s=time_limit_s
    )
    quiet = search
    if on_incumbent is not None and not robust:
        search = replace(search, offer=Incumbents(problem, name, seed, on_incumbent).offer)
    if firings > MOST_FIRINGS and BUILDING_S * firings > time_limit_s:
        raise _no_time(problem, firings, time_limit_s)
    spare = cache(partial(first_plan, problem))
    run = partial(or_spare, partial(from_start, registered.load(name)), spare, problem)
    regret: Regret | None = None
    try:
        if known is not None:
            search = replace(search, start=translate_plan(known, problem))
        elif firings > MANY_FIRINGS:
            spare()
        with within(deadline + grace_s):
            if robust:
                outcome, regret = _least_regret(problem, search, run, robust)
            else:
                outcome = run(problem, search)
        fault = fault_of(outcome)
        if not fault and not registered.code.startswith("pearl."):
            fault = fault_of_candidate(outcome.best, problem)
    except InfeasibleError as error:
        error = add_conflict_set(error, problem, deadline)
        simulated = [d.name for d in costs.platform.devices if d.simulated]
        raise InfeasibleError(marked(str(error), simulated), error.conflict) from None
    except OutOfTimeError:
        raise _no_time(problem, firings, time_limit_s) from None
    except ListenerError as error:
        raise error.__cause__ or error from None
    except FAULTS as error:
        fault = f"it failed with {type(error).__name__}: {error_text(error)}"
        raise registered.fault_error(name, fault) from error
    if fault:
        raise registered.fault_error(name, fault)
    best, bound = outcome.best, CostBound(outcome.bound, outcome.bound_from)
    if bound.cost <= 0:  # time ran out before the method proved a bound
        with (
            suppress(OutOfTimeError),
            extended(max(deadline, time.monotonic()) + CHEAP_S + grace_s),
        ):
            bound = cheap_bound(problem, best)
    if bound.cost <= 0:
        bound = min(work_bound(problem), CostBound(best.cost, "search"))
    with suppress(OutOfTimeError), within(deadline + grace_s):
        if objective != "makespan" and not robust:  # draws may need slack that the estimates do not
            exact = name == "milp" and not outcome.timed_out
            best = break_ties(best, problem, quiet, run, exact=exact)
    try:
        best, channels = fit_channels(best, _others(outcome.best, spare), problem, deadline)
    except InfeasibleError as error:
        simulated = [d.name for d in costs.platform.devices if d.simulated]
        raise InfeasibleError(marked(str(error), simulated), error.conflict) from None
    proof = Proof(
        objective=objective,
        method=name,
        seed=seed,
        solve_s=time.monotonic() - began,
        bound=bound.cost,
        period_bound_s=bound.cost if objective == "throughput" else best.ordered.bound_s,
        timed_out=outcome.timed_out,
        bound_from=bound.source,
    )
    plan = build_plan(
        best.assignment, best.ordered.orders, proof, power_w=limits.power_w, channels=channels
    )
    if regret is not None:
        status = (
            "optimal" if regret.is_proved else "time_limit" if outcome.timed_out else "feasible"
        )
        plan = replace(plan, regret=regret, status=status, gap=regret.gap)  # type: ignore[arg-type]
    plan = replace(plan, problem=whole, note=_free_weights_note(best.assignment))
    try:
        checked = check_plan(plan, problem)
    except RefusedError as error:
        raise registered.fault_error(name, f"its {error}") from error
    if certify or (certify is None and plan.status == "optimal"):
        from pearl.solvers.certificate import QUICK
        from pearl.solvers.certificate import certify as certified

        with suppress(OutOfTimeError), extended(math.inf):
            work = math.inf if certify else QUICK
            plan = certified(plan, seconds=time_limit_s, work=work, checked=checked)
    if on_incumbent is not None:
        on_incumbent(plan)
    return plan


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
