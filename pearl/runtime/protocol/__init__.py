"""The protocol of a plan: order of firings in a lane, tokens and slots between lanes, recovery."""

__all__ = [
    "binding",
    "channels",
    "control_block",
    "lane_recorder",
    "lane_schedule",
    "member_times",
    "progress_counters",
    "recovery",
    "residency",
    "run_context",
    "single_lane",
]
