"""The front between throughput and power, by ε-constraint: the best throughput under power caps.

Haimes, Lasdon and Wismer 1971. T(W), the best throughput within W watts, is found exactly by the
period form with a cap; where the cap binds, the plan is paced. It never falls with W, is flat where
more power buys nothing, and jumps where only a device that draws power all the time would help.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, replace

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits, bad_time
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, bad_problem
from pearl.planning.plan_validation import plan_timing
from pearl.planning.plans import Plan
from pearl.solvers.model.search_space import longest_s, search_spaces
from pearl.solvers.solver import solve
from pearl_devices.given import is_number, shown

NEAR = 1e-6
"""Relative difference of power below which nothing is looked for between two plans."""

SAME = 1e-8
"""Relative difference below which two throughputs count as equal."""


@dataclass(frozen=True)
class _Point:
    """A plan of the front. exact: no plan has more throughput at its power, nor less power at its
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
    """Between two points: no plan within floor_w watts is faster than `low`. tried: it is known not
    to be empty right below `high`."""

    low: _Point
    high: _Point
    floor_w: float
    tried: bool = False


def pareto(
    graph: TaskGraph,
    costs: CostTable,
    *,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    gap: float = 0.01,
    time_limit_s: float = 60.0,
) -> list[Plan]:
    """Plans by rising power and rising throughput, none of them dominated by any plan.

    The last has the most throughput. The first draws the least power at a period within the limits;
    where they leave it open, at the longest that any plan has that is not slowed down on purpose.
    From the plan with the most work per joule up, neighbours differ by at most `gap` (relative) in
    throughput and in power, or the larger part of the gap is proven empty and the rest, right below
    the upper one, is not larger; below the most work per joule, by at most `gap` in one of the two.
    Plans that a cap slows down say so in `pace_s`.

    Values are throughputs. A plan is `optimal` if that is proven of it and of the stretch down to
    the plan before it, `time_limit` where time ran out, else `feasible`.

    Raises SpecError for arguments that make no sense and InfeasibleError where no plan meets the
    limits.
    """
    problems = bad_problem(graph, costs, limits) + bad_time(time_limit_s)
    if not is_number(gap) or gap <= 0:
        problems.append(
            f"gap is {shown(gap)}; it must be finite and above 0, 0.01 for one per cent"
        )
    if problems:
        raise SpecError(*problems)
    return _Front(graph, costs, limits, gap, time.monotonic() + time_limit_s).plans()


