"""Check of a method's outcome: it is a candidate that `pearl.verification` allows, at its cost.

Every plan is verified at the end. The outcome of a user's own method is verified before that too,
so that its fault is told before a plan is built from it.
"""

from __future__ import annotations

import math

from pearl.errors import SpecError
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, build_timed_graph
from pearl.solvers.model.result import Candidate, Outcome
from pearl.verification import RefusedError, check_timing
from pearl_devices.validation import quote

TOLERANCE = 1e-6
"""Relative difference up to which two costs count as equal."""


def _is_of_problem(error: RefusedError, best: Candidate) -> bool:
    """Return whether a candidate is refused for what is no fault of a method: its memory, because
    `channel_fit` chooses capacities of channels that fit afterwards, or a period of 0 s, because
    no plan has a rate then, as `build_plan` says."""
    timeless = error.row == "period" and best.period_s == 0
    return timeless or error.row.startswith(("memory", "unit memory"))


def fault_of(outcome: object) -> str:
    """Return what an outcome states wrongly by itself, for an error text; empty if nothing."""
    if not isinstance(outcome, Outcome):
        return f"it returned {quote(outcome)}, not an Outcome"
    best = outcome.best
    if not isinstance(best, Candidate) or not isinstance(best.assignment, Assignment):
        return f"the best of its outcome is {quote(best)}, not a Candidate with an Assignment"
    if not outcome.bound <= best.cost * (1 + TOLERANCE):
        return f"its bound {outcome.bound:.9g} is above the cost {best.cost:.9g} of its plan"
    return ""


def fault_of_candidate(best: Candidate, problem: Problem) -> str:
    """Return the first fault of a candidate's timing; empty if there is none."""
    try:
        timed = build_timed_graph(best.assignment)
        cost = check_timing(timed, best.ordered.orders, problem, best.period_s).cost
    except RefusedError as error:
        return "" if _is_of_problem(error, best) else f"its {error}"
    except SpecError as error:
        return f"its {error}"
    if not abs(best.cost - cost) <= TOLERANCE * max(abs(best.cost), abs(cost)) < math.inf:
        return f"the cost of its plan is {best.cost:.9g}, recomputed {cost:.9g}"
    return ""
