"""Explanations of problems without a solution: sets of limits that contradict each other."""

__all__ = ["iis"]
