"""The front of throughput and power, by ε-constraint: the best throughput under power caps.

Haimes, Lasdon and Wismer 1971. The period form with a cap finds T(W), the best throughput within W
watts, exactly; if the cap binds, the plan is paced. T never falls with W. It is flat where more
power gains nothing, and jumps where a device that draws power all the time starts to help.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pearl.errors import InfeasibleError, SpecError
from pearl.files import write_atomically
from pearl.graph.limits import Limits, time_limit_faults
from pearl.notebook import HasPage
from pearl.planning.draws import Draws
from pearl.planning.plan_validation import plan_orders, plan_timing
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.planning.valuation import build_bands, evaluate_samples
from pearl.solvers.model.search_space import longest_s, search_spaces
from pearl.solvers.solver import solve_problem
from pearl_devices.validation import is_number, quote

NEAR = 1e-6
"""Relative difference of power below which no plan is searched between two plans."""

SAME = 1e-8
"""Relative difference below which two throughputs count as equal."""


@dataclass(frozen=True)
class FrontAssignment:
    """One assignment of the tasks to devices, variants and lanes, and its part of a front.

    plans: the points of the front with this assignment, by rising power. All but the fastest are
        that plan slowed down: an iteration costs the same joules above idle, so between them power
        is a linear function of the rate.
    """

    plans: tuple[Plan, ...]

    @property
    def fastest(self) -> Plan:
        return self.plans[-1]

    @property
    def slowest(self) -> Plan:
        return self.plans[0]


class Front(HasPage, list[Plan]):
    """Plans by rising power and rising throughput; no plan dominates another.

    open_w: ranges of power (low, high), W, in which better plans may be missing, because not
        proved.
    """

    def __init__(
        self, plans: Iterable[Plan] = (), open_w: Iterable[tuple[float, float]] = ()
    ) -> None:
        super().__init__(plans)
        self.open_w = tuple(open_w)

    PAGE: ClassVar[str] = "pearl.report.front_page:front_page"

    def save(self, path: str | Path) -> None:
        """Write the front as a page, completely or not at all.

        Raises:
            SpecError: the suffix is not .html.
        """
        if Path(path).suffix.lower() != ".html":
            raise SpecError(
                f"front {path}: the suffix must be .html; `Plan.save` writes its plans as JSON"
            )
        write_atomically(path, self._html().encode())

    @property
    def assignments(self) -> tuple[FrontAssignment, ...]:
        """Return the assignments of the plans, each with its plans, by rising power."""
        return front_assignments(self)

    @property
    def paced(self) -> tuple[Plan, ...]:
        """The plans that are slowed down on purpose."""
        return tuple(p for p in self if p.pace_s is not None)


def front_assignments(plans: Sequence[Plan]) -> tuple[FrontAssignment, ...]:
    """Return the assignments of some plans, each with its plans, in the order of the fastest."""
    by_assignment: dict[object, list[Plan]] = {}
    for p in plans:
        where = ((t.task, t.replica, t.device, t.lane, t.variant, t.width) for t in p.tasks)
        calls = ((t.fused_with, t.shares) for t in p.tasks)
        by_assignment.setdefault((*where, *calls), []).append(p)
    rows = [
        FrontAssignment(tuple(sorted(some, key=lambda p: p.power_w)))
        for some in by_assignment.values()
    ]
    return tuple(sorted(rows, key=lambda s: s.fastest.power_w))


@dataclass(frozen=True)
class _Point:
    """A plan of the front. exact: no plan has more throughput at this power, or less power at this
    throughput."""

    plan: Plan
    exact: bool

    @property
    def power_w(self) -> float:
        return self.plan.power_w

    @property
    def rate(self) -> float:
        return 1 / self.plan.period_s


@dataclass(frozen=True)
class _Gap:
    """A range between two points: no plan within floor_w watts is faster than `low`. tried: a plan
    just below `high` was found."""

    low: _Point
    high: _Point
    floor_w: float
    tried: bool = False


def front_of_problem(problem: Problem, *, gap: float = 0.01, time_limit_s: float = 60.0) -> Front:
    """Return plans by rising power and rising throughput; no plan dominates another. The problem's
    objective is ignored.

    The last plan has the most throughput. The first draws the least power at a period within the
    limits; without such a limit, at the longest period of any plan not slowed down on purpose. From
    the plan with the most work per joule up, neighbours differ by at most `gap` (relative) in
    throughput and in power. A larger gap remains only if its larger part is proven empty; the rest,
    just below the upper plan, is at most `gap`. Below the most work per joule, neighbours differ by
    at most `gap` in throughput or in power. Plans that a cap slows down have a `pace_s`, and bands
    of that pace.

    Values are throughputs, with their statuses, as in a plan of `solve` within that power. `open_w`
    of the result gives ranges in which the front is not proved to be complete; `assignments` groups
    the plans that are slowed-down versions of one plan.

    Raises:
        SpecError: an argument is invalid.
        InfeasibleError: no plan meets the limits.
    """
    problems = time_limit_faults(time_limit_s)
    if not is_number(gap) or gap <= 0:
        problems.append(
            f"gap is {quote(gap)}; it must be finite and above 0, 0.01 for one per cent"
        )
    if problems:
        raise SpecError(*problems)
    problem = replace(problem, objective="throughput")
    return _Front(problem, gap, time.monotonic() + time_limit_s).plans()


class _Front:
    """One search: the problem, and the time limit."""

    def __init__(self, problem: Problem, gap: float, deadline: float) -> None:
        self.problem, self.gap, self.deadline = problem, gap, deadline
        self.share = (deadline - time.monotonic()) / 8  # of the time, for one solution
        limits = problem.limits
        longest = longest_s(problem.graph, limits)
        if longest == math.inf:
            longest = max(space.serial_s for space in search_spaces(problem))
        self.longest_s = longest * (1 + SAME)
        self.limits = replace(limits, period_s=self.longest_s) if longest > 0 else limits

    def plans(self) -> Front:
        top = self._fastest_within(self.limits.power_w)
        if top.power_w <= 0:
            return Front([top.plan])
        frugal = self._least_energy_plan(self.limits, top.plan)
        tiny = NEAR * NEAR * top.power_w  # instead of 0 W, which means no cap
        bottom, sure = self._least_power(frugal, tiny)
        points = [bottom, top]
        open_below = set() if sure else {bottom.power_w}  # power of the plan above it
        knee = frugal.power_w * (1 - NEAR)
        heap: list[tuple[float, int, _Gap]] = []
        number = 0

        def put(stretch: _Gap) -> None:
            nonlocal number
            size = self._size(stretch, knee)
            if size > 1:
                number += 1
                heapq.heappush(heap, (-size, number, stretch))

        put(_Gap(bottom, top, max(bottom.power_w, tiny)))
        while heap:
            if time.monotonic() > self.deadline:
                open_below |= {s.high.power_w for _, _, s in heap}
                break
            _, _, s = heapq.heappop(heap)
            ratio = s.high.power_w / s.floor_w
            edge = ratio <= 1 + self.gap and not s.tried
            cap = s.high.power_w * (1 - NEAR) if edge else s.floor_w * math.sqrt(ratio)
            try:
                point = self._fastest_within(cap, s.high.plan)
            except InfeasibleError:
                open_below.add(s.high.power_w)
                continue
            if point.rate <= s.low.rate * (1 + SAME):
                if not point.exact:
                    open_below.add(s.high.power_w)
                elif not edge:
                    put(replace(s, floor_w=cap))
                continue
            if edge and point.rate >= s.high.rate / (1 + self.gap):
                put(replace(s, tried=True))
                continue
            points.append(point)
            put(_Gap(s.low, point, s.floor_w))
            put(_Gap(point, s.high, cap, tried=edge))
        return self._undominated(points, open_below)

    def _size(self, s: _Gap, knee: float) -> float:
        """Return the width of a range in units of the requested gap; 0 if it can have no plan."""
        if s.high.rate <= s.low.rate * (1 + SAME) or s.high.power_w <= s.floor_w * (1 + 2 * NEAR):
            return 0.0
        ratios = (s.high.power_w / s.floor_w, s.high.rate / s.low.rate)
        sizes = [math.log(r) / math.log1p(self.gap) * (1 - SAME) for r in ratios]
        return min(sizes) if s.high.power_w <= knee else max(sizes)

    def _seconds(self) -> float:
        return max(0.05, min(self.share, self.deadline - time.monotonic()))

    def _fastest_within(self, cap: float | None, known: Plan | None = None) -> _Point:
        """Return the best throughput within a power cap, with the least power among such plans.

        known: a plan that the cap may slow down.
        """
        limits, seconds = replace(self.limits, power_w=cap), self._seconds()
        capped = replace(self.problem, limits=limits)
        fast = solve_problem(capped, time_limit_s=seconds, known=known)
        exact = fast.status == "optimal"
        if fast.pace_s is not None or fast.power_w <= 0:
            return _Point(fast, exact)  # if the cap binds, a plan with less power is slower
        as_fast = replace(limits, period_s=fast.period_s * (1 + SAME), min_throughput_per_s=None)
        try:
            frugal = self._least_energy_plan(as_fast, fast)
        except InfeasibleError:  # none was found in time
            return _Point(fast, False)
        steps = self.problem.graph.env_steps or 1
        exact = exact and frugal.status == "optimal"
        if frugal.power_w >= fast.power_w:
            return _Point(fast, exact)
        value = steps / frugal.period_s
        bound = max(fast.bound_value, value)
        plan = replace(
            frugal,
            objective="throughput",
            status=fast.status,
            value=value,
            value_unit=fast.value_unit,
            bound_value=bound,
            bound_from=fast.bound_from,
            gap=max(0.0, 1 - value / bound),
            bound_s=min(fast.bound_s, frugal.period_s),
        )
        return _Point(plan, exact)

    def _least_energy_plan(self, limits: Limits, plan: Plan) -> Plan:
        """Return the plan of least energy per iteration, or the fastest plan without energy."""
        try:
            efficient = replace(self.problem, limits=limits, objective="power_efficiency")
            return solve_problem(efficient, time_limit_s=self._seconds(), known=plan)
        except SpecError:  # an infinite efficiency has no value
            free = replace(limits, power_w=NEAR * NEAR * plan.power_w)
            capped = replace(self.problem, limits=free)
            return solve_problem(capped, time_limit_s=self._seconds())

    def _least_power(self, start: Plan, tiny: float) -> tuple[_Point, bool]:
        """Return the least power at the longest period, by Newton's method on T(W) = 1 / period.
        Each step takes the best assignment within the power of the step before, slowed down."""
        plan, power = start, math.inf
        point: _Point | None = None
        while time.monotonic() <= self.deadline or point is None:
            a = plan_timing(plan, self.problem)[0].assignment
            slowed = a.idle_power_w + a.dynamic_j / self.longest_s
            if slowed >= power * (1 - SAME):
                break
            power = slowed
            try:
                point = self._fastest_within(max(power * (1 + SAME), tiny), plan)
            except InfeasibleError:
                break
            plan = point.plan
        if point is None:
            return _Point(start, False), False
        return point, point.exact and time.monotonic() <= self.deadline

    def _undominated(self, points: list[_Point], open_below: set[float]) -> Front:
        """Return the points that no other point dominates, by rising power."""
        plans: list[Plan] = []
        gaps: list[tuple[float, float]] = []
        best = 0.0
        for p in sorted(points, key=lambda p: (p.power_w, -p.rate)):
            if p.rate > best * (1 + SAME):
                best = p.rate
                if p.power_w in open_below or not p.exact:
                    gaps.append((plans[-1].power_w if plans else 0.0, p.power_w))
                plans.append(self._update_bands(p.plan))
        return Front(plans, gaps)

    def _update_bands(self, plan: Plan) -> Plan:
        """Return the plan with the bands of its pace instead of those of the search's power cap. In
        a sample with more watts, such a plan is no slower. A user's limit holds in each sample."""
        most_w = self.limits.power_w
        at_limit = most_w is not None and plan.power_w >= most_w * (1 - NEAR)
        timed, orders, held = plan_orders(plan, self.problem)
        draws, pace_s = Draws(), None if at_limit else plan.pace_s
        worth = evaluate_samples(timed, orders, draws, held=held, power_w=most_w, pace_s=pace_s)
        g = timed.assignment.expansion.graph
        return replace(plan, bands=build_bands(worth, draws, g.env_steps, g.updates, g.batch))
