"""Lane orders of large timed graphs: modulo schedules, and swaps on critical cycles."""

__all__ = ["lane_sequencing", "list_orders", "modulo", "rings", "search"]
