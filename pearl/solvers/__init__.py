"""Solvers: the best plan of a graph and its costs. A method is one file and its line in `METHODS`.

The file defines `solve(problem: Problem, search: Search) -> Outcome` and is imported on first use.
`pearl.testing.SolverContract` has the tests that every method passes.
"""

from pearl.solvers.model.method import OBJECTIVES, STEADY, Method

__all__ = ["METHODS", "robust", "solver", "under_draws"]

METHODS = {
    "milp": Method("pearl.solvers.methods.milp:solve", STEADY),
    "exhaustive": Method("pearl.solvers.methods.exhaustive:solve", OBJECTIVES),
    "heft": Method("pearl.solvers.methods.heft:solve", OBJECTIVES),
    "peft": Method("pearl.solvers.methods.peft:solve", OBJECTIVES),
    "lshs": Method("pearl.solvers.methods.lshs:solve", OBJECTIVES),
    "linear_clustering": Method("pearl.solvers.methods.linear_clustering:solve", OBJECTIVES),
    "local_search": Method("pearl.solvers.methods.local_search:solve", OBJECTIVES),
    "cpsat": Method("pearl.solvers.methods.cpsat:solve", ("makespan",)),
}
"""Name of a method, as in `pearl plan --method NAME` → its code and objectives."""
