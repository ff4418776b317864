"""Plans for a system: estimates, the solver, fronts of energy, actors for a GPU."""
