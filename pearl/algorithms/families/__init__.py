"""Families of algorithms that share a task graph: replay, rollout, tabular."""
