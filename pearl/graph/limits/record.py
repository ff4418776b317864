"""`Limit`: what PEARL knows of one limit, and the calls and programs that a limit sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Call(NamedTuple):
    """A call of a plan and its place. tasks: one, or those of a fused call; copies of a task have
    names of their own. lane: a number among the lanes of the device; these are interchangeable."""

    tasks: tuple[str, ...]
    device: str
    variant: str
    width: int
    lane: int


class LimitProgram(Protocol):
    """A program to which a limit adds rows."""

    @property
    def ways(self) -> Sequence[tuple[Call, Any]]:
        """A call, and a variable that is 1 if the plan has the call and else 0."""

    def variable(self) -> Any:
        """Return a new variable from 0 to 1."""

    def at_most(self, terms: Sequence[tuple[Any, int]], most: int) -> None:
        """Add a row: the sum of variables with whole factors is at most a number."""


@dataclass(frozen=True)
class Limit:
    """One limit, an entry of `LIMITS`.

    key: name in the section `limits` of a spec.
    unit: unit of the value.
    conflict: what a plan within the limit does, after the words "no plan". `{value}` is the value
        and `{s}` the plural; `{name}` is the entry of a limit that is a mapping or a list.
    holds: for a value and some calls of a plan, whether a plan with these calls may keep the limit.
        With more calls the answer never changes from False to True. None: the limit is not about
        the places of calls.
    rows: adds rows that exclude what `holds` excludes. Without rows, a solver excludes each set of
        calls when a search meets the set; methods that cannot do that refuse the limit.
    description: one sentence for the schema; needed for a limit of a file of its own.
    least: least value of a limit of a file of its own, which is a whole number.
    kind: the word for the limit in `InfeasibleError.conflict`; the key by default.
    field: name in `Limits`; the key by default.
    single: whether the limit has a meaning for makespan, which covers one iteration.
    """

    key: str
    unit: str
    conflict: str
    holds: Callable[[Any, Sequence[Call]], bool] | None = None
    rows: Callable[[Any, LimitProgram], None] | None = None
    description: str = ""
    least: int = 1
    kind: str = ""
    field: str = ""
    single: bool = True

    def __post_init__(self) -> None:
        for name in ("kind", "field"):
            object.__setattr__(self, name, getattr(self, name) or self.key)

    def sentence(self, name: str, part: Any) -> str:
        """Return what a plan within one of the `parts` does."""
        value = part if isinstance(part, str | int | float) else ", ".join(part) or "nothing"
        return self.conflict.format(name=name, value=value, s="" if part == 1 else "s")

    def parts(self, limits: Any) -> dict[str, Any]:
        """Return what may conflict on its own: the entries of a mapping or of pairs by their names,
        or the value with an empty name; nothing if the limit is not set."""
        value = getattr(limits, self.field)
        if isinstance(value, tuple):
            return {", ".join(pair): pair for pair in value}
        return dict(value) if hasattr(value, "items") else {} if value is None else {"": value}

    def keep(self, limits: Any, names: Sequence[str]) -> Any:
        """Return the value with only the named parts."""
        value, kept = getattr(limits, self.field), self.parts(limits)
        kept = {name: part for name, part in kept.items() if name in names}
        if isinstance(value, tuple):
            return tuple(kept.values())
        return kept if hasattr(value, "items") else kept.get("")
