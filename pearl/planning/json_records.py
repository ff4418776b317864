"""Frozen dataclasses from JSON objects; each field is checked against its declared type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from pearl.errors import SpecError
from pearl_devices.validation import is_number, is_whole, quote

Readers = Mapping[str, Callable[[Any, str], Any]]
"""Field of a dataclass with a special reader → the reader, a function of value and place."""


def list_of(
    kind: type, values: Any, where: str, readers: Readers = MappingProxyType({})
) -> tuple[Any, ...]:
    """Build objects of a dataclass from a list of JSON objects.

    Raises:
        SpecError: the value is not a list of such objects; the text names the place `where`.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise SpecError(f"{where}: a list is needed, this is {quote(values)}")
    return tuple(build(kind, v, f"{where}[{i}]", readers) for i, v in enumerate(values))


_PLAIN: dict[str, Callable[[object], bool]] = {
    "int": is_whole,
    "float": is_number,
    "str": lambda item: isinstance(item, str),
    "bool": lambda item: isinstance(item, bool),
}


def fits(item: Any, kind: str) -> bool:
    """Return whether a value has a field's declared type: a number, text, one of some words, a list
    or an object of these, or None if allowed. Other types need a reader."""
    if kind.endswith(" | None"):
        return item is None or fits(item, kind.removesuffix(" | None"))
    if kind.startswith("tuple[") and kind[6:].partition(",")[0] in _PLAIN:
        inner = kind[6:].partition(",")[0]
        return isinstance(item, list | tuple) and all(fits(each, inner) for each in item)
    if kind.startswith("Mapping[str, "):
        inner = kind.removeprefix("Mapping[str, ")[:-1]
        return isinstance(item, Mapping) and all(fits(each, inner) for each in item.values())
    if kind.startswith("Literal["):
        return isinstance(item, str) and repr(item) in kind[len("Literal[") : -1].split(", ")
    return kind not in _PLAIN or _PLAIN[kind](item)


def build(kind: type, value: Any, where: str, readers: Readers = MappingProxyType({})) -> Any:
    """Build an object of a dataclass from a JSON object; unknown keys are ignored.

    Raises:
        SpecError: a key is missing or has a value of another type; the text names the place
            `where`.
    """
    if not isinstance(value, Mapping):
        raise SpecError(f"{where}: an object is needed, this is {quote(value)}")
    values: dict[str, Any] = {}
    for f in fields(kind):
        if f.name not in value:
            optional = f.default is not f.default_factory  # either is set
            if not optional:
                raise SpecError(f"{where}: key {f.name!r} is missing")
            continue
        item = value[f.name]
        if not fits(item, str(f.type)):
            needed = str(f.type).replace("tuple[", "list of ").replace(", ...]", "")
            raise SpecError(f"{where}: {f.name} is {quote(item)}; a {needed} is needed")
        if f.name in readers:
            item = readers[f.name](item, f"{where}: {f.name}")
        elif isinstance(item, list):
            item = tuple(item)
        values[f.name] = item
    return kind(**values)
