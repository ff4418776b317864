"""Lanes that run at the same time: in threads, in worker processes, with actors in any order."""

__all__ = ["async_actor", "async_learner", "engine", "lane_runner", "workers"]
