"""The result of a method: the best assignment with its orders, and the proven bound."""

from __future__ import annotations

from dataclasses import dataclass

from pearl.planning.capacities import Channels
from pearl.planning.timing import Assignment
from pearl.solvers.orders.lane_sequencing import OrderResult

SAME = 1e-8
"""Relative difference below which two costs count as equal."""


@dataclass(frozen=True)
class Candidate:
    """An assignment with its lane orders.

    assignment: mode and lane of every task.
    ordered: the orders of lanes and links, and the bound over all orders.
    period_s: period of the plan, paced to the power limit.
    cost: seconds or joules of an iteration; for makespan, the end of the first iteration, seconds.
    channels: channels that fit into memory, with which period and cost are; None if not chosen yet.
    """

    assignment: Assignment
    ordered: OrderResult
    period_s: float
    cost: float
    channels: Channels | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a method.

    best: the best plan found.
    bound: no plan costs less, in the unit of `Candidate.cost`; 0 if nothing is proven.
    timed_out: whether time ran out.
    bound_from: source of the bound, one of `pearl.planning.plans.BOUND_SOURCES`.
    """

    best: Candidate
    bound: float
    timed_out: bool
    bound_from: str = "search"