class _Front:
    """One search: the problem, and the time there is for it."""

    def __init__(
        self, graph: TaskGraph, costs: CostTable, limits: Limits, gap: float, deadline: float
    ) -> None:
        self.graph, self.costs, self.gap, self.deadline = graph, costs, gap, deadline
        self.share = (deadline - time.monotonic()) / 8  # of the time, for one solution
        longest = longest_s(graph, limits)
        if longest == math.inf:
            longest = max(p.serial_s for p in search_spaces(graph, costs, limits))
        self.longest_s = longest * (1 + SAME)
        self.limits = replace(limits, period_s=self.longest_s) if longest > 0 else limits

    def plans(self) -> list[Plan]:
        top = self._within(self.limits.power_w)
        if top.power_w <= 0:
            return [self._said(top, True, False)]
        frugal = self._frugal(self.limits, top.plan)
        tiny = NEAR * NEAR * top.power_w  # stands for 0 W, which is no cap
        bottom, sure = self._least_power(frugal, tiny)
        points = [bottom, top]
        open_below: dict[float, bool] = {}  # power of who is above it → whether time ran out
        if not sure:
            open_below[bottom.power_w] = time.monotonic() > self.deadline
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
                open_below |= {s.high.power_w: True for _, _, s in heap}
                break
            _, _, s = heapq.heappop(heap)
            ratio = s.high.power_w / s.floor_w
            edge = ratio <= 1 + self.gap and not s.tried
            cap = s.high.power_w * (1 - NEAR) if edge else s.floor_w * math.sqrt(ratio)
            try:
                point = self._within(cap)
            except InfeasibleError:
                open_below[s.high.power_w] = time.monotonic() > self.deadline
                continue
            if point.rate <= s.low.rate * (1 + SAME):
                if not point.exact:
                    open_below[s.high.power_w] = point.plan.status == "time_limit"
                elif not edge:
                    put(replace(s, floor_w=cap))
                continue
            if edge and point.rate >= s.high.rate / (1 + self.gap):
                put(replace(s, tried=True))
                continue
            points.append(point)
            put(_Gap(s.low, point, s.floor_w))
            put(_Gap(point, s.high, cap, tried=edge))
        return self._told(points, open_below)

    def _size(self, s: _Gap, knee: float) -> float:
        """Width of a stretch in units of the gap asked; 0 where no plan can lie between."""
        if s.high.rate <= s.low.rate * (1 + SAME) or s.high.power_w <= s.floor_w * (1 + 2 * NEAR):
            return 0.0
        ratios = (s.high.power_w / s.floor_w, s.high.rate / s.low.rate)
        sizes = [math.log(r) / math.log1p(self.gap) * (1 - SAME) for r in ratios]
        return min(sizes) if s.high.power_w <= knee else max(sizes)

    def _seconds(self) -> float:
        return max(0.05, min(self.share, self.deadline - time.monotonic()))

    def _within(self, cap: float | None) -> _Point:
        """The best throughput within a power cap, and of the plans that have it one that draws the
        least."""
        limits = replace(self.limits, power_w=cap)
        fast = solve(self.graph, self.costs, limits=limits, time_limit_s=self._seconds())
        exact = fast.status == "optimal"
        if fast.pace_s is not None or fast.power_w <= 0:
            return _Point(fast, exact)  # where the cap binds, less power would be slower
        as_fast = replace(limits, period_s=fast.period_s * (1 + SAME), min_throughput_per_s=None)
        try:
            frugal = self._frugal(as_fast, fast)
        except InfeasibleError:  # not found in time
            return _Point(fast, False)
        steps = self.graph.env_steps or 1
        exact = exact and frugal.status == "optimal"
        if frugal.power_w >= fast.power_w:
            return _Point(fast, exact)
        value = steps / frugal.period_s
        bound = max(fast.bound_value, value)
        status = "optimal" if exact else max(fast.status, frugal.status)
        plan = replace(
            frugal,
            objective="throughput",
            status=status,
            value=value,
            value_unit=fast.value_unit,
            bound_value=bound,
            gap=max(0.0, 1 - value / bound),
            bound_s=min(fast.bound_s, frugal.period_s),
        )
        return _Point(plan, exact)

    def _frugal(self, limits: Limits, plan: Plan) -> Plan:
        """The plan of least energy an iteration, or the fastest of those that cost nothing."""
        try:
            return solve(
                self.graph,
                self.costs,
                objective="power_efficiency",
                limits=limits,
                time_limit_s=self._seconds(),
            )
        except SpecError:  # an efficiency without bound has no value
            free = replace(limits, power_w=NEAR * NEAR * plan.power_w)
            return solve(self.graph, self.costs, limits=free, time_limit_s=self._seconds())

    def _least_power(self, start: Plan, tiny: float) -> tuple[_Point, bool]:
        """The least power at the longest period, by Newton's method on T(W) = 1 / that period; each
        step takes the best assignment within the power of the one before, slowed down."""
        plan, power = start, math.inf
        point: _Point | None = None
        while time.monotonic() <= self.deadline or point is None:
            a = plan_timing(plan, self.graph, self.costs)[0].assignment
            slowed = a.idle_power_w + a.dynamic_j / self.longest_s
            if slowed >= power * (1 - SAME):
                break
            power = slowed
            try:
                point = self._within(max(power * (1 + SAME), tiny))
            except InfeasibleError:
                break
            plan = point.plan
        if point is None:
            return _Point(start, False), False
        return point, point.exact and time.monotonic() <= self.deadline

    def _told(self, points: list[_Point], open_below: dict[float, bool]) -> list[Plan]:
        """The points that none dominates, by rising power, with their status."""
        found: list[Plan] = []
        best = 0.0
        for p in sorted(points, key=lambda p: (p.power_w, -p.rate)):
            if p.rate > best * (1 + SAME):
                best = p.rate
                late = open_below.get(p.power_w)
                found.append(self._said(p, late is None, bool(late)))
        return found

    def _said(self, p: _Point, closed: bool, late: bool) -> Plan:
        if p.exact and closed:
            return replace(p.plan, status="optimal")
        if late or p.plan.status == "time_limit":
            return replace(p.plan, status="time_limit")
        return replace(p.plan, status="feasible")
