"""Optional fusions as columns: the bound holds for every set, and the best set is found."""

import pytest

from benchmarks.solver.loops import fused_pairs, rollout
from pearl import solve
from pearl.planning.problem import Problem
from pearl.solvers.model import fusion_space
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.period.fusion_form import FusionForm
from pearl.verification import check_plan


@pytest.mark.parametrize("seed", range(3))
def test_the_relaxed_program_bounds_every_set_of_fused_calls(seed, monkeypatch):
    monkeypatch.setattr(fusion_space, "FEW", 1)
    graph, costs = fused_pairs(seed, 2, 2)
    problem = Problem(graph, costs)
    (fusions,) = fusion_space.fusion_spaces(problem)
    bound, chosen, finished = FusionForm(fusions, problem, None).choose(float("inf"), 60.0)
    assert finished
    columns = solve(graph, costs)
    monkeypatch.setattr(fusion_space, "FEW", 99)
    sets = solve(graph, costs)
    assert len(search_spaces(problem)) == 4
    assert chosen is not None
    assert bound <= sets.period_s * (1 + 1e-6)
    assert (columns.status, sets.status) == ("optimal", "optimal")
    assert columns.period_s == pytest.approx(sets.period_s)


def test_ten_optional_fusions_are_proved_as_fast_as_one():
    graph, costs = fused_pairs(1, 10, 1)
    plan = solve(graph, costs, time_limit_s=20.0)
    check_plan(plan, Problem(graph, costs))
    assert plan.gap < 0.05
    assert any(t.fused_with for t in plan.tasks)


def test_a_rollout_whose_update_runs_between_its_steps_is_proved():
    graph, costs = rollout(1, 32, lag=1)
    assert solve(graph, costs, time_limit_s=20.0).status == "optimal"
