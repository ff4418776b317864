"""Assignments of hundreds of tasks and more: annealing and bounds from loads."""

__all__ = ["lane_loads", "many_tasks"]
