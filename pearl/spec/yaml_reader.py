"""Strict YAML: bytes → plain Python data, with the line of every key.

YAML 1.2 scalars (`1e-3` is a number, `on` is text), text keys, no duplicate keys, no tags, one
document, and bounds on size, depth and the number of nodes after expanding aliases. Every problem
is one line `file:line: key: what was given; what is allowed`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pearl.errors import SpecError
from pearl_devices.validation import quote

Where = tuple[str | int, ...]
"""The path to a value: keys and list positions from the top."""

MAX_BYTES, MAX_DEPTH, MAX_NODES = 1 << 20, 24, 20_000
_CORE = "tag:yaml.org,2002:"
_PLAIN = {
    "null": re.compile(r"|~|null|Null|NULL"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]{1,400}|0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400}"),
    "float": re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
}


class _Loader(yaml.SafeLoader):
    """SafeLoader without YAML 1.1's guesses: `parse_scalar` gives the values."""


_Loader.yaml_implicit_resolvers = {}


@dataclass(frozen=True)
class Document:
    """Plain data (mappings, lists, text, numbers, booleans, None) and the place of each value.

    data: the top mapping; None for values that could not be read.
    origins: path of keys to a value → `file:line`, `--set` or `<spec>`.
    problems: path of keys → the reason why a value could not be read.
    """

    data: Any
    origins: dict[Where, str] = field(default_factory=dict)
    problems: tuple[tuple[Where, str], ...] = ()

    def say(self, where: Where, what: str) -> str:
        """Return one line about the value at `where`, which need not exist."""
        at = where
        while at and at not in self.origins:
            at = at[:-1]
        origin, key = self.origins.get(at, "<spec>"), join_keys(where)
        if origin == "set":
            return f"set {key}: {what}"
        return f"{origin}: {key}: {what}" if key else f"{origin}: {what}"


def join_keys(where: Where) -> str:
    """Join keys: `('limits', 'together', 0)` → `limits.together[0]`; odd keys are quoted."""
    key = ""
    for part in where:
        if isinstance(part, int):
            key += f"[{part}]"
        else:
            plain = re.fullmatch(r"[\w-]{1,60}", part) is not None
            key += ("." if key else "") + (part if plain else show(part))
    return key


def show(value: object) -> str:
    """Return `value` on one short line, for quoting in an error."""
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not value.isprintable():
        quoted = ascii(value)
        return quoted if len(quoted) <= 60 else quoted[:56] + " ..."
    return quote(value)


def parse_scalar(written: str) -> Any:
    """Return the value of plain (unquoted) text: `'1e-3'` → 0.001, `'on'` → 'on'. Never raises. A
    whole number with an exponent is an int: `'1e6'` → 1000000."""
    kind = next((k for k, pattern in _PLAIN.items() if pattern.fullmatch(written)), "str")
    if kind == "null":
        return None
    if kind == "bool":
        return written.lower() == "true"
    if kind == "int":
        base = {"0o": 8, "0x": 16}.get(written[:2], 10)
        return int(written, base)
    if kind == "float":
        number = float(written.lower().replace(".inf", "inf").replace(".nan", "nan"))
        whole = "e" in written.lower() and abs(number) <= 2**53 and number.is_integer()
        return int(number) if whole else number
    return written


def read_bytes(path: Path, name: str) -> bytes:
    """Read a regular file of at most 1 MiB.

    Raises:
        SpecError: the file is missing, too large, unreadable or no regular file.
    """
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise SpecError(f"{name}: not a file; a YAML file is needed")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{show(name)}: cannot be read: {reason}") from None
    if len(content) > MAX_BYTES:
        line = content.count(b"\n", 0, MAX_BYTES) + 1
        raise SpecError(
            f"{name}:{line}: larger than {MAX_BYTES} bytes; a spec is a short text file"
        )
    return content


def parse(content: bytes, name: str) -> Document:
    """Parse a document. Bad keys and values are omitted and listed in `problems`.

    name: of the file, for errors.

    Raises:
        SpecError: nothing can be checked: the content is not UTF-8, not YAML or no mapping.
    """
    try:
        source = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{name}:{line}: byte {content[error.start]:#04x} is not UTF-8; a spec is UTF-8 text"
        ) from None
    bad = yaml.reader.Reader.NON_PRINTABLE.search(source)
    if bad:
        line = source.count("\n", 0, bad.start()) + 1
        code = f"U+{ord(bad.group()):04X}"
        raise SpecError(f"{name}:{line}: character {code} is not allowed; a spec is plain text")
    try:
        _check_shape(source, name)
        node = yaml.compose(source, Loader=_Loader)
    except yaml.MarkedYAMLError as error:  # no other: every character is printable here
        raise SpecError(_yaml_problem(error, name)) from None
    if not isinstance(node, yaml.MappingNode):
        kind = "list" if isinstance(node, yaml.SequenceNode) else "single value"
        given = "the file is empty" if node is None else f"the top level is a {kind}"
        raise SpecError(f"{name}:1: {given}; a mapping of keys is needed")
    builder = _Builder(name)
    data = builder.build(node, ())
    if data is None:  # the top level has a tag
        raise SpecError(*(line for _, line in builder.problems))
    return Document(data, builder.origins, tuple(builder.problems))


