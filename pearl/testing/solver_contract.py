"""`SolverContract`: the tests that every method of `solve` passes.

The contract of a method by its name in `METHODS`, or by its module path:

    from pearl.testing import SolverContract

    class TestMine(SolverContract):
        method = "my_package.mine"

Tests of an objective for which the method is not registered are skipped. A method may override a
test and give the reason for its exemption.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl.planning.valuation import evaluate_samples
from pearl.solvers import find_method, robust
from pearl.solvers.model.method import OBJECTIVES, ROBUST
from pearl.solvers.solver import solve
from pearl.testing.graphs import devices, loop, mode, random_problem, star
from pearl.verification import check_plan
from pearl_devices import Kernel, Platform

TOLERANCE = 1e-6
"""Relative difference up to which two values count as equal."""


def two_devices(lanes: int = 2, **more: Any) -> Platform:
    """Return devices `a`, the host, and `b`."""
    return star(devices("a", "b", lanes=lanes, **more))


class SolverContract:
    """Tests of one method.

    method: its name in METHODS, or its module path.
    """

    method: str

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives for which the method is registered."""
        return find_method(self.method).objectives

    def solve(self, graph: TaskGraph, costs: CostTable, **options: object) -> Plan:
        """Return a plan by the method, by default for its first objective. Skip the test if the
        method is not registered for `objective`."""
        objective = options.setdefault("objective", self.objectives[0])
        if objective in OBJECTIVES and objective not in self.objectives:
            pytest.skip(f"method {self.method} is not registered for {objective}")
        return solve(graph, costs, method=self.method, **options)  # type: ignore[arg-type]

    def test_one_task_takes_its_time(self) -> None:
        plan = self.solve(loop("x"), CostTable(two_devices(), (mode("x", "a", 2.0),)))
        assert plan.period_s == pytest.approx(2.0)
        assert plan.status == "optimal"
        in_seconds = plan.objective == "makespan"
        assert plan.value_unit == ("s" if in_seconds else "iterations/s")
        assert plan.value == pytest.approx(2.0 if in_seconds else 0.5)

    def test_the_faster_device_is_taken(self) -> None:
        costs = CostTable(two_devices(), (mode("x", "a", 2.0), mode("x", "b", 1.0)))
        assert self.solve(loop("x"), costs).task("x").device == "b"

    def test_power_efficiency_takes_the_frugal_mode(self) -> None:
        modes = (mode("x", "a", 2.0, energy=1.0), mode("x", "b", 1.0, energy=5.0))
        plan = self.solve(loop("x"), CostTable(two_devices(), modes), objective="power_efficiency")
        assert plan.task("x").device == "a"
        assert plan.energy_per_iteration_j == pytest.approx(1.0)
        assert plan.value == pytest.approx(1.0)

    def test_an_unused_device_that_is_off_draws_nothing(self) -> None:
        found = devices("a", "b", idle_power_w=10.0, active_power_w=20.0, when_unused="off")
        costs = CostTable(star(found), (mode("x", "a", 2.0), mode("x", "b", 1.0)))
        plan = self.solve(loop("x"), costs, objective="power_efficiency")
        # on a (the host, always on): 2 s · 10 W; on b: 1 s · (10 W + 10 W)
        assert plan.energy_per_iteration_j == pytest.approx(20.0)

    def test_a_transfer_counts_in_the_cycle(self) -> None:
        modes = (mode("x", "a", 1.0), mode("y", "b", 1.0))
        costs = CostTable(star(devices("a", "b"), 0.25, 10.0), modes)
        plan = self.solve(loop("x", "y", size=5.0), costs)
        assert plan.period_s == pytest.approx(2 + 2 * (0.25 + 0.5))
        assert plan.bottleneck.kind == "cycle"

    def test_memory_sends_a_state_elsewhere(self) -> None:
        found = devices("a", "b", memory_bytes=1e9)
        graph = TaskGraph(
            "g",
            (Task("x", Kernel("x"), writes=("big",)),),
            (Edge("x", "x", tokens_seq=1),),
            {"big": 5e8},
        )
        costs = CostTable(star(found), (mode("x", "a", 2.0), mode("x", "b", 1.0)))
        plan = self.solve(graph, costs, limits=Limits(memory_bytes={"b": 4e8}))
        assert plan.task("x").device == "a"

    def test_memory_that_fits_nowhere_names_state_device_need_and_limit(self) -> None:
        graph = TaskGraph(
            "g",
            (Task("x", Kernel("x"), writes=("replay",)),),
            (Edge("x", "x", tokens_seq=1),),
            {"replay": 8e9},
        )
        costs = CostTable(star(devices("gpu0", memory_bytes=1e9)), (mode("x", "gpu0", 1.0),))
        with pytest.raises(
            InfeasibleError, match=r"memory of gpu0.*state replay needs 8e\+09"
        ) as e:
            self.solve(graph, costs)
        assert e.value.conflict[0]["limit"] == 1e9

    def test_states_that_fit_alone_but_not_together_are_infeasible(self) -> None:
        graph = TaskGraph(
            "g",
            (Task("x", Kernel("x"), writes=("s",)), Task("y", Kernel("y"), writes=("t",))),
            (Edge("x", "y"), Edge("y", "x", tokens_seq=1)),
            {"s": 6e8, "t": 6e8},
        )
        modes = (mode("x", "a", 1.0), mode("y", "a", 1.0))
        costs = CostTable(star(devices("a", memory_bytes=1e9)), modes)
        with pytest.raises(InfeasibleError, match="all tasks together need"):
            self.solve(graph, costs)

    def test_contradicting_pins_name_the_tasks(self) -> None:
        modes = tuple(mode(t, d, 1.0) for t in "xy" for d in "ab")
        limits = Limits(pin={"x": "a", "y": "b"}, together=(("x", "y"),))
        with pytest.raises(InfeasibleError, match=r"x.*pinned to a.*y.*pinned to b"):
            self.solve(loop("x", "y"), CostTable(two_devices(), modes), limits=limits)

    def test_unreachable_throughput_says_what_is_reachable(self) -> None:
        costs = CostTable(two_devices(), (mode("x", "a", 2.0),))
        with pytest.raises(InfeasibleError, match=r"best reachable is at most 0\.5"):
            self.solve(
                loop("x"), costs, objective="throughput", limits=Limits(min_throughput_per_s=1.0)
            )

    def test_unreachable_period_says_what_is_reachable(self) -> None:
        costs = CostTable(two_devices(), (mode("x", "a", 2.0),))
        with pytest.raises(InfeasibleError, match="shortest reachable is at least 2 s"):
            self.solve(loop("x"), costs, objective="throughput", limits=Limits(period_s=1.0))

    def test_a_power_cap_slows_the_plan_down(self) -> None:
        costs = CostTable(
            star(devices("a", idle_power_w=10.0, active_power_w=20.0)),
            (mode("x", "a", 1.0, energy=10.0),),
        )
        plan = self.solve(loop("x"), costs, objective="throughput", limits=Limits(power_w=15.0))
        assert plan.pace_s == pytest.approx(2.0)
        assert plan.period_s == pytest.approx(2.0)
        assert plan.power_w == pytest.approx(15.0)

    def test_a_power_cap_below_idle_is_infeasible(self) -> None:
        costs = CostTable(
            star(devices("a", idle_power_w=10.0, active_power_w=20.0)),
            (mode("x", "a", 1.0, energy=10.0),),
        )
        with pytest.raises(InfeasibleError, match="power limit of 9 W"):
            self.solve(loop("x"), costs, objective="throughput", limits=Limits(power_w=9.0))

    def test_lane_width_is_shared_out(self) -> None:
        found = devices("a", lanes=2, width=3)
        two = TaskGraph("two", loop("x", "y").tasks, tuple(Edge(t, t, tokens_seq=1) for t in "xy"))
        narrow = CostTable(star(found), (mode("x", "a", 1.0, width=2), mode("y", "a", 1.0)))
        wide = CostTable(star(found), (mode("x", "a", 1.0, width=2), mode("y", "a", 1.0, width=2)))
        assert self.solve(two, narrow).period_s == pytest.approx(1.0)
        assert self.solve(two, wide).period_s == pytest.approx(2.0)

    def test_max_lanes_one_puts_all_on_one_lane(self) -> None:
        modes = tuple(mode(t, d, 1.0) for t in "xy" for d in "ab")
        plan = self.solve(
            loop("x", "y", tokens=2), CostTable(two_devices(), modes), limits=Limits(max_lanes=1)
        )
        assert len({t.lane for t in plan.tasks}) == 1
        assert plan.period_s == pytest.approx(2.0)

    def test_a_fused_mode_replaces_the_sum(self) -> None:
        modes = (mode("x", "a", 1.0), mode("y", "a", 1.0), mode(("x", "y"), "a", 1.2))
        plan = self.solve(loop("x", "y"), CostTable(two_devices(), modes))
        assert plan.period_s == pytest.approx(1.2)
        assert plan.task("x").fused_with == ("y",)
        assert [e.task for e in plan.lanes[0].order] == ["x", "y"]

    def test_a_fused_call_that_waits_for_itself_is_not_taken(self) -> None:
        modes = (*(mode(t, "a", 1.0) for t in "xyz"), mode(("x", "z"), "a", 0.1))
        plan = self.solve(loop("x", "y", "z"), CostTable(two_devices(), modes))
        assert plan.period_s == pytest.approx(3.0)

    def test_slack_is_taken_up_to_the_limit_and_given_back_where_useless(self) -> None:
        edges = (
            Edge("x", "y", limit="prefetch", bytes=1.0),
            Edge("y", "x", tokens_seq=1),
            Edge("x", "x", tokens_seq=1),
            Edge("y", "y", tokens_seq=1),
        )
        graph = TaskGraph("g", loop("x", "y").tasks, edges)
        costs = CostTable(star(devices("a", "b")), (mode("x", "a", 1.0), mode("y", "b", 1.0)))
        assert self.solve(graph, costs).period_s == pytest.approx(2.0)
        plan = self.solve(graph, costs, objective="throughput", limits=Limits(prefetch=5))
        assert plan.period_s == pytest.approx(1.0)
        assert plan.edges[0].slack == 1

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_plans_of_random_graphs_survive_json_and_their_own_check(self, objective: str) -> None:
        for seed in range(12):
            graph, costs = random_problem(seed, most_tasks=4, most_devices=2)
            try:
                plan = self.solve(graph, costs, objective=objective)
            except InfeasibleError:
                continue
            text = json.dumps(plan.to_json(), allow_nan=False)
            again = load_plan(json.loads(text))
            check_plan(again, Problem(graph, costs, objective=plan.objective))
            assert again == plan
            worse, better = sorted((plan.value, plan.bound_value))
            assert plan.bound_value == (worse if objective == "makespan" else better)
            assert plan.gap == pytest.approx(1 - worse / better, abs=1e-12)
            assert (plan.status == "optimal") == (plan.gap <= 1e-6)
            assert math.isclose(plan.power_w * plan.period_s, plan.energy_per_iteration_j)

    def test_the_same_call_gives_the_same_plan(self) -> None:
        graph, costs = random_problem(3, most_tasks=4, most_devices=2)
        first, second = (self.solve(graph, costs, seed=1) for _ in range(2))
        assert replace(first, solve_s=0.0) == replace(second, solve_s=0.0)

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_no_plan_is_worse_than_a_known_one(self, objective: str) -> None:
        if objective not in self.objectives:
            pytest.skip(f"method {self.method} is not registered for {objective}")
        for seed in (1, 2):
            graph, costs = random_problem(seed, most_tasks=4, most_devices=3)
            known = solve(graph, costs, objective=objective, method="pearl.testing.exhaustive")
            plan = self.solve(graph, costs, objective=objective, known=known)
            if objective == "makespan":
                assert plan.value <= known.value * (1 + TOLERANCE)
            else:
                assert plan.value >= known.value * (1 - TOLERANCE)

    @pytest.mark.parametrize("objective", ROBUST)
    def test_no_plan_is_worse_than_a_known_one_under_the_draws(
        self, objective: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compare seconds over the least known seconds of each sample. Nothing is enumerated,
        because that would close the gap of so small a problem by any method."""
        if "throughput" not in self.objectives:
            pytest.skip(f"method {self.method} is not registered for throughput")
        monkeypatch.setattr(robust, "FEW", 0)
        graph, costs = random_problem(18, most_tasks=3, most_devices=2)
        modes = []
        for m in costs.modes:
            low_s, high_s = m.estimate.latency_s / 3, m.estimate.latency_s * 3
            modes.append(replace(m, estimate=replace(m.estimate, low_s=low_s, high_s=high_s)))
        costs = replace(costs, modes=tuple(modes))
        known = solve(graph, costs, objective=objective, method="pearl.testing.exhaustive")
        regret = self.solve(graph, costs, objective=objective, known=known).regret
        assert regret is not None
        timed, orders, _ = plan_orders(known, Problem(graph, costs))
        seconds = evaluate_samples(timed, orders, Draws(regret.draws, regret.seed)).period_s
        own = seconds / regret.least_s - 1
        if objective == "robust":
            assert regret.mean <= own.mean() + TOLERANCE
        else:
            assert regret.worst <= own.max() + TOLERANCE

    def test_unknown_objectives_and_names_are_spec_errors_naming_what_is_allowed(self) -> None:
        costs = CostTable(two_devices(), (mode("x", "a", 1.0),))
        with pytest.raises(SpecError, match=r"'latency'.*throughput"):
            self.solve(loop("x"), costs, objective="latency")
        with pytest.raises(SpecError, match=r"no task 'z'.*'x'"):
            self.solve(loop("x"), costs, limits=Limits(pin={"z": "a"}))
        with pytest.raises(SpecError, match=r"no device 'c'.*'a', 'b'"):
            self.solve(loop("x"), costs, limits=Limits(pin={"x": "c"}))
