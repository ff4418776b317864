"""Many runs as one schedule: sweeps over seeds and values, successive halving, tournaments."""

__all__ = ["display", "members", "population", "results"]
