"""Methods that schedule one iteration, for the objective makespan. The room may be left out."""

__all__ = ["list_outcome", "list_schedule"]
