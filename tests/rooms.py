"""The rooms that an installation may leave out. `python -m tests.rooms` prints them with lines.

A room is left out by deleting its files; no line elsewhere changes. Its tests are those that import
it, and leave with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.sources import ROOT

ROOMS: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        "devices/pearl_devices/gpu",
        "estimators/pearl_estimators/gpu",
        "pearl/cli/gpu_timings.py",
    ),
    "fpga": (
        "devices/pearl_devices/fpga",
        "devices/pearl_devices/primitives/fpga",
        "estimators/pearl_estimators/fpga.py",
        "estimators/pearl_estimators/fpga_released.py",
        "pearl/planner/verilog.py",
        "pearl/cli/verilog.py",
    ),
    "pim": ("devices/pearl_devices/pim.py",),
    "cluster": ("pearl/cluster", "pearl/population/cluster_executor.py", "pearl/cli/cluster.py"),
    "sweeps": ("pearl/population", "pearl/cli/sweeps.py"),
    "large": ("pearl/solvers/large",),
    "makespan": ("pearl/solvers/makespan",),
    "advice": ("pearl/advice", "pearl/explanation", "pearl/cli/advising.py"),
}
"""Room → its files and folders."""

PACKAGES = ("pearl", "devices/pearl_devices", "estimators/pearl_estimators")


def files_of(paths: Iterable[str]) -> set[Path]:
    """Return the Python files below some paths of the repository."""
    found: set[Path] = set()
    for path in paths:
        whole = ROOT / path
        found |= set(whole.rglob("*.py")) if whole.is_dir() else {whole}
    return found


def lines_of(files: Iterable[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def main() -> None:
    """Print each room with its lines."""
    rooms = {room: files_of(paths) for room, paths in ROOMS.items()}
    every = files_of(PACKAGES)
    out = set().union(*rooms.values())
    for room, files in rooms.items():
        print(f"{room:<10}{lines_of(files):>7,}  {', '.join(ROOMS[room])}")
    print(f"{'rooms':<10}{lines_of(out):>7,}")
    print(f"{'core':<10}{lines_of(every - out):>7,}")


if __name__ == "__main__":
    main()
