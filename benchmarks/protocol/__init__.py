"""The training protocol at work: `python -m benchmarks.protocol`."""
