"""The solver against what is known: `python -m benchmarks.solver`."""
