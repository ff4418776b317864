"""Solution methods, one file each, and code that several methods share."""

__all__ = ["enumeration", "relaxation_bounds", "simple_plans"]
