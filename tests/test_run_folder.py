"""What a folder from a stranger may hold, and every command that opens it: links of every kind,
pipes, devices, sockets, folders, sizes, control characters. Each command ends at once, with a
report or one sentence; no file outside the folder changes, and no module that it names is
imported."""

from __future__ import annotations

import errno
import json
import os
import shutil
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
from pearl.planning.runs import load_run
from pearl.population.run_files import load_sweep_file
from pearl.training.trainer import Trainer
from tests.cli.test_cli import Ran, spec, trained
from tests.hostile_folders import (
    KINDS,
    LINKS,
    NAMES,
    PRECIOUS,
    READ,
    WRITTEN,
    commands,
    dangling,
    device,
    endless,
    link_to_file,
    link_to_folder,
    loop,
    pipe,
    put,
    unix_socket,
)

__all__ = ["spec", "trained"]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of a run folder beside a file that must not change."""
    (tmp_path / "victim").write_bytes(PRECIOUS)
    yield Path(shutil.copytree(trained, tmp_path / "run"))
    assert (tmp_path / "victim").read_bytes() == PRECIOUS
    assert not (tmp_path / "made").exists()
    for sound in tmp_path.glob("sound-*"):
        assert sound.read_bytes() == PRECIOUS


@pytest.mark.sweep(3)
@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_no_command_follows_a_link_waits_or_reads_without_end(
    run: Path, spec: Path, name: str, make: Callable[[Path], None]
) -> None:
    if make is device and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    for command in READ[name]:
        put(run, name, make)
        ran = Ran(*commands(run, spec)[command])
        if ran.status:
            assert f"{run}"[:50] in ran.err, (command, ran.err)
        elif make in LINKS:
            assert name in WRITTEN, command  # what is read was refused
        assert "Traceback" not in ran.err
        shutil.rmtree(run / "new", ignore_errors=True)
        if (run / name).is_dir() and not (run / name).is_symlink():
            (run / name).rmdir()


def test_a_link_where_a_page_belongs_is_replaced(run: Path) -> None:
    for make in (link_to_file, dangling, loop, endless, pipe, unix_socket):
        for name in ("report.html", "trace.json"):
            put(run, name, make)
        assert Ran("report", run).status == 0
        assert "<title>" in (run / "report.html").read_text()
        assert not any((run / name).is_symlink() for name in ("report.html", "trace.json"))


def test_the_folder_itself_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    assert Ran("report", tmp_path / "latest").status == 0
    assert load_run(tmp_path / "latest").status == "done"


def test_a_lock_is_no_link_also_no_hard_one(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(PRECIOUS)
    (tmp_path / "run").mkdir()
    os.link(tmp_path / "victim", tmp_path / "run" / files.LOCK)
    locked = files.locking(tmp_path / "run")
    with pytest.raises(SpecError, match=r"its \.lock is a hard link"), locked:
        pass
    assert (tmp_path / "victim").read_bytes() == PRECIOUS


@pytest.mark.sweep(3)
@pytest.mark.parametrize("make", [*LINKS, pipe, unix_socket])
@pytest.mark.parametrize(
    "name",
    ["specs", "plans", "logs", "plans/plan-1.json", "logs/first.log", "sweep.csv", "a/run.json"],
)
def test_a_sweep_folder_with_a_link_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    (tmp_path / "victim").write_bytes(PRECIOUS)
    sweep = tmp_path / "sweep"
    (sweep / name).parent.mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    make(sweep / name)
    with pytest.raises(SpecError, match=f"{name}: it is a "):
        load_sweep_file(sweep, resume=True)
    (sweep / "sweep.json").unlink()
    if name.startswith(("specs", "plans", "logs")):  # those of a new sweep, too
        with pytest.raises(SpecError, match=f"{name}: it is a "):
            load_sweep_file(sweep, resume=False)


@pytest.mark.parametrize("name", ["../victim", "/etc/passwd", "a/../../victim", "", "a//b", ".."])
def test_a_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / "a").mkdir(parents=True)
    for use in (run_folder.find, run_folder.clear):
        with pytest.raises(SpecError, match="is no name of a file in this folder"):
            use(tmp_path / "run", name)


@pytest.mark.parametrize("make", [link_to_file, link_to_folder, loop, dangling, pipe])
def test_a_folder_on_the_way_is_no_link(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_bytes(PRECIOUS)
    make(tmp_path / "run" / "plans")
    for use in (run_folder.find, run_folder.clear):
        with pytest.raises(SpecError, match=r"plans: it is a .* and a folder is needed"):
            use(tmp_path / "run", "plans/plan-1.json")


# ---------------------------------------------------------------------------- sizes


def test_a_large_object_is_refused_before_it_is_parsed(run: Path) -> None:
    (run / "run.json").write_bytes(b"[" + b"[]," * (MOST_BYTES // 3) + b"[]]")
    with pytest.raises(SpecError, match=rf"run\.json: .*larger than {MOST_BYTES} bytes"):
        load_run(run)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("env_steps\n" + "1\n" * (metrics_file.MOST_ROWS + 1), "more than 100,000 lines"),
        ("a," * metrics_file.MOST_COLUMNS + "b\n1\n", "more than 1,000 columns"),
        ("env_steps\n" + "1" * 200_000, "field larger than"),
        ("env_steps\n" + "\x1b[2J", "env_steps is"),
    ],
)
def test_metrics_beyond_what_a_run_writes_are_one_sentence(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(SpecError, match=why) as caught:
        metrics_file.load_metrics(tmp_path / "metrics.csv")
    assert str(caught.value).isprintable()


# ---------------------------------------------------------------------------- names

ODD = "\x1b]0;owned\x07\x1b[2J\r\nssh-ed25519 KEY\u2028\u202e\x00\x9b2J\ud800"


def test_printable_text_keeps_its_letters_alone() -> None:
    assert printable(ODD) == " ]0;owned [2J ssh-ed25519 KEY 2J "
    assert printable("é → – µs\xa0×") == "é → – µs\xa0×"
    assert printable_lines("a\x1b\n\tb\r") == "a \n\tb "


def texts(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every text in an object."""
    if isinstance(value, str):
        yield at
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from texts(inner, (*at, key))
    for number, inner in enumerate(value) if isinstance(value, list) else ():
        yield from texts(inner, (*at, number))


