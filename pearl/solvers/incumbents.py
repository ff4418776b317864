"""Notification of the caller about each better plan during a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from pearl.errors import InfeasibleError
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.solvers.channel_fit import fit_channels
from pearl.solvers.model.result import SAME, Candidate

Listener = Callable[[Plan], object]


class ListenerError(Exception):
    """An exception of the caller's listener, which is the cause of this error."""


class Incumbents:
    """Calls a listener with each plan that is better than all plans before."""

    def __init__(self, problem: Problem, method: str, seed: int, listener: Listener) -> None:
        self.problem, self.method, self.seed, self.listener = problem, method, seed, listener
        self.began, self.least = time.monotonic(), float("inf")

    def offer(self, found: Candidate) -> None:
        """Pass a candidate to the listener as a plan without a proof.

        Raises:
            ListenerError: the listener raised an exception.
        """
        if not found.cost < self.least * (1 - SAME):
            return
        proof = Proof(
            objective=self.problem.objective,
            method=self.method,
            seed=self.seed,
            solve_s=time.monotonic() - self.began,
            bound=0.0,
            period_bound_s=0.0,
            timed_out=True,
        )
        try:
            found, channels = fit_channels(found, (), self.problem, time.monotonic())
        except InfeasibleError:
            return
        if not found.cost < self.least * (1 - SAME):
            return
        power_w, orders = self.problem.limits.power_w, found.ordered.orders
        plan = build_plan(found.assignment, orders, proof, power_w=power_w, channels=channels)
        try:
            self.listener(replace(plan, problem=self.problem))
        except Exception as error:
            raise ListenerError from error
        self.least = found.cost
