"""Plans: costs, timing of assignments, plans built from them, and stored plans."""

__all__ = [
    "bands",
    "capacities",
    "certificate_files",
    "costs",
    "draws",
    "estimated_costs",
    "lane_times",
    "metrics_file",
    "plan_builder",
    "plan_validation",
    "plans",
    "problem",
    "problem_files",
    "replicas",
    "runs",
    "timing",
    "valuation",
    "variants",
]
