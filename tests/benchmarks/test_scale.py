"""What must hold of the simulation at scale, whatever its figures."""

import numpy as np
import pytest

from benchmarks import scale
from benchmarks.scale import LATENCY_S, Setup, Work
from pearl.planning.timing import delay_s
from pearl_devices import Link

WORK = Work("w", 100, 0.02, 100.0, 1e5, 1e-6, 1e-4, 50)
SETUPS = [
    Setup(WORK, nodes, 1e9, lag, learners)
    for nodes, learners in ((1, 1), (5, 1), (40, 1), (40, 4))
    for lag in (0, 1)
]


def even(nodes, iterations=120):
    return np.ones((iterations, nodes))


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_without_stragglers_the_clock_says_the_plans_period(setup):
    seconds, _ = scale.in_order(setup, even(setup.nodes))
    assert seconds == pytest.approx(scale.period_s(setup), rel=1e-9)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_no_iteration_is_shorter_than_any_lane_is_taken(setup):
    draws = scale.factors(setup.nodes, 120, 0.3, seed=1)
    bounds = scale.Setup.bounds_s(setup)
    bounds.pop("acting")  # of the mean, which draws may be below
    assert scale.period_s(setup) >= max(setup.bounds_s().values()) * (1 - 1e-12)
    assert scale.in_order(setup, draws)[0] >= max(bounds.values()) * (1 - 1e-9)


def test_one_node_in_lock_step_is_the_sum_of_its_parts():
    one = Setup(WORK, 1, 1e9)
    parts = WORK.act_s + one.in_s + LATENCY_S + WORK.learn_s + one.out_s + LATENCY_S
    assert scale.period_s(one) == pytest.approx(parts)
    assert scale.any_order(one, even(1)).iteration_s == pytest.approx(parts)
    assert scale.any_order(one, even(1)).age_mean == 0.0


def test_a_message_costs_what_a_plan_says_of_its_link():
    link = Link("a", "b", LATENCY_S, 1e9, scale.MESSAGE_S, paid_by="link")
    one = Setup(WORK, 1, 1e9)
    size = WORK.rows * WORK.row_bytes
    assert one.in_s + LATENCY_S == pytest.approx(link.per_message_s + delay_s(link, size))


def test_more_nodes_never_pass_the_rate_of_one_learner():
    most = 1 / (WORK.learn_s / WORK.rows)
    rates = [n * WORK.rows / scale.period_s(Setup(WORK, n, 1e12, 1)) for n in (1, 10, 100, 400)]
    assert rates == sorted(rates)
    assert rates[-1] <= most
    held = Setup(WORK, 400, 1e9)
    free = scale.any_order(held, scale.factors(400, 60, 0.3, seed=2))
    assert free.iteration_s >= max(held.bounds_s().values()) * (1 - 1e-3)  # some are under way


def test_stragglers_cost_most_in_order_without_lag_and_least_in_any_order():
    nodes = 30
    work = Work("acting", 100, 0.1, 1.0, 1.0, 0.0, 1e-6, 50)
    draws = scale.factors(nodes, 200, 0.3, seed=3)
    sync = scale.in_order(Setup(work, nodes, 1e12), draws)[0]
    late = scale.in_order(Setup(work, nodes, 1e12, 1), draws)[0]
    free = scale.any_order(Setup(work, nodes, 1e12), draws).iteration_s
    slowest = float(draws[scale.WARM :].max(axis=1).mean()) * work.act_s
    assert sync > slowest
    assert free < late < sync
    assert free > work.act_s * 0.98


def test_rows_wait_in_the_queue_of_a_learner_that_holds_the_loop_and_are_old():
    work = Work("held", 100, 1e-3, 1.0, 1.0, 0.0, 1e-2, 50)
    held = scale.any_order(Setup(work, 50, 1e12), scale.factors(50, 100, 0.3, seed=6))
    assert held.age_mean == pytest.approx(49 / 50, abs=0.03)  # all others come in between
    acting = scale.any_order(Setup(WORK, 2, 1e12), scale.factors(2, 100, 0.3, seed=6))
    assert acting.age_mean < 0.6


def test_learners_beside_each_other_share_what_holds_one_and_pay_for_their_sums():
    one, four = Setup(WORK, 40, 1e9, 1), Setup(WORK, 40, 1e9, 1, 4)
    assert four.share == 10
    assert four.in_s == one.in_s
    assert one.reduction_s == 0.0
    updates = 40 * WORK.rows / (WORK.batch * 4)
    assert four.reduction_s == pytest.approx(updates * 6 * (LATENCY_S + 1e5 / 4 / 1e9))
    assert four.learn_s == pytest.approx(10 * WORK.learn_s + four.reduction_s)
    with pytest.raises(ValueError, match="5 learners for 4 nodes"):
        Setup(WORK, 4, 1e9, 0, 5)


def test_a_failure_delays_a_run_in_order_by_no_more_than_the_restart(monkeypatch):
    setup = Setup(WORK, 5, 1e9)
    assert scale.with_failures(setup, even(5)) == pytest.approx(
        scale.period_s(setup) * (1 + scale.RESTART_S * 5 * scale.FAILURES_PER_S)
    )


def test_draws_are_of_their_seed_and_of_mean_one():
    draws = scale.factors(50, 400, 0.3, seed=4)
    assert (draws == scale.factors(50, 400, 0.3, seed=4)).all()
    assert (draws != scale.factors(50, 400, 0.3, seed=5)).any()
    assert draws.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(draws).std() == pytest.approx(0.3, abs=0.01)
