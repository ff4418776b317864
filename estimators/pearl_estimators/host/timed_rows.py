"""The store of timed user code: a line of JSON for each timing, in the user's cache.

A row is whole or does not count, so a process that ends while it times loses its last timing only.
The file belongs to a host and to the versions and sources of PEARL. The key of a row has the
content of the files that the kernel names; modules that these import do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from pearl_devices import Kernel, kernel
from pearl_devices.cache_folder import cache_folder
from pearl_devices.kernel import Module
from pearl_estimators.host.calibration import host, versions
from pearl_estimators.sealed_files import CalibrationError, checksum, seal, unseal

SCHEMA = 1

Seconds = tuple[float, float, float, float]
"""Median, fastest, slowest, and the CPU seconds of this process in the quickest round."""

Job = tuple[tuple[Kernel, ...], str]
"""Kernels that are timed in turns, and their variant."""

_read: dict[tuple[Path, int, int], dict[str, dict[str, Any]]] = {}
"""File, as it was when it was read → its rows by key. Only the last one is kept."""


unstored: dict[str, dict[str, Any]] = {}
"""Rows of this process that could not be written, by key."""


def path() -> Path:
    """Return the path of the rows of this host and these versions."""
    made_by = {"host": host(), "versions": versions()}
    return cache_folder() / f"timed-{checksum(made_by)[:12]}.jsonl"


def describe_job(job: Job) -> dict[str, Any]:
    """Return a job as plain data, with its key."""
    kernels, variant = job
    rows = [
        {
            "kind": k.kind,
            "sizes": dict(k.dims),
            "program": k.program,
            "args": dict(k.args),
            "modules": {name: asdict(module) for name, module in k.modules.items()},
        }
        for k in kernels
    ]
    files = {name: _content(name) for k in kernels for name in _modules(k)}
    row = {"kernels": rows, "variant": variant, "files": files}
    return {**row, "key": checksum(row)}


def build_kernel(row: Mapping[str, Any]) -> Kernel:
    """Return the kernel that `describe_job` has described."""
    sizes = {n: tuple(v) if isinstance(v, list) else v for n, v in row["sizes"].items()}
    modules = {
        name: Module(**{**own, "inputs": tuple(own["inputs"])})
        for name, own in row["modules"].items()
    }
    return kernel(row["kind"], sizes, program=row["program"], args=row["args"], modules=modules)


def find_row(job: Job) -> list[Seconds] | None:
    """Return the seconds of each kernel of a job; None if the store has no row of this job."""
    row = stored_rows().get(describe_job(job)["key"])
    return None if row is None else [(a, b, c, d) for a, b, c, d in row["seconds"]]


def find_others(job: Job) -> Iterator[tuple[Kernel, Seconds]]:
    """Yield kernels of the same code in other sizes, with their seconds. The job has one kernel."""
    wanted = _code(describe_job(job))
    for row in stored_rows().values():
        if _code(row) == wanted:
            yield build_kernel(row["kernels"][0]), tuple(row["seconds"][0])


def _code(row: Mapping[str, Any]) -> Any:
    """A row without sizes."""
    kernels = [
        (k["kind"], k["program"], k["args"], [(n, m["program"]) for n, m in k["modules"].items()])
        for k in row["kernels"]
    ]
    return json.loads(json.dumps([kernels, row["variant"], row["files"]]))


def stored_rows() -> dict[str, dict[str, Any]]:
    """Return key → row. Damaged lines are passed over: their code is timed again."""
    file = path()
    try:
        stat = file.stat()
        stamp = file, stat.st_mtime_ns, stat.st_size
        if stamp not in _read:
            found = {}
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(CalibrationError, ValueError, KeyError):
                    row = unseal(json.loads(line), SCHEMA, "timing")
                    found[row["key"]] = row
            _read.clear()
            _read[stamp] = found
        return {**_read[stamp], **unstored}
    except OSError:
        return unstored


def append_row(file: Path, described: Mapping[str, Any], seconds: Sequence[Seconds]) -> None:
    """Append the timing of a described job to the store."""
    line = json.dumps(seal({**described, "schema": SCHEMA, "seconds": list(seconds)}))
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as out:
        out.write(f"{line}\n")


def _modules(k: Kernel) -> list[str]:
    """The modules with user code that a kernel names."""
    names = [k.kind, k.program or "", *(own.program for own in k.modules.values())]
    return sorted({name.partition(":")[0] for name in names if ":" in name})


def _content(module: str) -> str:
    """Digest of a module's file; empty if it has none."""
    origin: str | None = None
    for place in (None, [str(Path.cwd())]):
        spec, where = None, place
        for part in _prefixes(module):
            spec = PathFinder.find_spec(part, where)
            where = list(spec.submodule_search_locations or ()) if spec else []
        if origin := spec.origin if spec else None:
            break
    try:
        file = Path(origin or "")
        stat = file.stat()
        return _digest(file, stat.st_mtime_ns, stat.st_size) if file.is_file() else ""
    except OSError:
        return ""


def _prefixes(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


@cache
def _digest(file: Path, changed_ns: int, size: int) -> str:
    return checksum({"text": file.read_bytes().hex()})
