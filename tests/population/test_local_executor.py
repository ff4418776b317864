"""Runs as processes: their commands, ends and signals, with processes of the test."""

from __future__ import annotations

import io
import os
import signal
from subprocess import TimeoutExpired
from types import SimpleNamespace

import pytest

from pearl.errors import SpecError
from pearl.population import display, local_executor, precompile
from pearl.population.driver import StageEnd
from pearl.population.local_executor import LocalExecutor, describe_exit, last_lines
from pearl.population.schedulers import RunStage
from pearl.population.setting_results import SweepRun
from pearl_devices import UnsupportedError

A, B, C = (RunStage(name, "s", {}, 0, 400) for name in "abc")


class Process:
    """A process that a signal ends if it obeys."""

    def __init__(self, clock, pid=7, *, obeys=True, gone=False):
        self.clock, self.pid, self.obeys, self.gone, self.returncode = clock, pid, obeys, gone, None
        self.waited = []

    def poll(self):
        return self.returncode

    def terminate(self):
        if self.gone:
            self.returncode = 0
            raise ProcessLookupError
        if self.obeys:
            self.returncode = -15

    def wait(self, timeout):
        self.waited.append(timeout)
        if self.returncode is None:
            self.clock.now += timeout
            raise TimeoutExpired("", timeout)


class Clock:
    """Seconds that go on by sleeping alone, and the groups that were killed."""

    def __init__(self):
        self.now, self.slept, self.killed, self.processes = 100.0, [], [], {}

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def killpg(self, pid, number):
        self.killed.append((pid, number))
        if pid in self.processes:
            self.processes[pid].returncode = -number
        else:
            raise ProcessLookupError


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    for module in (local_executor, precompile):
        monkeypatch.setattr(module, "time", found)
    monkeypatch.setattr(os, "killpg", found.killpg)
    return found


def test_who_does_not_end_in_time_is_killed(clock):
    ends, stays, gone = Process(clock, 1), Process(clock, 2, obeys=False), Process(clock, gone=True)
    late = Process(clock, 3, obeys=False)
    clock.processes = {2: stays, 3: late}
    clock.monotonic = iter([100.0, 110.0, 120.0, 150.0, 170.0]).__next__
    local_executor.stop_processes([ends, stays, gone, late])
    assert clock.killed == [(2, signal.SIGKILL), (3, signal.SIGKILL)]
    assert [p.waited for p in (ends, stays, gone, late)] == [
        [50.0], [40.0, 60.0], [10.0], [0.0, 60.0],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "ended by signal SIGKILL"),
        (-99, "ended by signal 99"),
        (0, "ended with exit status 0"),
        (1, "ended with exit status 1"),
    ],
)
def test_an_end_in_words(code, text):
    assert describe_exit(code) == text


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (
            b"$ pearl train x\n a\n\n b \nc\n$ pearl train x\nd\xff\n",
            "last output: b / c / d\ufffd",
        ),
        (b"$ pearl train x\n\n", "it printed nothing"),
        (b"a\n" + b"b" * 3998, f"last output: a / {'b' * 3998}"),  # 4000 bytes are read
        (b"a\n" + b"b" * 3999, f"last output: {'b' * 3999}"),
    ],
    ids=["three lines", "none", "whole", "cut"],
)
def test_the_last_lines_of_a_log_are_quoted(log, text, tmp_path):
    (tmp_path / "log").write_bytes(log)
    assert last_lines(tmp_path / "log") == text
    assert last_lines(tmp_path / "none") == f"{tmp_path / 'none'} cannot be read"


def test_a_process_is_pinned_and_ends_with_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(local_executor, "start", lambda child: child)
    log = tmp_path / "logs" / "run.log"
    local_executor.start_process(["train"], [1], log)
    child = local_executor.start_process(["train", "a b"], [2, 4], log)
    assert log.read_text() == "$ pearl train\n$ pearl train 'a b'\n"
    assert (child.program, child.arguments) == ("pearl.cli:main", ["train", "a b"])
    names = ("OMP", "OPENBLAS", "MKL", "NUMBA", "NUMEXPR", "VECLIB_MAXIMUM")
    assert child.environment == {f"{name}_NUM_THREADS": "2" for name in names}
    assert child.stdin != child.output
    assert (child.cores, child.dies_by) == ([2, 4], signal.SIGTERM)


class Files:
    """The folder of a sweep, of which the run "c" cannot begin."""

    def __init__(self, path):
        self.path = path

    def log(self, run):
        return self.path / f"{run}.log"

    def build_command(self, stage, folder):
        if stage is C:
            raise SpecError("one", "two")
        return ["train", stage.run, folder]


@pytest.fixture
def executor(clock, tmp_path, monkeypatch):
    """An executor of two slots. codes: slot and exit code, one a poll; polls: their times."""
    made, found = [], SimpleNamespace(started=[], codes=[], polls=[], over=False)

    def start(arguments, cores, log):
        made.append(Process(clock, len(made)))
        clock.processes = dict(enumerate(made))
        found.started.append((arguments, cores, log.name))
        return made[-1]

    def poll():
        found.polls.append(clock.now)
        if found.codes:
            slot, code = found.codes.pop(0)
            found.lanes._running[slot].process.returncode = code

    def load_run(folder):
        if folder.name == "b":
            raise SpecError("no file")
        return SimpleNamespace(returns={"last_eval_mean": 7.5})

    monkeypatch.setattr(local_executor, "start_process", start)
    monkeypatch.setattr(local_executor, "load_run", load_run)
    found.made = made
    found.lanes = LocalExecutor(
        [[0, 1], [2]], files=Files(tmp_path), interrupted=lambda: found.over, poll=poll
    )
    return found


