"""Lanes of other hosts: the same lanes over arrays of their own, and messages of what crosses."""

__all__ = ["away", "batching", "crossing", "ray_post"]
