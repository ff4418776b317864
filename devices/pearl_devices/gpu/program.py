"""CUDA programs: a source of `sources/` with sizes as constants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

SOURCES = Path(__file__).parent / "sources"
INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
KERNEL = re.compile(
    r'extern "C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(', re.MULTILINE
)


@dataclass(frozen=True)
class Program:
    """A source with its constants.

    file: its name in `sources/`, such as replay.cu, or a path.
    constants: name → whole number, `#define`d before the first line: sizes known at compile time.
    exact: products and sums are rounded separately, never fused into one rounding.
    """

    file: str
    constants: Mapping[str, int] = field(default_factory=dict)
    exact: bool = False

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def text(self) -> str:
        """The whole source with each included file once, in place."""
        defined = "".join(f"#define {name} {value}\n" for name, value in self.constants.items())
        return defined + "".join(_pieces(self.file, set()))

    @cached_property
    def digest(self) -> str:
        return sha256(f"{self.exact}\n{self.text}".encode()).hexdigest()[:24]

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of its kernels."""
        return tuple(KERNEL.findall(self.text))


def _pieces(file: str, seen: set[str]) -> Iterator[str]:
    seen.add(file)
    text, at = (SOURCES / file).read_text(encoding="utf-8"), 0
    text = text.replace("#pragma once\n", "")
    for found in INCLUDE.finditer(text):
        yield text[at : found.start()]
        if found[1] not in seen:
            yield from _pieces(found[1], seen)
        at = found.end()
    yield text[at:]
