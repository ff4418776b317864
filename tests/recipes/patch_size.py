"""The size of a patch in the packages: new files, and lines changed in files that were there."""

from __future__ import annotations

from pathlib import Path

PACKAGES = ("pearl/", "devices/", "estimators/")


def changed_lines(patch: str) -> dict[str, int]:
    """File of the packages → lines that tests/recipes/`patch` adds or removes; 0 for a new file."""
    found: dict[str, int] = {}
    file, new = "", False
    for line in (Path(__file__).parent / patch).read_text().splitlines():
        if line.startswith("--- "):
            new = line == "--- /dev/null"
        elif line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
            if file.startswith(PACKAGES):
                found[file] = 0
        elif file in found and not new and line.startswith(("+", "-")):
            found[file] += 1
    return found