def test_stages_end_as_their_processes_do(executor, clock, tmp_path):
    lanes = executor.lanes
    assert lanes.slots == 2
    lanes.start(0, A)
    lanes.start(1, B)
    assert executor.started == [
        (["train", "a", None], (0, 1), "a.log"),
        (["train", "b", None], (2,), "b.log"),
    ]
    executor.codes = [(0, 0)]
    assert lanes.wait() == StageEnd(0, A, "done", 7.5)
    assert (clock.slept, executor.polls) == ([0.01], [100.01])
    assert list(lanes._running) == [1]
    executor.codes = [(1, 0)]
    unreadable = "run.json of the run cannot be used: no file"
    assert lanes.wait() == StageEnd(1, B, "failed", None, unreadable)
    for code, status, why in (
        (1, "failed", "ended with exit status 1"),
        (2, "failed", "ended with exit status 2"),
        (3, "died", "ended with exit status 3"),
        (-9, "died", "ended by signal SIGKILL"),
    ):
        (tmp_path / "a.log").write_text("why\n")
        lanes.start(1, A)
        executor.codes = [(1, code)]
        assert lanes.wait() == StageEnd(1, A, status, None, f"{why}; last output: why")
    lanes.start(1, C)
    assert lanes.wait() == StageEnd(1, C, "failed", None, "one; two")
    lanes.start(1, C)
    executor.over = True
    assert lanes.wait() is None


@pytest.mark.parametrize(
    ("error", "ends"), [(None, -15), (ValueError, -15), (KeyboardInterrupt, -9)]
)
def test_no_process_stays_and_a_second_ctrl_c_waits_for_none(executor, error, ends):
    def leave():
        with executor.lanes as lanes:
            lanes.start(0, A)
            if error:
                raise error

    if error:
        with pytest.raises(error):
            leave()
    else:
        leave()
    assert executor.made[0].returncode == ends
    assert executor.lanes._running == {}


# --- the short run that compiles


@pytest.mark.parametrize(
    ("env_steps", "options", "steps"),
    [(4, {"learning_starts": 100}, 108), (4, {"learning_starts": 101}, 112), (4, {}, 8)],
)
def test_a_short_run_learns_at_least_once(env_steps, options, steps):
    made = SimpleNamespace(
        graph=SimpleNamespace(env_steps=env_steps),
        system=SimpleNamespace(algorithm=SimpleNamespace(**options)),
    )
    assert precompile.steps(made) == steps


@pytest.mark.parametrize(
    ("code", "stops", "found"),
    [
        (0, 99, True),
        (None, 2, False),
        (1, 99, "the short run that compiles kernels ended with exit status 1; last output: why"),
        (None, 99, "the short run that compiles kernels took longer than 0.2 s; see"),
    ],
)
def test_a_short_run_ends_or_is_ended(code, stops, found, clock, tmp_path, monkeypatch):
    process, asked = Process(clock, 5), []
    clock.processes = {5: process}
    monkeypatch.setattr(precompile, "LIMIT_S", 0.2)
    monkeypatch.setattr(precompile, "start_process", lambda *given: asked.append(given) or process)
    (tmp_path / "first").mkdir()
    (tmp_path / "log").write_text("why\n")

    def interrupted():
        if len(clock.slept) == 1:
            process.returncode = code
        return len(clock.slept) >= stops

    given = ["train"], tmp_path / "first", tmp_path / "log", (3,), interrupted
    if isinstance(found, bool):
        assert precompile.compile_kernels(*given) is found
    else:
        with pytest.raises(UnsupportedError, match=found):
            precompile.compile_kernels(*given)
    assert asked == [(["train"], (3,), tmp_path / "log")]
    assert clock.killed == ([(5, signal.SIGKILL)] if code is None else [])
    assert set(clock.slept) == {0.05}
    assert len(clock.slept) == (2 if code is not None or stops == 2 else 5)
    assert not (tmp_path / "first").exists()


# --- the display


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_the_last_runs_now_and_then(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now[0]))
    runs = [SweepRun(f"run{n}", "s", n, {}, 1000, status="done") for n in range(13)]
    runs[-1] = SweepRun("x", "s", 0, {}, 1500, status="running", env_steps=250, eval_mean=2.5)
    drawn = []
    with display.sweep_display(screen := Screen()) as shown:
        monkeypatch.setattr(shown._live, "update", lambda table, refresh: drawn.append(table))
        for at in (10.0, 10.49, 10.5):
            now[0] = at
            shown.refresh(lambda: runs)
        shown.print_event("[b]once")
    assert "[b]once\n" in screen.getvalue()
    assert len(drawn) == 2
    columns = [(c.header, c.justify, [t.plain for t in c.cells]) for c in drawn[0].columns]
    assert columns == [
        ("run", "left", [*(f"run{n}" for n in range(1, 12)), "x"]),
        ("", "left", ["done"] * 11 + ["running"]),
        ("env steps", "right", ["0/1,000"] * 11 + ["250/1,500"]),
        ("return", "right", ["–"] * 11 + ["2.5"]),
    ]


def test_elsewhere_an_event_is_a_line(capsys):
    with display.sweep_display() as shown:
        shown.print_event("[b]once")
        shown.refresh(list)
    assert capsys.readouterr().err == "[b]once\n"
