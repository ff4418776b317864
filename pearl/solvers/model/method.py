"""`Method`, the line that registers a method, and `Search`: how a method searches for a plan."""

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
"""Every objective of a method."""

ROBUST: Mapping[str, Literal["mean", "worst"]] = MappingProxyType(
    {"robust": "mean", "robust_worst": "worst"}
)
"""Objectives of `solve` that any method for throughput serves: throughput over draws of the times,
by the regret that is made least."""

STEADY = OBJECTIVES[:2]
"""The objectives of the steady state: env steps per second and env steps per joule."""


@dataclass(frozen=True)
class Search:
    """How a method searches for a plan of a problem.

    deadline: time at which the method returns the best plan so far, `time.monotonic()` seconds.
    seed: whole number of at least 0; one seed gives one plan unless time runs out.
    method: the name under which the method is registered.
    start: a plan of this problem, checked, that the method may begin from; `solve` takes it in the
        place of a worse one. A search for a plan of a changed problem has none.
    workers: threads at most that search at the same time; by default as many as the CPUs that this
        process may use.
    limit_s: the time limit that was asked for, by which steps are counted, seconds.
    offer: told of each plan that is better than those before, while the search goes on.
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

    code: `module:function`; the function is `solve(problem: Problem, search: Search) -> Outcome`,
        where the objective of the problem is one of `objectives` and its names are checked.
    objectives: the objectives that the method can be asked for.
    """

    code: str
    objectives: tuple[str, ...]

    def fault_error(self, name: str, fault: str) -> SpecError:
        """The error that names the file of method `name` and the fault."""
        file = str(self.code).partition(":")[0].replace(".", "/")
        return SpecError(
            f"method {name!r}: {file}.py: {fault}; METHODS of pearl/solvers/__init__.py names "
            f"{quote(self.code)}, which must be a function solve(problem: Problem, search: Search) "
            "-> Outcome"
        )

    def load(self, name: str) -> Solve:
        """The function, imported on first use.

        Raises:
            SpecError: the module or the function is missing or takes other arguments.
        """
        if not set(self.objectives) <= set(OBJECTIVES) or not self.objectives:
            raise self.fault_error(
                name, f"its objectives are {quote(self.objectives)}, not some of {OBJECTIVES}"
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
