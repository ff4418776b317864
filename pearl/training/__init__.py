"""Training by a plan: compile, the session that runs, checkpoints, evaluation, export."""
