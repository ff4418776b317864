"""Solution methods, one file each, and code that several methods share."""

__all__ = ["cpsat", "enumeration", "heft", "relaxation_bounds", "tabu", "tabu_native"]
