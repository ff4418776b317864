"""Assignments of hundreds of tasks and more: annealing and bounds from loads."""

__all__ = [
    "greedy_replicas",
    "load_annealing",
    "load_search",
    "loop_search",
    "split_selection",
    "starts",
    "tables",
]
