"""Plans: costs, timing of an assignment, plans built from it, plans checked and kept."""

__all__ = [
    "bands",
    "costs",
    "draws",
    "plan_builder",
    "plan_validation",
    "plans",
    "replica_costs",
    "replicas",
    "runs",
    "timing",
    "valuation",
    "ways",
]
