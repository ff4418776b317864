"""Training by a plan: compile, the session that runs, checkpoints, evaluation, export."""

__all__ = [
    *("evaluation", "interruption", "memory", "policy", "policy_export", "progress"),
    *("steering", "trainer"),
]
