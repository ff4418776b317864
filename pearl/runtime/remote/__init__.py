"""Lanes of other hosts: the same lanes over arrays of their own, and the messages between hosts."""

__all__ = ["batching", "lane_groups", "ray_lane_client", "remote_worker"]
