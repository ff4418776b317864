"""Rooms: parts of PEARL that an installation may leave out, by deleting their files.

The table of a seam names them as texts, so that nothing imports them before they are used.
"""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("pearl", "pearl_configs", "pearl_devices", "pearl_estimators")


def has_room(module: str) -> bool:
    """Return whether the file of a module is here. The packages around the module are imported."""
    found = find_spec(module)
    return found is not None and found.origin is not None  # a folder without code has no origin


def absence_text(need: str, module: str | None) -> str | None:
    """Return the sentence for a need of a module that cannot be found; None if the module is none
    of PEARL."""
    if not module or module.partition(".")[0] not in PACKAGES:
        return None
    return f"{need} needs {module}, which this installation of PEARL leaves out"
