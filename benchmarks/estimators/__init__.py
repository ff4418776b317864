"""Estimates against measurements: `python -m benchmarks.estimators`."""
