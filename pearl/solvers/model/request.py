"""`Request`, the one argument of every method, and `Method`, the line that registers a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pearl.errors import SpecError
from pearl_devices.user_imports import function
from pearl_devices.validation import shown

if TYPE_CHECKING:
    from pearl.graph.limits import Limits
    from pearl.graph.task_graph import TaskGraph
    from pearl.planning.costs import CostTable
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
class Request:
    """One problem for one method; its names and numbers are checked already.

    graph: the tasks, edges and states of the problem.
    costs: the modes of every task.
    objective: one of the objectives that the method is registered for.
    limits: the limits that the plan keeps.
    deadline: time at which the method returns the best plan so far, `time.monotonic()` seconds.
    seed: whole number of at least 0; one seed gives one plan unless time runs out.
    method: the name under which the method is registered.
    start: a plan of this problem, checked, that the method may begin from; `solve` takes it in the
        place of a worse one. A request for a changed problem has none.
    """

    graph: TaskGraph
    costs: CostTable
    objective: str
    limits: Limits
    deadline: float
    seed: int
    method: str
    start: Candidate | None = None


@dataclass(frozen=True)
class Method:
    """A registered method.

    code: `module:function`; the function is `solve(request: Request) -> Outcome`.
    objectives: the objectives that the method can be asked for.
    """

    code: str
    objectives: tuple[str, ...]

    def faulty(self, name: str, fault: str) -> SpecError:
        """The error that names the file of method `name` and the fault."""
        file = str(self.code).partition(":")[0].replace(".", "/")
        return SpecError(
            f"method {name!r}: {file}.py: {fault}; METHODS of pearl/solvers/__init__.py names "
            f"{shown(self.code)}, which must be a function solve(request: Request) -> Outcome"
        )

    def loaded(self, name: str) -> Callable[[Request], Outcome]:
        """The function, imported on first use.

        Raises:
            SpecError: the module or the function is missing or takes other arguments.
        """
        if not set(self.objectives) <= set(OBJECTIVES) or not self.objectives:
            raise self.faulty(
                name, f"its objectives are {shown(self.objectives)}, not some of {OBJECTIVES}"
            )
        try:
            solve = function(self.code)
        except ValueError as error:
            raise self.faulty(name, str(error)) from error
        try:
            inspect.signature(solve).bind(None)
        except (TypeError, ValueError):
            raise self.faulty(name, "its function does not take one argument") from None
        return solve
