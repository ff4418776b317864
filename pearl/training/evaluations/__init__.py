"""Evaluations of a run: played at pauses or in a process of their own; the best policy."""
