"""Solution methods, one file each, and the parts that several share."""

__all__ = ["cpsat", "enumeration", "heft", "local_search", "relaxation_bounds", "tabu_native"]
