"""Plans: costs, timing of assignments, plans built from them, and stored plans."""

__all__ = [
    "bands",
    "capacities",
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
