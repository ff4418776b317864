"""Solvers: the best plan of a graph and its costs. A method is one file and its line in `METHODS`.

The file defines `solve(problem: Problem, search: Search) -> Outcome` and is imported on first use.
A user's own method is named by its module path. `pearl.testing.SolverContract` has the tests that
every method passes.
"""

import sys

from pearl.errors import SpecError
from pearl.solvers.model.method import OBJECTIVES, STEADY, Method
from pearl_devices.rooms import absence_text, has_room
from pearl_devices.validation import quote

__all__ = [
    "METHODS",
    "certificate",
    "find_method",
    "first_use",
    "method_run",
    "robust",
    "solver",
    "under_draws",
]

METHODS = {
    "milp": Method("pearl.solvers.methods.milp:solve", STEADY),
    "heft": Method("pearl.solvers.makespan.heft:solve", ("throughput", "makespan")),
    "tabu": Method("pearl.solvers.makespan.tabu:solve", ("makespan",)),
    "cpsat": Method("pearl.solvers.makespan.cpsat:solve", ("makespan",)),
}
"""Name of a method, as in `pearl plan --method NAME` → its code and objectives."""

ABSENT_METHODS = {
    name: METHODS.pop(name)
    for name, method in list(METHODS.items())
    if not has_room(method.module.rpartition(".")[0])
}
"""The methods that this installation leaves out: those of the room `makespan`, or none."""

MOVED = {
    "exhaustive": "'pearl.testing.exhaustive', for tests",
    "local_search": "'milp', for makespan 'cpsat' or 'tabu'",
    "lshs": "'examples.lshs', a file of the repository",
    "peft": "'examples.peft', a file of the repository",
}
"""Former name of a method → what to use instead."""


def find_method(name: object) -> Method:
    """Return the method of a name in `METHODS`, or of a module path such as `my_package.mine`.

    The module defines `solve`, and `OBJECTIVES` if its method supports only some of them. From its
    first use on, the method is in `METHODS`.

    Raises:
        SpecError: the name is unknown, or the module is no method.
    """
    if isinstance(name, str) and "." in name and name not in METHODS:
        code = f"{name}:solve"
        Method(code, OBJECTIVES).load(name)
        own = Method(code, getattr(sys.modules[name], "OBJECTIVES", OBJECTIVES))
        own.load(name)
        METHODS[name] = own
    if name in list(ABSENT_METHODS):
        raise SpecError(f"{absence_text(f'method {name}', ABSENT_METHODS[str(name)].module)}")
    if name not in list(METHODS):
        shipped = [other for other in METHODS if "." not in other]
        moved = MOVED.get(name) if isinstance(name, str) else None
        raise SpecError(
            f"method {quote(name)} is unknown; allowed are {shipped}, and the module path of your "
            f"own, such as 'my_package.mine'{f'; {name} is now {moved}' if moved else ''}"
        )
    return METHODS[str(name)]
