"""The formats of the files that PEARL writes and reads again: one number for each kind of file.

A number rises when a reader of the former format would misread the file. Within a format, keys may
be added: a reader ignores unknown keys, and gives a later key that is missing its default. A file
without a number is of format 1. The files of the caches have numbers of their own, because they are
made again where they do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pearl.errors import SpecError
from pearl_devices.validation import quote


@dataclass(frozen=True)
class Format:
    """The format of a kind of file.

    key: of the number in the file.
    reads: numbers that this version reads, the latest last.
    anew: the way to a file of the latest format.
    """

    key: str
    reads: tuple[int, ...]
    anew: str


FORMATS: Mapping[str, Format] = {
    "plan": Format("schema", (1,), "make it again: pearl plan SPEC --json FILE"),
    "run": Format("schema", (1,), "train it again: pearl train SPEC"),
    "sweep": Format("schema", (1,), "name another folder: pearl sweep SPEC --out DIR"),
    "checkpoint": Format("format", (2, 3), "train it again: pearl train SPEC"),
    "policy": Format("format", (1, 2), "train it again: pearl train SPEC"),
    "exported policy": Format("schema", (1,), "export it again: pearl export RUN_DIR FILE"),
    "benchmark result": Format("schema", (1,), "run the benchmark again with --json FILE"),
}
"""Kind of file → its format."""


def latest(kind: str) -> int:
    """Return the number of the format in which a kind of file is written."""
    return FORMATS[kind].reads[-1]


def check_format(kind: str, content: Mapping[str, Any], where: str) -> None:
    """Check that this version reads the format of a file.

    where: the file, for the error.

    Raises:
        SpecError: it does not; the text names both versions and the way out.
    """
    known = FORMATS[kind]
    given = content.get(known.key, 1)
    if type(given) is int and given in known.reads:
        return
    writer = content.get("pearl_version")
    by = f", written by pearl {writer}" if isinstance(writer, str) else ""
    if not by and type(given) is int and given < known.reads[0]:
        by = ", written by an older version"
    reads = f"format{'s' * (len(known.reads) > 1)} {' and '.join(map(str, known.reads))}"
    raise SpecError(
        f"{where}: a {kind} of format {quote(given)}{by}; pearl {pearl_version()} reads "
        f"{reads}; use the version that wrote it, or {known.anew}"
    )


def pearl_version() -> str:
    """Return the version of this pearl, as plans and checkpoints state it."""
    try:
        return version("pearl-toolkit")
    except PackageNotFoundError:
        return "0+source"
