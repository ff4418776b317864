"""Environments of the user: resets, steps, and a watchdog for those that do not answer."""
