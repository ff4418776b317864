"""Solution methods, one file each, and code that several methods share."""

__all__ = [
    "cpsat",
    "enumeration",
    "heft",
    "relaxation_bounds",
    "simple_plans",
    "tabu",
    "tabu_native",
]
