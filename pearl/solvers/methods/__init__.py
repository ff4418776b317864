"""Solution methods, one file each, and the parts that several share."""

__all__ = ["cpsat", "enumeration", "relaxation_bounds"]
