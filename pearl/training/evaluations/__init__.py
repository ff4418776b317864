"""Evaluations of a run, at pauses or in a separate process, and the best policy."""
