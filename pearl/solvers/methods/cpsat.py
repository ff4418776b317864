"""Makespan by constraint programming with OR-Tools' CP-SAT (extra `cpsat`).

An optional interval for every firing, mode and lane; no-overlap on lanes and links (a cumulative
where equal lanes are interchangeable), transfers as delays between devices, memory as a linear row;
after Laborie, Rogerie, Shaw and Vilim 2018, "IBM ILOG CP Optimizer for scheduling", and Perron and
Didier's CP-SAT. The best schedule of HEFT and local search is hint and horizon. Where the model
leaves something out (see `cpsat_model`) it is a relaxation: its bound stays a bound, and the value
is always that of the plan's own simulation.
"""

from __future__ import annotations

import importlib.util
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from pearl.errors import SpecError
from pearl.planning.problem import Problem
from pearl.solvers.infeasible.iis import no_plan_error
from pearl.solvers.methods import local_search
from pearl.solvers.methods.cpsat_model import Model
from pearl.solvers.methods.first_schedule import initial_schedule, start_in
from pearl.solvers.model.bounds import ALL, CostBound
from pearl.solvers.model.dag_instance import DagInstance, build_instance, least_s, makespan_spaces
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import SAME, Candidate, Outcome
from pearl.solvers.model.solver_process import GRACE_S
from pearl.time_limit import OutOfTimeError, beside

MOMENT = 5_000
"""Moves of tabu search at first (0.4 s on 240 operations here)."""

SHORT = 0.2
"""Work of CP-SAT's first search, in its deterministic seconds (0.4 to 1.4 s here)."""

BESIDE = 0.5
"""Share of the time left in which local search runs beside CP-SAT."""

COMPILING = 0.9
"""The same share where tabu search has to be compiled first."""

WORKERS = 2
"""Threads at most (and never more than the process may use)."""


def installed() -> bool:
    """Whether OR-Tools is there; does not import it."""
    return importlib.util.find_spec("ortools") is not None


def solve(problem: Problem, search: Search) -> Outcome:
    """The plan with the least makespan found, and CP-SAT's bound.

    Deterministic by seed where the first search on one thread finishes; with more threads, or when
    time runs out, two calls may differ.

    Raises:
        SpecError: OR-Tools is not installed, or a limit does not apply to a makespan.
        InfeasibleError: no plan meets the limits.
    """
    if not installed():
        raise SpecError(
            "method 'cpsat' needs OR-Tools, which is not installed: "
            "pip install 'pearl-toolkit[cpsat]', or use method 'local_search'"
        )
    deadline = search.deadline
    spaces = makespan_spaces(problem)
    cases = [build_instance(p) for p in spaces]
    starts_of = [_start(it, problem, search) for it in cases]
    candidates = [f for f in starts_of if f]
    if not candidates:
        raise no_plan_error(problem, search)
    best = min(candidates, key=lambda f: f.cost)
    search.offer(best)
    least, timed_out = ALL, False
    for number, (it, own) in enumerate(zip(cases, starts_of, strict=True)):
        floor, source = 0.0, "path"
        try:
            floor = longest_s = least_s(it, deadline)
            if own and floor < best.cost * (1 - SAME):
                left = deadline - time.monotonic()
                until = time.monotonic() + left / (len(spaces) - number)
                below = min(best.cost, own.cost)
                result, floor, finished = improve(
                    it, problem, own, below, floor, until, search.seed, search.workers
                )
                timed_out |= not finished
                source = "search" if floor > longest_s else source
                best = min(best, result, key=lambda f: f.cost)
                search.offer(best)
        except OutOfTimeError:
            timed_out = True
        least = min(least, CostBound(floor, source if floor > 0 else ""))
    return Outcome(best, min(least.cost, best.cost), timed_out, least.source)


def _start(it: DagInstance, problem: Problem, search: Search) -> Candidate | None:
    """The better of the local search's first schedule and the search's own."""
    first = initial_schedule(it, problem, search.deadline)
    both = [f for f in (start_in(it.space, search), first) if f]
    return min(both, key=lambda f: f.cost, default=None)


