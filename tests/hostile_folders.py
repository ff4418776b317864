"""Run folders from a stranger: what may stand in the place of each file of a run, and the commands
that open it; `tests/test_run_folder.py` tries all."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pearl import files
from pearl.planning.runs import CHECKPOINT, POLICIES

PRECIOUS = b"precious\n"
NAMES = (
    *("run.json", "plan.json", "metrics.csv", "spec.yaml", "report.html", "trace.json"),
    *(CHECKPOINT, *POLICIES.values(), files.LOCK),
)
"""Every file of a run folder."""


def link_to_file(file: Path) -> None:
    file.symlink_to(file.parent.parent / "victim")


def link_to_copy(file: Path) -> None:
    """A link to a sound file of the same kind elsewhere."""
    elsewhere = file.parent.parent / f"sound-{file.name}"
    if not elsewhere.exists():
        elsewhere.write_bytes(PRECIOUS)
    file.symlink_to(elsewhere)


def dangling(file: Path) -> None:
    file.symlink_to(file.parent.parent / "made")


def link_to_folder(file: Path) -> None:
    file.symlink_to(file.parent.parent)


def loop(file: Path) -> None:
    file.symlink_to(file.name)


def endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def pipe(file: Path) -> None:
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.mkdir()


def unix_socket(file: Path) -> None:
    here = os.getcwd()
    os.chdir(file.parent)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(file.name)
    finally:
        os.chdir(here)


def device(file: Path) -> None:
    """As /dev/zero; only root makes one."""
    os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def huge(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate(1 << 40)  # without a byte on the disk


LINKS = (link_to_file, link_to_copy, dangling, link_to_folder, loop, endless)
KINDS: tuple[Callable[[Path], None], ...] = (
    *LINKS, pipe, folder, unix_socket, device, huge,
)  # fmt: skip


def put(run: Path, name: str, make: Callable[[Path], None]) -> None:
    """Put another kind of file in the place of a file of a run."""
    (run / name).unlink(missing_ok=True)
    make(run / name)


def commands(run: Path, spec: Path | str) -> dict[str, tuple[Any, ...]]:
    """Every command that opens the folder of a run."""
    return {
        "report": ("report", run),
        "comparison": ("report", run, run),
        "resume": ("train", spec, "--emulate", "--out", run, "--resume", "--steps", 600),
        "train": ("train", spec, "--emulate", "--out", run),
        "start": ("train", spec, "--emulate", "--out", run / "new", "--start-from", run),
        "plan": ("train", spec, "--out", run / "new", "--plan", run / "plan.json", "--steps", 600),
        "eval": ("eval", run, "--episodes", 1),
        "eval last": ("eval", run, "--episodes", 1, "--policy", "last"),
        "export": ("export", run, run.parent / "exported"),
        "sweep": ("sweep", spec, "--out", run, "--resume", "--dry-run"),
        "check": ("check", run / "spec.yaml"),
    }


READ = {
    "run.json": ("report", "comparison"),
    "plan.json": ("resume", "plan"),
    "metrics.csv": ("report", "comparison", "resume"),
    "spec.yaml": ("report", "check"),
    CHECKPOINT: ("resume", "start", "train"),
    POLICIES["best"]: ("eval", "export"),
    POLICIES["last"]: ("eval last",),
    files.LOCK: ("resume",),
    "report.html": ("report", "resume"),
    "trace.json": ("report", "resume"),
}
"""File → the commands that open it."""

WRITTEN = ("report.html", "trace.json", files.LOCK)
"""Files of a run that no command reads: a link in their place is replaced, or refused."""
