"""Systems of the literature beside ours: a row for each claim, a module for each system."""

COLUMNS = ["system", "claimed there", "reproduced here", "how", "command"]
"""Columns of every part. How: measured, modelled or simulated; figures of two sorts are never
divided by one another."""


def command(part: str) -> str:
    """The command that prints a part."""
    return f"python -m benchmarks.literature {part}"
