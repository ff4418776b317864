"""The code that a spec names: its task graph, its checks, and its errors in one sentence, with the
place in that code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from traceback import extract_tb

from pearl.algorithms import algorithm
from pearl.algorithms.environments import stored_units
from pearl.algorithms.evaluation import task_of
from pearl.algorithms.families.learners import share_out
from pearl.algorithms.interface import inserted_tasks
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.task_graph import TaskGraph
from pearl.spec.env_spaces import find_misstatements
from pearl.spec.system import System
from pearl.spec.trust import find_named_code
from pearl.spec.yaml_reader import join_keys
from pearl.task_names import FORMER, TASKS
from pearl_devices import UnsupportedError
from pearl_devices.base import EnvironmentFailed
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.interface import OBSERVED, changes
from pearl_devices.user_imports import error_text

STORED = ("replay.obs", "replay.next_obs", "rollout.obs", "rollout.next_obs")


class UserCodeError(SpecError):
    """Code that a spec names has raised an error."""


@contextmanager
def reporting_user_errors(system: System, doing: str) -> Iterator[None]:
    """Within this context, turn errors of code that the spec of `system` names into UserCodeError.

    doing: the subject of the error, as in "the task graph". Errors of PEARL's own kinds, and all
    errors of a spec that names no code, pass unchanged.
    """
    try:
        yield
    except (SpecError, InfeasibleError, UnsupportedError, EnvironmentFailed):
        raise
    except Exception as error:  # user code may raise anything
        user_error = locate_error(error, system, doing)
        if user_error is None:
            raise
        raise user_error from error


def locate_error(error: Exception, system: System, doing: str) -> UserCodeError | None:
    """Return the error with its innermost place in code that the spec names, or else in any
    code.
    """
    if isinstance(error, UserCodeError):
        return error
    names = [each.given for each in find_named_code(system.raw)]
    if not names:
        return None
    modules = [sys.modules.get(name.partition(":")[0]) for name in names]
    files = {getattr(module, "__file__", None) for module in modules}
    frames = extract_tb(error.__traceback__)
    at = next((f for f in reversed(frames) if f.filename in files), frames[-1])
    said = f"{type(error).__name__}: {error_text(error)} ({at.filename}, line {at.lineno})"
    return UserCodeError(f"{doing} fails: {said}")


def build_graph(system: System) -> TaskGraph:
    """Build the task graph of a system with its algorithm.

    Raises:
        UserCodeError: a user-defined algorithm has raised an error.
        SpecError: a limit names an unknown task, or the policy cannot have a user-defined
            kernel at its place.
    """
    name = system.algorithm.name
    with reporting_user_errors(system, f"algorithm.name: {name}: its task graph"):
        graph = algorithm(name).graph(system)
    limits, platform = system.limits, system.platform
    hosts = bool(platform.device(platform.host).host)
    graph = share_out(graph, limits.learners, limits.reduction, apart=hosts)
    known = {t.name for t in graph.tasks}
    former = [t.name for t in graph.tasks if kind_of(t.kernel).family == t.name in FORMER]
    if former:
        raise SpecError(
            f"algorithm.name: {name}: its task graph names tasks as before November 2026: "
            + ", ".join(f"rename {task} to {FORMER[task]}" for task in former)
        )
    unknown = sorted(system.limits.named_tasks - known - set(TASKS))
    if unknown:
        raise SpecError(
            f"limits: no task {', '.join(map(repr, unknown))} in the graph of {name}; allowed are "
            f"{', '.join(t.name for t in graph.tasks)}"
        )
    with reporting_user_errors(system, f"algorithm.name: {name}: its kernels"):
        graph = replace(graph, evaluation=task_of(system, graph))
        passed = [t.name for t in inserted_tasks(graph) if OBSERVED in changes(t.kernel)]
        if stored_units(system) and (passed or _stores_floats(graph)):
            return build_graph(replace(system, env=replace(system.env, units=0)))
    if passed and system.train.on_env_failure == "restart":
        raise SpecError(
            f"train.on_env_failure: given 'restart'; {', '.join(passed)} changes the network's "
            "input, and the first observation of a restarted environment would not pass through "
            "it; allowed: stop"
        )
    return graph


def _stores_floats(graph: TaskGraph) -> bool:
    """Return whether a kernel of the user takes stored observations as float32, or changes them
    before they are stored."""
    for kernel in (t.kernel for t in graph.tasks):
        kind = kind_of(kernel)
        arrays = kind.arrays(kernel)
        if any(arrays[name][1] == "float32" for name in STORED if name in arrays):
            return True
        if kind.structure == "own" and {"step.obs", "step.next_obs"} & {*kind.written(arrays)}:
            return True
    return False


def check_code(system: System) -> None:
    """Build the task graph of `system` with its algorithm and networks.

    If the spec states the spaces of its environment, build the environment too.

    Raises:
        SpecError: one line for each part that cannot be built, or differs from the spec.
    """
    a, problems = system.algorithm, []
    if a.spaces is not None:
        problems = [
            f"{join_keys(where)}: {what}" for where, what in find_misstatements(a, system.env)
        ]
    try:
        build_graph(system)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(*problems)
