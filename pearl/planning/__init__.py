"""Plans: costs, timing of an assignment, plans built from it, plans checked and kept."""

__all__ = [
    "bands",
    "costs",
    "draws",
    "estimated_costs",
    "lane_times",
    "plan_builder",
    "plan_validation",
    "plans",
    "problem",
    "replicas",
    "runs",
    "timing",
    "valuation",
    "variants",
]
