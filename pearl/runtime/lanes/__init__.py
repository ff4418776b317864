"""Lanes that run at the same time: in threads, in worker processes, with actors in any order."""
