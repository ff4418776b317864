"""Assignments of hundreds of tasks and more: annealing and bounds from loads."""

__all__ = ["few_splits", "lane_loads", "many_tasks", "side_by_side"]
