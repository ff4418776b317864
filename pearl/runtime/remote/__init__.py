"""Lanes of other hosts: the same lanes over arrays of their own, and messages of what crosses."""

__all__ = ["batching", "lane_groups", "ray_lane_client", "remote_worker"]
