"""The first schedule of local search: the best of HEFT's, PEFT's and all on one device, or the
start of the search."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from pearl.planning.problem import Problem
from pearl.solvers.methods import heft, peft
from pearl.solvers.methods.moves import build_assignment
from pearl.solvers.methods.relaxation_bounds import any_feasible_schedule, to_plan
from pearl.solvers.model.dag_instance import DagInstance
from pearl.solvers.model.list_schedule import Place, build_schedule
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, without_numbers
from pearl.time_limit import OutOfTimeError, look


def initial_schedule(it: DagInstance, problem: Problem, deadline: float) -> Candidate | None:
    """Return the best simple plan of a search space: HEFT's, PEFT's, or all on one device as far as
    possible; else any plan that satisfies the rules. It may break limits on period, throughput and
    power."""
    free = without_numbers(problem)
    gathered: list[Candidate | None] = []
    listed: list[Candidate | None] = []
    with suppress(OutOfTimeError):  # the quickest constructions come first
        for schedule in _gathered(it):
            gathered.append(schedule)
        for method in (heft, peft):
            if time.monotonic() > deadline:
                break
            listed.append(method.schedule(it))
    candidates = [f for f in (to_plan(f, free) for f in [*listed, *gathered]) if f]
    if not candidates:
        look()
        return to_plan(any_feasible_schedule(it, problem, deadline), free)
    return min(candidates, key=lambda f: f.cost)


def start_in(space: SearchSpace, search: Search) -> Candidate | None:
    """Return the start of a search as a plan of one of its search spaces; None if it belongs to
    another one, or has a mode that the space omits."""
    start = search.start
    if start is None:
        return None
    a, x = start.assignment, space.expansion
    if a.expansion.graph != x.graph or a.expansion.units != x.units:
        return None
    if any(m not in options for m, options in zip(a.modes, space.options, strict=True)):
        return None
    return replace(start, assignment=replace(a, expansion=x, costs=space.costs))


def _gathered(it: DagInstance) -> Iterator[Candidate | None]:
    """Yield plans with every class on one device if possible, else where it is fastest; with one
    lane per device, or with all lanes."""
    p = it.space
    rank = heft.upward_rank(it)
    for device in [d.name for d in p.costs.platform.devices]:
        options: list[int] = [0] * len(p.options)
        for members in p.classes:
            for u in members:
                common = set.intersection(*(set(it.devices[w]) for w in members))
                quick = {
                    d: sum(_quickest(p, w, d)[0] * p.expansion.firings(w) for w in members)
                    for d in common
                }
                where = device if device in common else min(quick, key=lambda d: (quick[d], d))
                options[u] = _quickest(p, u, where)[1]
        for spread in (False, True):
            used = Counter[str]()
            places: list[Place] = []
            for u, o in enumerate(options):
                d = p.options[u][o].device
                places.append((o, used[d] % p.lanes[d] if spread else 0))
                used[d] += 1
            if not p.violates_coupling(build_assignment(p, places)):
                yield build_schedule(it, [-r for r in rank], places).to_candidate()


def _quickest(p: SearchSpace, unit: int, device: str) -> tuple[float, int]:
    return min(
        (m.estimate.latency_s, o) for o, m in enumerate(p.options[unit]) if m.device == device
    )
