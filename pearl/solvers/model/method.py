"""`Method`, the registration of a method, and `Search`: options and results of a running search."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pearl.errors import SpecError
from pearl_devices.cpu_count import usable_cpu_count
from pearl_devices.user_imports import import_function
from pearl_devices.validation import quote

if TYPE_CHECKING:
    from pearl.planning.problem import Problem
    from pearl.solvers.model.result import Candidate, Outcome

OBJECTIVES = ("throughput", "power_efficiency", "makespan")
"""All objectives of a method."""

ROBUST: Mapping[str, Literal["mean", "worst"]] = MappingProxyType(
    {"robust": "mean", "robust_worst": "worst"}
)
"""Objectives of `solve` that every method for throughput supports: the regret over draws of the
times is minimised."""

STEADY = OBJECTIVES[:2]
"""The objectives of the steady state: env steps per second and env steps per joule."""


@dataclass(frozen=True)
class Search:
    """The options of a method's search.

    deadline: time at which the method returns the best plan so far, `time.monotonic()` seconds.
    seed: whole number of at least 0; a seed determines the plan unless time runs out.
    method: the name under which the method is registered.
    start: a checked plan of this problem from which the method may begin. `solve` returns it
        instead of a worse plan. A search for a plan of a changed problem has no start.
    workers: largest number of threads that search in parallel; by default the number of CPUs that
        this process may use.
    limit_s: the user's time limit in seconds; the numbers of steps depend on it.
    offer: called with each plan that is better than all before, during the search.
    """

    deadline: float
    seed: int
    method: str
    start: Candidate | None = None
    workers: int = field(default_factory=usable_cpu_count)
    limit_s: float = 20.0
    offer: Callable[[Candidate], None] = lambda _: None


Solve = Callable[["Problem", Search], "Outcome"]
"""The function of a method."""


@dataclass(frozen=True)
class Method:
    """A registered method.

    code: `module:function`; the function is `solve(problem: Problem, search: Search) -> Outcome`.
        The objective of the problem is one of `objectives`, and the names in it are checked.
    objectives: the objectives that the method supports.
    """

    code: str
    objectives: tuple[str, ...]

    @property
    def module(self) -> str:
        """The module of the code."""
        return str(self.code).partition(":")[0]

    def fault_error(self, name: str, fault: str) -> SpecError:
        """Return an error that names the file of method `name` and the fault."""
        file = self.module.replace(".", "/")
        return SpecError(
            f"method {name!r}: {file}.py: {fault}; {quote(self.code)} must be a function "
            "solve(problem: Problem, search: Search) -> Outcome"
        )

    def load(self, name: str) -> Solve:
        """Return the function, imported on first use.

        Raises:
            SpecError: the module or the function is missing or takes other arguments.
        """
        given = self.objectives
        if not isinstance(given, tuple) or not given or any(o not in OBJECTIVES for o in given):
            raise self.fault_error(
                name, f"its objectives are {quote(given)}, not a tuple of some of {OBJECTIVES}"
            )
        try:
            solve = import_function(self.code)
        except ValueError as error:
            raise self.fault_error(name, str(error)) from error
        try:
            inspect.signature(solve).bind(None, None)
        except (TypeError, ValueError):
            raise self.fault_error(name, "its function does not take two arguments") from None
        return solve