def test_names_lose_control_characters_and_line_ends_on_every_way(run: Path) -> None:
    """Each text that may have any value gets odd characters, all at once."""
    content = json.loads((run / "run.json").read_text())
    content |= {"message": ODD, "events": [ODD], "status": "stopped"}
    content["stopped"] = {"by": ODD, "env_steps": 1}
    fixed = {
        "status",
        "objective",
        "kind",
        "energy_source",
        "bound_from",
        "when_unused",
        "paid_by",
        "certified",
    }
    for *way, last in [*texts(content)]:
        inner = content
        for key in way:
            inner = inner[key]
        if last not in fixed and "simulated" not in way:
            inner[last] += ODD
    (run / "run.json").write_text(json.dumps(content))
    (run / "spec.yaml").unlink()
    for command in (("report", run), ("report", run, "--verbose"), ("report", run, run)):
        ran = Ran(*command)
        assert ran.status == 0, ran.err
        page = (run / "report.html").read_text()  # a terminal wraps its lines, a page does not
        assert not any(line.startswith("ssh-") for line in page.splitlines())
        for text in (ran.out, ran.err, page):
            assert "ssh-ed25519" in text or text == ran.err
            assert all(line.replace("\t", "").isprintable() or "\xa0" in line
                       for line in text.split("\n"))  # fmt: skip
            assert not set(text) & set("\x1b\x07\x00\x9b\r\u2028\u202e")


def test_errors_and_notes_on_the_terminal_are_printable(tmp_path: Path) -> None:
    ran = Ran("report", tmp_path / "a\x1b[2Jb")
    assert ran.status == 2
    assert "\x1b" not in ran.err


