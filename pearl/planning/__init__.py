"""Plans: costs, timing of assignments, plans built from them, and stored plans."""

__all__ = [
    "bands",
    "costs",
    "draws",
    "estimated_costs",
    "lane_times",
    "metrics_file",
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
