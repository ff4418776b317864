"""Plans for a system: estimates, the solver, fronts of energy."""

__all__ = ["energy_front", "plan_cache", "planner"]
__all__ += ["stated_plan", "verilog"]
