"""Task graphs: tasks, edges and rates, limits on plans, and the exact period of a timed graph."""

__all__ = [
    "compiled_policy",
    "cycle_ratio",
    "insertion",
    "limits",
    "liveness",
    "parallel_edges",
    "period",
    "sequential",
    "task_graph",
]
