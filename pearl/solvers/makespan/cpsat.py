"""Makespan by constraint programming with OR-Tools' CP-SAT (extra `cpsat`).

The model has an optional interval for every firing, mode and lane, no-overlap on lanes and links (a
cumulative for interchangeable lanes), transfers as delays between devices, and memory as a linear
row; after Laborie, Rogerie, Shaw and Vilim 2018, "IBM ILOG CP Optimizer for scheduling", and Perron
and Didier's CP-SAT. The best list schedule, improved by tabu search, is the hint and the horizon.
The model omits some details (see `cpsat_model`) and is then a relaxation. So its bound is valid,
and the value of a plan is always simulated.
"""

from __future__ import annotations

import importlib.util
import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from pearl.errors import SpecError
from pearl.planning.problem import Problem
from pearl.solvers.makespan import tabu
from pearl.solvers.makespan.cpsat_model import Model
from pearl.solvers.makespan.tabu import search_each
from pearl.solvers.model.dag_instance import DagInstance
from pearl.solvers.model.highs import GRACE_S
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.time_limit import OutOfTimeError
from pearl_devices.extras import install_hint

LARGE = 12
"""Number of firings from which tabu search repays loading its compiled code (assumed)."""

MOMENT = 5_000
"""First moves of tabu search (0.4 s on 240 operations on 2 x AMD EPYC)."""

SHORT = 0.2
"""Work of CP-SAT's first search, in its deterministic seconds (0.4 to 1.4 s on 2 x AMD EPYC)."""

TABU = 0.5
"""Share of the remaining time of a longer tabu search (assumed)."""

WORKERS = 2
"""Largest number of threads, within the number that the process may use."""


def installed() -> bool:
    """Return whether OR-Tools is installed, without importing it."""
    return importlib.util.find_spec("ortools") is not None


def solve(problem: Problem, search: Search) -> Outcome:
    """Return the plan with the least makespan found, and CP-SAT's bound.

    The result is deterministic for a seed if the first search on one thread finishes. With more
    threads, or if time runs out, two calls may differ.

    Raises:
        SpecError: OR-Tools is not installed, or a limit does not apply to a makespan or has no
            rows.
        InfeasibleError: no plan is within the limits.
    """
    if not installed():
        raise SpecError(
            "method 'cpsat' needs OR-Tools, which is not installed: "
            f"{install_hint('cpsat')}, or use method 'tabu'"
        )
    for rule in problem.limits.rules:
        if rule.limit.rows is None:
            raise SpecError(
                f"limits.{rule.limit.key} is {rule.value}; method 'cpsat' does not support this "
                "limit, which has no rows of a program: use method 'tabu' or 'heft', or remove the "
                "limit"
            )
    return search_each(problem, search, partial(_improve, search))


def _improve(
    search: Search,
    it: DagInstance,
    first: Candidate | None,
    below: float,
    floor: float,
    deadline: float,
) -> tuple[Candidate | None, float, bool]:
    """Return (a schedule of a search space that is no worse than `first`, bound, search finished).

    Only schedules with a makespan of at most `below` seconds are searched. Tabu search runs for a
    moment if it applies, then CP-SAT on one thread. Then tabu search gets half of the time, and
    CP-SAT the rest.
    """
    best, seed = first, search.seed
    lanes = tabu.plain_lanes(it) if first and len(it.order) >= LARGE else []
    if best and lanes:
        best = tabu.tabu_search(it, lanes, best, MOMENT, floor, deadline, seed)
    best, floor, finished = _search(it, best, below, floor, deadline, 1, seed, SHORT)
    if best and lanes and not finished and best.cost > floor * (1 + SAME):
        until = time.monotonic() + TABU * (deadline - time.monotonic())
        best = tabu.tabu_search(it, lanes, best, tabu.MOVES, floor, until, seed + 1)
    finished = finished or bool(best and best.cost <= floor * (1 + SAME))
    if not finished and deadline > time.monotonic():
        threads = min(WORKERS, search.workers)
        best, floor, finished = _search(it, best, below, floor, deadline, threads, seed + 2)
    return best, floor, finished or bool(best and best.cost <= floor * (1 + SAME))


def _search(
    it: DagInstance,
    best: Candidate | None,
    below: float,
    floor: float,
    deadline: float,
    threads: int,
    seed: int,
    patience: float = math.inf,
) -> tuple[Candidate | None, float, bool]:
    """Return the better of a schedule and CP-SAT's, the bound, and whether the search finished."""
    try:
        model = Model(it, best, min(below, best.cost) if best else below, floor)
        result, bound, finished = run(model, deadline, threads, seed, patience)
    except OutOfTimeError:
        return best, floor, False
    best = min((f for f in (best, result) if f), key=lambda f: f.cost, default=None)
    return best, max(floor, bound), finished


def run(
    model: Model, deadline: float, threads: int, seed: int, patience: float
) -> tuple[Candidate | None, float, bool]:
    """Return the best schedule of CP-SAT, its bound in seconds, and whether the search finished.

    patience: limit of CP-SAT's deterministic time, which is the same on every machine.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.05)
    parameters.num_workers = threads
    parameters.random_seed = seed % (1 << 31)
    parameters.catch_sigint_signal = False  # Python handles Ctrl-C
    if patience < math.inf:
        parameters.max_deterministic_time = patience
    status = _solve_in_thread(solver, model.model, deadline)
    if status == cp_model.INFEASIBLE:  # no schedule within the horizon
        return None, model.horizon / model.scale, True
    candidate = model.found(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    bound = max(0.0, solver.best_objective_bound / model.scale)
    return candidate, bound, status == cp_model.OPTIMAL


def _solve_in_thread(solver: Any, model: Any, deadline: float) -> Any:
    """Run CP-SAT in a separate thread and return its status. This thread handles signals, and stops
    CP-SAT if one raises an exception or if the time limit has passed."""
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(solver.solve, model)
        try:
            wait([searching], max(0.0, deadline - time.monotonic()) + GRACE_S)
        finally:
            while not searching.done():
                solver.stop_search()
                wait([searching], 0.05)
        return searching.result()
