"""Plans for a system: estimates, the solver, fronts of energy, actors and slices of a GPU."""

__all__ = ["energy_front", "gpu_balance", "gpu_slices", "plan_cache", "planner"]
__all__ += ["stated_plan", "verilog"]
