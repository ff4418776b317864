"""The sweep.json of a folder, for a population that is gone on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.json_files import read_object
from pearl.planning.plans import SCHEMA

FILE = "sweep.json"


def load_sweep_file(folder: Path, *, resume: bool) -> dict[str, Any] | None:
    """The sweep.json of a folder that is gone on with; None where there is none yet."""
    file = folder / FILE
    if not file.exists():
        if folder.exists() and not folder.is_dir():
            raise SpecError(f"{folder}: is no folder; name another")
        return None
    if not resume:
        raise SpecError(
            f"{folder}: holds a sweep; go on with it (--resume), or name another folder"
        )
    found = read_object(file, "it is what `pearl sweep` leaves")
    if found.get("schema") != SCHEMA or not _sound(found):
        raise SpecError(f"{file}: no sweep that this version can go on with; name another folder")
    return found


def _sound(found: Mapping[str, Any]) -> bool:
    """Whether what is read of a sweep.json is there, and of its kind."""

    def have(entries: object, keys: Sequence[str]) -> bool:
        return isinstance(entries, list) and all(
            isinstance(entry, dict) and all(key in entry for key in keys) for entry in entries
        )

    packed, plans = found.get("packing"), found.get("plans")
    return (
        have(found.get("history"), ("event", "run", "steps"))
        and all("score" in entry for entry in found["history"] if entry["event"] == "end")
        and have(found.get("runs"), ("run", "setting", "seed", "values", "steps"))
        and isinstance(packed, dict)
        and type(packed.get("cores_per_run")) is int
        and packed["cores_per_run"] > 0
        and isinstance(plans, dict)
        and all(isinstance(file, str) for file in plans.values())
    )
