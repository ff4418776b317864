"""Every assignment that a problem allows, by plain enumeration.

The enumeration covers replicas, fusions, slack of every edge from 0 to its limit, modes and lanes.
The only symmetry that it uses is that of interchangeable lanes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.parallel_edges import EdgeKey, key_edges
from pearl.graph.period import expand
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import Mode
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import enumerate_splits
from pearl.planning.timing import Assignment
from pearl.solvers.model.name_checks import check_names
from pearl.solvers.model.search_space import SearchSpace, fusion_choices, space_of
from pearl.time_limit import look

PLANS = 20_000
"""Largest number of assignments, and largest number of orders of one assignment."""


def every_space(problem: Problem) -> list[SearchSpace]:
    """Return every choice of replicas, fused modes and slack within the limits, with every mode.

    Raises:
        SpecError: a name does not exist, or there are more than PLANS choices.
        InfeasibleError: some task has no mode left.
    """
    check_names(problem)
    expand(problem.graph)
    spaces: list[SearchSpace] = []
    first_error: InfeasibleError | None = None
    for split in enumerate_splits(problem.graph, problem.limits):
        part = split_problem(problem, split)
        vectors = _every_slack(part.graph, part.limits)
        for slack, fused in itertools.product(vectors, list(fusion_choices(part.costs))):
            try:
                x = expand(part.graph.with_slack(slack), fused)
            except SpecError:  # a fused call with a deadlock
                continue
            try:
                spaces.append(space_of(x, part, every_mode=True))
            except InfeasibleError as error:
                first_error = first_error or error
            refuse_more(len(spaces), "choices of replicas, fused modes and slack")
    if not spaces and first_error:
        raise first_error
    return spaces


def refuse_more(number: float, what: str) -> None:
    """Raise if more than PLANS things would be enumerated.

    Raises:
        SpecError: the number exceeds PLANS.
    """
    if number > PLANS:
        raise SpecError(
            f"there are more than {PLANS} {what}, the most that are enumerated: use method 'milp'"
        )


def _every_slack(graph: TaskGraph, limits: Limits) -> list[dict[EdgeKey, int]]:
    """Return the slack of every edge with a limit, each from 0 up, by rising sum. The sum of
    prefetch and deferral is within the limit of staleness."""
    keyed = {key: e for key, e in key_edges(graph.edges).items() if e.limit}
    ranges = [range(max(e.slack, getattr(limits, e.limit or "")) + 1) for e in keyed.values()]
    refuse_more(math.prod(float(len(r)) for r in ranges), "choices of slack")
    vectors = []
    for slack in itertools.product(*ranges):
        of = {
            limit: max(
                (n for e, n in zip(keyed.values(), slack, strict=True) if e.limit == limit),
                default=None,
            )
            for limit in ("prefetch", "priority_staleness")
        }
        ahead, deferral = of["prefetch"], of["priority_staleness"]
        if ahead is None or deferral is None or ahead + deferral <= limits.priority_staleness:
            vectors.append(dict(zip(keyed, slack, strict=True)))
    return sorted(vectors, key=lambda v: sum(v.values()))


def count(spaces: Sequence[SearchSpace]) -> int:
    """Count combinations of modes and lanes, before rules that couple tasks; stop above PLANS."""
    return sum(1 for _ in itertools.islice(_every(spaces), PLANS + 1))


def assignments(spaces: Sequence[SearchSpace]) -> Iterator[Assignment]:
    """Yield every assignment of the search spaces that breaks no rule.

    Raises:
        SpecError: there are more than PLANS assignments.
    """
    total = count(spaces)
    if total > PLANS:
        modes = sum(math.prod(len(m) for m in p.options) for p in spaces)
        raise SpecError(
            f"this graph has {modes} choices of modes and more than {PLANS} assignments to lanes; "
            f"at most {PLANS} are enumerated: use method 'milp'"
        )
    for space, assignment in _every(spaces):
        if not space.violates_coupling(assignment):
            yield assignment


def _every(spaces: Sequence[SearchSpace]) -> Iterator[tuple[SearchSpace, Assignment]]:
    for space in spaces:
        for modes in itertools.product(*space.options):
            if any(len({modes[u].device for u in c}) > 1 for c in space.classes):
                continue
            look()
            for lanes in _partitions(modes, space.lanes, (), {}):
                look()
                yield space, Assignment(space.expansion, space.costs, modes, lanes)


def _partitions(
    modes: Sequence[Mode], most: Mapping[str, int], lanes: tuple[int, ...], used: Mapping[str, int]
) -> Iterator[tuple[int, ...]]:
    """Yield lane numbers unit by unit; a new lane of a device takes the next number."""
    u = len(lanes)
    if u == len(modes):
        yield lanes
        return
    device = modes[u].device
    have = used.get(device, 0)
    for lane in range(min(have + 1, most[device])):
        yield from _partitions(modes, most, (*lanes, lane), {**used, device: max(have, lane + 1)})
