"""Lanes that run at the same time: in threads, in worker processes, with actors in any order."""

__all__ = ["async_learner", "engine", "work", "workers"]