def improve(
    it: DagInstance,
    problem: Problem,
    best: Candidate,
    below: float,
    floor: float,
    deadline: float,
    seed: int,
    workers: int,
) -> tuple[Candidate, float, bool]:
    """A better schedule of a search space than `best`, its own, if there is one of at most `below`
    seconds and it is found; the proven bound; whether the search was finished.

    Tabu search for a moment where it applies and is compiled, CP-SAT on one thread for another;
    then local search beside CP-SAT for half of the time, and CP-SAT alone from the best of both.
    """
    lanes = local_search.plain_lanes(it) if len(it.order) >= local_search.LARGE else []
    cold = bool(lanes) and not local_search.is_compiled()
    if lanes and not cold:
        best = local_search.tabu_search(it, lanes, best, MOMENT, floor, deadline, seed)
    threads = min(WORKERS, workers)
    below = min(below, best.cost)
    best, floor, finished = _search(it, best, below, floor, deadline, 1, seed, SHORT)
    if best.cost <= floor * (1 + SAME):
        return best, floor, True
    if finished:  # the model leaves something out, and its best schedule is not as good as it says
        other = local_search.improve(it, best, problem, deadline, seed + 1)
        return min(best, other or best, key=lambda f: f.cost), floor, True
    share = COMPILING if cold else BESIDE
    until = time.monotonic() + share * (deadline - time.monotonic())
    search, given_up = local_search.improve, threading.Event()
    call = beside(given_up, search, it, best, problem, until, seed + 1, enough=floor)
    with ThreadPoolExecutor(1) as pool:
        other_search = pool.submit(call)
        try:
            if threads > 1:
                some = threads - 1
                best, floor, finished = _search(it, best, below, floor, until, some, seed + 1)
            with suppress(OutOfTimeError):
                best = min(best, other_search.result() or best, key=lambda f: f.cost)
        except BaseException:
            given_up.set()
            raise
    if finished or best.cost <= floor * (1 + SAME):
        return best, floor, True
    if deadline > time.monotonic():
        best, floor, finished = _search(it, best, below, floor, deadline, threads, seed + 2)
    return best, floor, finished or best.cost <= floor * (1 + SAME)


def _search(
    it: DagInstance,
    best: Candidate,
    below: float,
    floor: float,
    deadline: float,
    threads: int,
    seed: int,
    patience: float = math.inf,
) -> tuple[Candidate, float, bool]:
    """The best of a schedule and what CP-SAT finds, the bound, whether the search was finished."""
    try:
        model = Model(it, best, min(below, best.cost), floor)
        result, bound, finished = run(model, deadline, threads, seed, patience)
    except OutOfTimeError:
        return best, floor, False
    return min(best, result or best, key=lambda f: f.cost), max(floor, bound), finished


def run(
    model: Model, deadline: float, threads: int, seed: int, patience: float
) -> tuple[Candidate | None, float, bool]:
    """The best schedule that CP-SAT finds, its bound in seconds, whether the search was finished.

    patience: CP-SAT's own measure of work at most, the same on every machine.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.05)
    parameters.num_workers = threads
    parameters.random_seed = seed % (1 << 31)
    parameters.catch_sigint_signal = False  # Ctrl-C is Python's
    if patience < math.inf:
        parameters.max_deterministic_time = patience
    status = _solve_in_thread(solver, model.model, deadline)
    if status == cp_model.INFEASIBLE:  # nothing within the horizon
        return None, model.horizon / model.scale, True
    candidate = model.found(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    bound = max(0.0, solver.best_objective_bound / model.scale)
    return candidate, bound, status == cp_model.OPTIMAL


def _solve_in_thread(solver: Any, model: Any, deadline: float) -> Any:
    """CP-SAT's status, from a thread of its own: this one hears signals, and tells it to stop where
    one raises or the time is long up."""
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(solver.solve, model)
        try:
            wait([searching], max(0.0, deadline - time.monotonic()) + GRACE_S)
        finally:
            while not searching.done():
                solver.stop_search()
                wait([searching], 0.05)
        return searching.result()
