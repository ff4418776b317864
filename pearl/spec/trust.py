"""Code that a spec would import, and whether the user trusts it: `docs/trust.md`.

A spec that the user names (`pearl train SPEC`, `pearl.load`) is trusted. The spec of a run folder,
a checkpoint or a policy file is trusted if `train` or `save` recorded its digest: an empty file per
digest in a folder to which only this user can write.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl_devices import BACKENDS
from pearl_devices.cache_folder import cache_folder, doubts
from pearl_devices.system import host_system

KEPT = 10_000
"""Number of digests that are stored, the latest ones."""


@dataclass(frozen=True)
class NamedCode:
    """Code that a spec names.

    key: dotted key in the spec.
    given: the name.
    unknown: facts that only an import can tell.
    """

    key: str
    given: str
    unknown: str

    def __str__(self) -> str:
        return f"{self.key} {self.given}"


def find_named_code(spec: Mapping[str, Any]) -> list[NamedCode]:
    """List the code that a spec, as plain data, names, except gymnasium's own environments and
    PEARL.
    """
    from pearl.algorithms import ALGORITHMS

    found = _device_kinds(spec.get("platform"))
    section = spec.get("algorithm")
    if not isinstance(section, Mapping):
        return found
    name, env, network = (section.get(key) for key in ("name", "env", "network"))
    if isinstance(name, str) and name not in ALGORITHMS:
        what = "whether it is an algorithm, and whether it takes these options"
        found.append(NamedCode("algorithm.name", name, what))
    if isinstance(env, str) and ":" in env:
        stated = section.get("spaces") is not None
        what = (
            "whether it has the spaces that the spec states, and whether it takes these env_args"
            if stated
            else "its spaces, and whether it takes these env_args"
        )
        found.append(NamedCode("algorithm.env", env, what))
    if isinstance(network, str):
        what = "whether it makes networks of these inputs and outputs"
        found.append(NamedCode("algorithm.network", network, what))
    return found


def _device_kinds(platform: object) -> list[NamedCode]:
    devices = platform.get("devices") if isinstance(platform, Mapping) else None
    entries = devices.items() if isinstance(devices, Mapping) else ()
    kinds = {name: entry.get("kind") for name, entry in entries if isinstance(entry, Mapping)}
    what = "whether it is a device kind, and whether it takes these figures"
    return [
        NamedCode(f"platform.devices.{name}.kind", kind, what)
        for name, kind in kinds.items()
        if isinstance(kind, str) and kind not in BACKENDS
    ]


def digest(spec: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a spec as plain data, in hexadecimal."""
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def record_trusted(spec: Mapping[str, Any]) -> None:
    """Record that this user trains with `spec`, if the spec names code.

    If the record cannot be written, a warning states the consequence.
    """
    if not find_named_code(spec):
        return
    folder = cache_folder() / "specs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := doubts(folder):
            raise OSError(0, why)
        file = folder / digest(spec)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | host_system.NO_LINK, 0o600))
        os.utime(file)
        _forget(folder)
    except OSError as error:
        warnings.warn(
            f"{folder}: cannot note that this spec is yours: {error.strerror or error}; eval and "
            "export of the run will ask for --trust (trust=True)",
            RuntimeWarning,
            stacklevel=2,
        )


def is_trusted(spec: Mapping[str, Any]) -> bool:
    """Return whether this user has trained with `spec`."""
    folder = cache_folder() / "specs"
    with suppress(OSError, ValueError):
        found = os.stat(folder / digest(spec), follow_symlinks=False)
        return stat.S_ISREG(found.st_mode) and not _doubt_reason(folder)
    return False


def require_trusted(spec: object, path: str | Path, *, trust: bool) -> None:
    """Refuse a spec that names code, unless this user has trained with it or trusts it.

    path: of the run, checkpoint or policy that holds the spec, for the error.
    trust: the user allows the import.

    Raises:
        SpecError: the spec names code; the text names the code and the way out.
    """
    if not isinstance(spec, Mapping):  # text would be read as the path of another spec
        raise SpecError(f"{path}: its spec is no mapping but a {type(spec).__name__}")
    if trust or not find_named_code(spec) or is_trusted(spec):
        return
    what = ", ".join(str(each) for each in find_named_code(spec))
    why = _doubt_reason(cache_folder() / "specs")
    raise SpecError(
        f"{path}: its spec names code, and your cache folder has no record that you trained it"
        f"{f' ({why})' if why else ''}: {what}; nothing was imported; to run that code, "
        "add --trust (trust=True in Python)"
    )


def _doubt_reason(folder: Path) -> str:
    """Return why no digest in `folder` is trusted; empty if they are, or if there is no folder."""
    try:
        why = doubts(folder)
    except OSError:
        return ""
    return f"{folder}: {why}" if why else ""


def _forget(folder: Path) -> None:
    """Remove all but the newest `KEPT` digests."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    if len(names) <= KEPT:
        return
    ages = {}
    for name in names:
        with suppress(OSError):
            ages[name] = os.stat(folder / name).st_mtime_ns
    for name in sorted(ages, key=lambda name: ages[name])[: len(ages) - KEPT]:
        (folder / name).unlink(missing_ok=True)