# ---------------------------------------------------------------------------- imports


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on Python's path whose import leaves a file behind."""
    package = tmp_path / "path" / "evil_package"
    package.mkdir(parents=True)
    mark = tmp_path / "IMPORTED"
    for name in ("__init__", "npu"):
        (package / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(package.parent)
    return mark


def test_no_command_imports_what_a_strangers_files_name(run: Path, spec: Path, evil: Path) -> None:
    """Every text of the run, its plan and its spec becomes the name of a module, one file after
    another."""
    named, before = "evil_package.npu", set(sys.modules)
    for file in ("run.json", "plan.json"):
        content = json.loads((run / file).read_text())
        keys = ("kind", "method", "variant", "rung", "by", "name", "host", "bound_from", "carrier")
        for *way, last in [*texts(content)]:
            inner = content
            for key in way:
                inner = inner[key]
            if last in keys:
                inner[last] = named
        (run / file).write_text(json.dumps(content))
    for command in commands(run, spec).values():
        Ran(*command)
        shutil.rmtree(run / "new", ignore_errors=True)
    spoil = Trainer.load(run)
    raw = dict(spoil.system.raw)
    for key in ("name", "env", "network"):
        changed = {**raw, "algorithm": {**raw["algorithm"], key: f"evil_package:{key}"}}
        object.__setattr__(spoil.system, "raw", changed)
        spoil.session.save_run(run)
        for name in ("eval", "eval last", "export", "resume", "report", "check"):
            ran = Ran(*commands(run, spec)[name])
            assert name in ("report", "check") or ran.status == 2, (name, ran.err)
    assert not evil.exists()
    assert not [name for name in set(sys.modules) - before if name.startswith("evil_package")]


@pytest.mark.parametrize("kind", ["npu", "evil_package.npu", "os.path", "pearl.cli"])
def test_a_run_on_a_device_of_unknown_kind_is_reported_without_its_power(
    run: Path, evil: Path, kind: str
) -> None:
    content = json.loads((run / "run.json").read_text())
    before = set(sys.modules)
    for each in content["platform"]["devices"]:
        each["kind"] = kind
    (run / "run.json").write_text(json.dumps(content))
    ran = Ran("report", run)
    assert ran.status == 0, ran.err
    names = [each["name"] for each in content["platform"]["devices"]]
    said = " ".join(ran.out.split())
    assert f"not known here, so without their power: {names[0]} ({kind})" in said
    assert not evil.exists()
    assert kind not in set(sys.modules) - before


# ---------------------------------------------------------------------------- formats


@pytest.mark.parametrize("given", [0, 99, "2", None, True, 1.5, [1]])
def test_another_format_is_refused_with_both_versions_and_the_way_out(
    run: Path, given: object
) -> None:
    for file, read in (("run.json", load_run), ("plan.json", load_plan)):
        content = json.loads((run / file).read_text()) | {"schema": given}
        (run / file).write_text(json.dumps(content))
        why = r"of format .* pearl .* reads format 1; use the version that wrote it, or .*: pearl "
        with pytest.raises(SpecError, match=why):
            read(run / file)
        del content["schema"]  # as the first format
        (run / file).write_text(json.dumps(content))
        read(run / file)


def test_every_kind_of_file_says_its_format(run: Path) -> None:
    for kind, known in formats.FORMATS.items():
        formats.check_format(kind, {known.key: formats.latest(kind)}, "file")
        with pytest.raises(SpecError, match=f"a {kind} of format {known.reads[-1] + 1}"):
            formats.check_format(kind, {known.key: known.reads[-1] + 1}, "file")
    assert json.loads((run / "run.json").read_text())["schema"] == formats.latest("run")
    assert json.loads((run / "plan.json").read_text())["schema"] == formats.latest("plan")


def test_a_plan_from_before_a_key_was_added_is_read(run: Path) -> None:
    content = json.loads((run / "plan.json").read_text())
    del content["bands"]["missed"]
    bands = load_plan(content).bands
    assert bands is not None
    assert bands.missed == 0


# ---------------------------------------------------------------------------- a disk that fails


def test_a_run_whose_page_does_not_fit_on_the_disk_is_done(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_folder.clear

    def full(folder: Path, name: str) -> Path:
        if name in ("report.html", "trace.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / name))
        return real(folder, name)

    monkeypatch.setattr(run_folder, "clear", full)
    ran = Ran("train", spec, "--emulate", "--out", tmp_path / "run")
    assert ran.status == 0, ran.err
    assert "report.html: No space left on device; the run is complete and saved" in ran.err
    monkeypatch.undo()
    assert load_run(tmp_path / "run").status == "done"
    assert Ran("report", tmp_path / "run").status == 0


def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that forgets what was not synced: after a power cut, a file has the old content or
    the new one. The data is synced, then renamed, then the folder is synced."""
    events: list[tuple[str, str]] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        events.append(("sync", f"{kind} of {os.fstat(handle).st_size if kind == 'file' else 0}"))
        real_sync(handle)

    def replace(src: str, dst: Path) -> None:
        events.append(("rename", Path(dst).name))
        real_replace(src, dst)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    files.write_atomically(tmp_path / "plan.json", b"12345")
    assert events == [("sync", "file of 5"), ("rename", "plan.json"), ("sync", "folder of 0")]
