"""The benchmark of GPUs: on the stand-in it runs through and says no times; and it can go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu import __main__ as command


def numbers(value: Any) -> Iterator[Any]:
    """All numbers in an object of JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def test_parts_run_through_on_the_stand_in_and_say_no_times(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "results.json"
    assert command.command(["--stand-in", "crossover", "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert "bar: crossover, the stand-in, no GPU | 3 pass | 3 | met" in said
    assert " us" not in said
    assert "µs" not in said
    found = json.loads(file.read_text())["parts"]
    assert list(found) == ["crossover"]
    cases = [case for part in found.values() for case in part["cases"]]
    assert all(isinstance(n, int) for n in numbers(cases)), "counts alone, no times"