def plain(value: Any, origin: str, where: Where = ()) -> Document:
    """Build a document from Python objects, checked like a file: mappings, sequences and scalars
    only.
    """
    builder = _Builder(origin)
    data = builder.copy(value, where)
    return Document(data, builder.origins, tuple(builder.problems))


def _check_shape(source: str, name: str) -> None:
    """Refuse deep nesting and a second document before anything recursive runs."""
    depth = documents = 0
    loader: Any = _Loader(source)
    while True:
        try:
            event = loader.get_event() if loader.check_event() else None
        except (ValueError, OverflowError):  # for an escape such as "\UFFFFFFFF"
            raise SpecError(
                f"{name}:{loader.line + 1}: not YAML: an escape in the text is no character"
            ) from None
        if event is None:
            return
        line = (event.start_mark.line if event.start_mark else 0) + 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise SpecError(f"{name}:{line}: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise SpecError(f"{name}:{line}: a second document starts here; one is allowed")


def _yaml_problem(error: yaml.MarkedYAMLError, name: str) -> str:
    assert error.problem is not None
    assert error.problem_mark is not None
    line = error.problem_mark.line + 1
    return f"{name}:{line}: not YAML: {' '.join(error.problem.split())}"


class _Builder:
    """Turns nodes or Python objects into plain data, and records the origin of each value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.origins: dict[Where, str] = {}
        self.problems: list[tuple[Where, str]] = []
        self.nodes = 0

    def problem(
        self, where: Where, what: str, said: Where | None = None, line: int | None = None
    ) -> None:
        """Record a problem at `where`; the line names the place `said`, which may differ."""
        origins = self.origins
        if line is not None:
            origins = {(): f"{self.name}:{line + 1}"}
        said = where if said is None else said
        self.problems.append((where, Document(None, origins).say(said, what)))

    def enter(self, where: Where, origin: str) -> None:
        self.origins[where] = origin
        self.nodes += 1
        if self.nodes > MAX_NODES or len(where) > MAX_DEPTH:
            raise SpecError(
                f"{origin}: {join_keys(where[:3])}: unfolds to more than {MAX_NODES} values or "
                f"{MAX_DEPTH} levels; a spec is short"
            )

    def build(self, node: yaml.Node, where: Where, line: int | None = None) -> Any:
        self.enter(where, f"{self.name}:{(node.start_mark.line if line is None else line) + 1}")
        # The resolver gives plain and quoted scalars the same tags; a tag in the file is another
        # one.
        if node.tag not in (_CORE + "str", _CORE + "map", _CORE + "seq"):
            self.problem(where, f"tag {show(node.tag)}; tags are not allowed")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*where, i)) for i, item in enumerate(node.value)]
        quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
        return self.leaf(node.value if quoted else parse_scalar(node.value), where)

    def mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line
            name = None
            if isinstance(key, yaml.ScalarNode) and key.tag == _CORE + "str":
                name = parse_scalar(key.value) if key.style is None else key.value
            if not isinstance(name, str):
                given = "a mapping, list or tag" if name is None else show(name)
                self.problem((*where, line), f"given {given} as a key; a key is text", where, line)
            elif name in data:
                first = self.origins[(*where, name)].rsplit(":", 1)[1]
                what = f"given twice, first in line {first}; once is allowed"
                self.problem((*where, name), what, (*where, name), line)
            else:
                data[name] = self.build(value, (*where, name), line)
        return data

    def copy(self, value: Any, where: Where) -> Any:
        self.enter(where, self.name)
        if isinstance(value, Mapping):
            data = {}
            for key, item in value.items():
                if isinstance(key, str):
                    data[key] = self.copy(item, (*where, key))
                else:
                    what = f"given {show(key)} as a key; a key is text"
                    self.problem((*where, show(key)), what, where)
            return data
        if isinstance(value, list | tuple):
            return [self.copy(item, (*where, i)) for i, item in enumerate(value)]
        if isinstance(value, Path):
            return str(value)
        if value is None or isinstance(value, str | bool | int | float):
            return self.leaf(value, where)
        kind, allowed = type(value).__name__, "mappings, lists, text, numbers, booleans"
        self.problem(where, f"given a value of type {kind}; allowed are {allowed}")
        return None

    def leaf(self, value: Any, where: Where) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            self.problem(where, f"given {value}; a number must be finite")
            return None
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            self.problem(where, f"given {show(value)}; half a surrogate pair is no text")
            return None
        return value
