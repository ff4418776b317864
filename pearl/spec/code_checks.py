"""What `pearl check --import` looks at beyond what a spec states: the code that it names."""

from __future__ import annotations

from pearl.errors import SpecError
from pearl.spec.env_spaces import misstated
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl.spec.yaml_reader import dotted


def check_code(system: System) -> None:
    """Build the task graph of `system` with its algorithm and networks, and its environment where
    the spec states the spaces: a SpecError where that fails."""
    a, problems = system.algorithm, []
    if ":" in a.env and a.spaces is not None:
        problems = [f"{dotted(where)}: {what}" for where, what in misstated(a, system.env)]
    try:
        build_graph(system)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(*problems)
