"""The problem as solvers see it: search space, linear programs, lane orders, results."""
