"""What a folder from a stranger may hold, and every command that opens it: links of every kind,
pipes, devices, sockets, folders, sizes, control characters. Each command ends at once, with a
report or one sentence; no file outside the folder changes, and no module that it names is
imported."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pearl import files, formats, run_folder
from pearl.errors import SpecError
from pearl.formatting import printable, printable_lines
from pearl.json_files import MOST_BYTES
from pearl.planning import metrics_file
from pearl.planning.plans import load_plan
from pearl.planning.runs import CHECKPOINT, POLICIES, check_folder, load_run
from pearl.population.run_files import load_sweep_file
from pearl.report.report import load_report
from pearl.training.trainer import Trainer
from tests.cli.test_cli import Ran, spec, trained

__all__ = ["spec", "trained"]
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
    try:
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # as /dev/zero
    except PermissionError:
        pytest.skip("devices cannot be made here")


def huge(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate(1 << 40)  # without a byte on the disk


LINKS = (link_to_file, link_to_copy, dangling, link_to_folder, loop, endless)
KINDS: tuple[Callable[[Path], None], ...] = (
    *LINKS, pipe, folder, unix_socket, device, huge,
)  # fmt: skip


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of a run folder beside a file that must not change."""
    (tmp_path / "victim").write_bytes(PRECIOUS)
    yield Path(shutil.copytree(trained, tmp_path / "run"))
    assert (tmp_path / "victim").read_bytes() == PRECIOUS
    assert not (tmp_path / "made").exists()
    for sound in tmp_path.glob("sound-*"):
        assert sound.read_bytes() == PRECIOUS


def put(run: Path, name: str, make: Callable[[Path], None]) -> None:
    """Put another kind of file in the place of a file of a run."""
    (run / name).unlink(missing_ok=True)
    make(run / name)


def commands(run: Path, spec: Path) -> dict[str, tuple[Any, ...]]:
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


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_no_command_follows_a_link_waits_or_reads_without_end(
    run: Path, spec: Path, name: str, make: Callable[[Path], None]
) -> None:
    for command in READ[name]:
        put(run, name, make)
        ran = Ran(*commands(run, spec)[command])
        said = ran.err.strip().splitlines()
        if ran.status:
            assert any(name in line for line in said), (command, ran.err)
            assert "Traceback" not in ran.err
        elif make in LINKS and command in ("report", "comparison"):
            assert name not in ("run.json", "metrics.csv", "spec.yaml"), command  # those are read
        shutil.rmtree(run / "new", ignore_errors=True)
        if (run / name).is_dir() and not (run / name).is_symlink():
            (run / name).rmdir()
