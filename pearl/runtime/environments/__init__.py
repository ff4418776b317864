"""Environments of the user: resets, steps, a rehearsal, a watchdog for those that hang."""

__all__ = ["external_envs", "rehearsal", "watchdog"]
