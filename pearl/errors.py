"""The exceptions that public functions raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class SpecError(Exception):
    """The user's input cannot be read or is invalid.

    problems: one line each, `file:line: key: what was given; what is allowed` of a file.
    """

    def __init__(self, *problems: str) -> None:
        self.problems: tuple[str, ...] = problems
        super().__init__("\n".join(problems))


class InfeasibleError(Exception):
    """The request is well formed, but no plan can meet it.

    conflict: entries {kind, name, need, limit, unit} as in the JSON of an infeasible plan.
    """

    def __init__(self, message: str, conflict: Sequence[dict[str, Any]] = ()) -> None:
        self.conflict: tuple[dict[str, Any], ...] = tuple(conflict)
        super().__init__(message)
