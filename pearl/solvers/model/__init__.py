"""The problem in the form that solvers use: search space, linear programs, results."""

__all__ = [
    "bounds",
    "cost_floor",
    "dag_instance",
    "fusion_space",
    "highs",
    "linear",
    "method",
    "name_checks",
    "result",
    "search_space",
    "tables",
    "traits",
]
