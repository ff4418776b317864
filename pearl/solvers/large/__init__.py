"""Assignments of hundreds of tasks and more: annealing and bounds from loads. The room may be left
out."""

__all__ = ["load_annealing", "load_search", "loop_search", "starts"]
