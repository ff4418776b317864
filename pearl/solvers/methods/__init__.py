"""Solution methods, one file each, and code that several methods share."""

__all__ = ["cpsat", "enumeration", "heft", "local_search", "relaxation_bounds", "tabu_native"]
