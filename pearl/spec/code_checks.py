"""The checks of `pearl check --import`: the code that a spec names."""

from __future__ import annotations

from pearl.errors import SpecError
from pearl.spec.env_spaces import find_misstatements
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl.spec.yaml_reader import join_keys


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
