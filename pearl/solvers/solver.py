"""`solve`: the best plan of a graph and its costs, by a method of `METHODS` or a user's own."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pearl.errors import SpecError
from pearl.graph.limits import Limits, time_limit_faults
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, problem_faults
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.rooms import use_room
from pearl.seeds import checked_seed
from pearl.solvers import ABSENT_METHODS, METHODS, find_method
from pearl.solvers.first_use import compile_searches
from pearl.solvers.garbage import collected_rarely
from pearl.solvers.incumbents import Incumbents, Listener
from pearl.solvers.method_run import begin_search, build_result_plan, run_method
from pearl.solvers.model.method import OBJECTIVES, ROBUST
from pearl.time_limit import OutOfTimeError, extended
from pearl.verification import RefusedError, check_plan
from pearl_devices.validation import is_whole, quote


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
    robust = ROBUST.get(problem.objective)
    steady = replace(problem, objective="throughput") if robust else problem
    name = method or default_method(steady.objective)
    compile_searches(steady)
    began = time.monotonic()
    search = begin_search(steady, name, checked_seed(seed), time_limit_s, workers)
    offer = None
    if on_incumbent is not None and not robust:
        offer = Incumbents(steady, name, search.seed, on_incumbent).offer
    result = run_method(steady, search, known=known, robust=robust, offer=offer)
    plan = build_result_plan(result, steady, search, time.monotonic() - began)
    plan = replace(plan, problem=problem)
    try:
        checked = check_plan(plan, steady)
    except RefusedError as error:
        raise find_method(name).fault_error(name, f"its {error}") from error
    if certify or (certify is None and plan.status == "optimal"):
        from pearl.solvers.certificate import QUICK
        from pearl.solvers.certificate import certify as certified

        with suppress(OutOfTimeError), extended(math.inf):
            work = math.inf if certify else QUICK
            plan = certified(plan, seconds=time_limit_s, work=work, checked=checked)
    if on_incumbent is not None:
        on_incumbent(plan)
    return plan
