"""Run folders from a stranger: what may stand in the place of each file of a run, and the commands
that open it.

`benchmarks.chaos` tries a part of them drawn by its seed, each command in a process of its own with
bounds on time and memory. `tests/test_run_folder.py` tries all of them in its process.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import socket
import stat
import subprocess
import sys
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

SPEC = """\
algorithm: {name: dqn, env: CartPole-v1, num_envs: 4, hidden: [16, 16], batch_size: 16}
platform: cpu_gpu
train: {steps: 600, evaluate_every: 300, evaluate_episodes: 1, final_episodes: 2}
"""
PEARL = [sys.executable, "-m", "pearl"]
LIMIT_S, LIMIT_BYTES = 120.0, 8 * 2**30
"""For one command (assumed): it takes some seconds and 0.5 GB; of address space, more."""


def attempt(arguments: tuple[Any, ...], work: Path) -> str:
    """Run a command; return what is wrong with its end, or an empty text."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))

    command = [*PEARL, *map(str, arguments)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, preexec_fn=bound, cwd=work
        )
    except subprocess.TimeoutExpired:
        return "it did not end"
    said = done.stdout + done.stderr
    if done.returncode not in (0, 1, 2) or "Traceback" in said:
        return f"exit {done.returncode}: {said.strip()[-200:]}"
    if done.returncode and not done.stderr.strip():
        return f"exit {done.returncode} without a word"
    if any(c < " " and c not in "\n\t" for c in said):
        return "control characters on the terminal"
    return ""


def hostile_folders(tries: int, seed: int, work: Path) -> list[str]:
    """Make a run, then open copies of it that hold something else; return what went wrong."""
    spec, sound = work / "spec.yaml", work / "sound"
    spec.write_text(SPEC)
    why = attempt(("train", spec, "--emulate", "--out", sound), work)
    if why or not (sound / "run.json").exists():
        return [f"the run itself: {why or 'there is none'}"]
    cases = [
        (name, make, command)
        for name, make in itertools.product(NAMES, KINDS)
        for command in READ[name]
        if make is not device or os.geteuid() == 0
    ]
    wrong = []
    for name, make, command in random.Random(seed).sample(cases, min(tries, len(cases))):
        run = Path(shutil.copytree(sound, work / "run"))
        (work / "victim").write_bytes(PRECIOUS)
        put(run, name, make)
        why = attempt(commands(run, spec)[command], work)
        if (work / "victim").read_bytes() != PRECIOUS or (work / "made").exists():
            why = "a file outside the folder was written"
        if why:
            wrong.append(f"{command} with {name} as {make.__name__}: {why}")
        for made in (run, work / "made", *work.glob("sound-*")):
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    return wrong
