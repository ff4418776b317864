"""Assignments of hundreds of tasks and more: annealing and bounds from loads."""
