"""Environments of the user: resets, steps, and a watchdog for those that do not answer."""

__all__ = ["external_envs", "watchdog"]
