"""Evaluations of a run, at pauses or in a process of their own, and the best policy."""
