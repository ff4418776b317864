"""The rooms that an installation may leave out. `python -m tests.rooms` prints them with lines.

A room is left out by deleting its files; no line elsewhere changes. Its tests are those that import
it, and leave with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


def copy_without(target: Path, rooms: Iterable[str], *folders: str) -> dict[str, str]:
    """Copy the packages and some folders without the rooms; return the environment of Python there.

    The finder of an editable installation would serve deleted modules from its own tree, so that
    Python does without it.
    """
    gone = {ROOT / path for room in rooms for path in ROOMS[room]}
    for name in ("pearl", "devices", "estimators", "configs", *folders):
        shutil.copytree(
            ROOT / name,
            target / name,
            ignore=lambda at, names: {name for name in names if Path(at, name) in gone},
        )
    (target / "pearl_configs").symlink_to("configs")
    (target / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
    )
    paths = os.pathsep.join(str(target / name) for name in ("", "devices", "estimators"))
    return {**os.environ, "PYTHONPATH": paths}


def run_python(target: Path, environment: Mapping[str, str], *words: str) -> str:
    """Run Python in a copy and return what it prints; the test fails if Python does."""
    command = [sys.executable, *words]
    ran = subprocess.run(command, cwd=target, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def main() -> None:
    """Print each room with its lines."""
    rooms = {room: files_of(paths) for room, paths in ROOMS.items()}
    every = files_of(PACKAGES)
    out = set().union(*rooms.values())
    for room, files in rooms.items():
        print(f"{room:<10}{lines_of(files):>7,} lines  {', '.join(ROOMS[room])}")
    print(f"{'rooms':<10}{lines_of(out):>7,}")
    print(f"{'core':<10}{lines_of(every - out):>7,}")


if __name__ == "__main__":
    main()
