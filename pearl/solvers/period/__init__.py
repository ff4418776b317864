"""The period form: a mixed-integer program for the exact period of a plan."""

__all__ = ["lane_minimisation", "order_cuts", "period_form", "slack_minimisation", "symmetry"]
