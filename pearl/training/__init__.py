"""Training by a plan: compile, the session that runs, checkpoints, evaluation, export."""

__all__ = [
    *("calibrating", "checkpoints", "compiled", "evaluations", "interruption", "memory"),
    *("policy", "policy_export", "progress", "steering", "trainer"),
]
