"""Files that are written whole or not at all, and what is no regular file."""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
from pathlib import Path

import pytest

from pearl import files, time_limit
from pearl.errors import SpecError
from pearl.files import atomically, write_atomically
from pearl.planner.planner import plan
from pearl.planning.runs import SPEC_MARK, check_folder
from pearl.seeds import checked_seed
from tests.cli.test_cli import SPEC, Ran, spec, trained
from tests.processes import handles

__all__ = ["spec", "trained"]
ROOT = os.geteuid() == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_that_umask_says_and_missing_folders_are_made(
    tmp_path: Path,
) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a" / "b", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").read_bytes() == b"new"
    assert mode(tmp_path / "a" / "b") == 0o640


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o664])
def test_a_file_keeps_its_mode(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    file.chmod(kept)
    write_atomically(file, b"new")
    assert (file.read_bytes(), mode(file)) == (b"new", kept)


@pytest.mark.skipif(not ROOT, reason="only root writes others' files")
def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    os.chown(file, 54_321, 54_322)
    write_atomically(file, b"new")
    assert (file.stat().st_uid, file.stat().st_gid) == (54_321, 54_322)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    link.symlink_to(Path("elsewhere") / "file")
    for data in (b"first", b"second"):  # of the first there is no target yet
        write_atomically(link, data)
        assert link.is_symlink()
        assert target.read_bytes() == data
    assert list(tmp_path.rglob("*.writing")) == []


def test_a_pipe_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 600.0)
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"new" * 100_000)
    reader.join()
    assert read == [b"new" * 100_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_that_nobody_reads_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"nobody reads from this pipe.*pipe"):
        write_atomically(tmp_path / "pipe", b"new")


def device(path: Path, minor: int) -> Path:
    """A memory device of the test's own: were it replaced, nobody else would miss it."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        path.open("wb").close()
    except PermissionError:
        pytest.skip("devices cannot be made here")
    return path


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return device(tmp_path / "full", 7)


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    null = device(tmp_path / "null", 3)
    write_atomically(null, b"new")
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_full_device_is_an_error_that_names_it_and_stays_a_device(full: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(full, b"new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(full))
    assert stat.S_ISCHR(full.stat().st_mode)


def test_after_an_error_the_file_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def half() -> None:
        with atomically(file) as out:
            out.write(b"ne")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        half()
    assert caught.value.filename == str(file)
    assert file.read_bytes() == b"old"
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_a_file_below_a_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(NotADirectoryError) as caught:
        write_atomically(tmp_path / "file" / "below" / "it", b"new")
    assert caught.value.filename == str(tmp_path / "file" / "below" / "it")


@pytest.mark.skipif(ROOT, reason="root may write any file")
def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    file.chmod(0o400)
    with pytest.raises(PermissionError):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"


def test_a_lock_is_one_process_and_sweeps_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / ".run.json.x.writing").touch()
    (folder / files.LOCK).write_text("of a process that was killed")
    with files.locking(folder):
        assert (folder / files.LOCK).read_text() == f"{os.getpid()}\n"
        assert [f.name for f in folder.iterdir()] == [files.LOCK]
        with (
            pytest.raises(SpecError, match=f"process {os.getpid()} is training in it now"),
            files.locking(folder),
        ):
            pass
        (folder / files.LOCK).write_text("")
        with pytest.raises(SpecError, match="process unknown is training"), files.locking(folder):
            pass
        before = len(handles())
    assert list(folder.iterdir()) == []
    assert len(handles()) == before - 1
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be written here: Not a directory"):
        files._locked(tmp_path / "file" / "x")


# --- the time limit of planning


def test_a_limit_holds_within_its_context_and_the_earlier_one_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10.0]
    monkeypatch.setattr(time_limit.time, "monotonic", lambda: now[0])
    assert time_limit.left_s() == math.inf
    with time_limit.within(15.0):
        with time_limit.within(20.0):
            assert time_limit.left_s() == 5.0
        with time_limit.within(12.0):
            assert time_limit.left_s() == 2.0
            with time_limit.extended(18.0):
                assert time_limit.left_s() == 8.0
        now[0] = 15.0
        time_limit.look()
        now[0] = 15.5
        assert time_limit.left_s() == 0.0
        with pytest.raises(time_limit.OutOfTimeError):
            time_limit.look()
    time_limit.look()


# --- run folders


FOREIGN = {
    "run.json": '{"wandb": 1}',
    "metrics.csv": "step,loss\n1,2\n",
    "spec.yaml": SPEC,
    "plan.json": "{}",
    "report.html": "<html>coverage</html>",
}


@pytest.mark.parametrize("resume", [(), ("--resume",)])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_no_run_wrote_is_not_overwritten(
    name: str, resume: tuple[str, ...], tmp_path: Path, spec: Path
) -> None:
    (tmp_path / name).write_text(FOREIGN[name])
    ran = Ran("train", spec, "--emulate", "--out", tmp_path, *resume)
    assert ran.status == 2
    assert f"{tmp_path / name}: no run of pearl wrote this" in ran.err
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {name: FOREIGN[name]}


def test_what_a_run_wrote_is_known_without_its_checkpoint(trained: Path, tmp_path: Path) -> None:
    for name in FOREIGN:
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    check_folder(tmp_path)
    assert (tmp_path / "spec.yaml").read_text().startswith(SPEC_MARK)
    (tmp_path / "spec.yaml").write_text(SPEC)
    with pytest.raises(SpecError, match=r"spec.yaml: no run of pearl wrote this"):
        check_folder(tmp_path)


def test_every_command_makes_the_folders_of_what_it_writes(trained: Path, tmp_path: Path) -> None:
    wrote = [tmp_path / "a" / "policy.safetensors", tmp_path / "b" / "c.json", tmp_path / "d" / "e"]
    assert Ran("export", trained, wrote[0], "--json", wrote[1]).status == 0
    assert Ran("init", wrote[2]).status == 0
    assert all(file.is_file() for file in wrote)


# --- seeds


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70, 1.5, True, "1"])
def test_a_seed_is_a_whole_number_below_2_to_63(seed: object) -> None:
    with pytest.raises(SpecError, match="seed is"):
        checked_seed(seed)
    assert checked_seed(2**63 - 1) == 2**63 - 1


def test_seeds_that_a_spec_cannot_have_are_refused_everywhere(spec: Path, trained: Path) -> None:
    from pearl.training.trainer import Trainer

    for arguments in (("train", spec, "--emulate"), ("eval", trained), ("plan", spec)):
        ran = Ran(*arguments, "--seed", 2**63)
        assert ran.status == 2
        assert "9223372036854775807" in ran.err
    trainer = Trainer.load(trained)
    with pytest.raises(SpecError, match="seed is"):
        trainer.evaluate(1, 2**70)
    with pytest.raises(SpecError, match="seed is"):
        trainer.train(steps=1, seed=2**64)
    with pytest.raises(SpecError, match="seed is"):
        Trainer(trainer.system, trainer.plan, emulate=True, seed=-1)
    with pytest.raises(SpecError, match="seed is"):
        plan(trainer.system, seed=2**63)
