"""Assignments of hundreds of tasks and more: annealing and bounds from loads."""

__all__ = [
    "greedy_replicas",
    "lane_loads",
    "load_annealing",
    "load_search",
    "loop_search",
    "split_selection",
]
