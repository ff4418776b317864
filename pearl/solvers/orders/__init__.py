"""Lane orders of large timed graphs: modulo schedules, and swaps on critical cycles."""
