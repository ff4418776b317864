"""The problem as solvers see it: search space, linear programs, lane orders, results."""

__all__ = [
    "cost_floor",
    "dag_instance",
    "lane_sequencing",
    "linear",
    "list_orders",
    "list_schedule",
    "method",
    "result",
    "search_space",
    "solver_process",
]
