"""Plans for a system: estimates, the solver, fronts of energy, actors for a GPU."""

__all__ = ["energy_front", "gpu_balance", "planner"]
