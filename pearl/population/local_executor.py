"""Execute runs on this machine: each is a process of `pearl train` on its own cores, with a log."""

from __future__ import annotations

import os
import shlex
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Self

from pearl.errors import SpecError
from pearl.planning.runs import load_run
from pearl.population.driver import Ending, StageEnd
from pearl.population.run_files import SweepFolder
from pearl.population.schedulers import RunStage
from pearl.runtime.child_program import ChildProgram
from pearl.runtime.processes import Process
from pearl.runtime.processes import start_process as start
from pearl_devices.system import host_system

POLL_INTERVAL_S = 0.01
"""Time between two checks of the processes."""
GRACE_S = 60.0
"""A terminated run has this time to write its checkpoint (assumed: an iteration is shorter)."""
LOG_LINES = 3
"""Number of last log lines of a dead run that its message quotes."""

_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "NUMEXPR", "VECLIB_MAXIMUM")


class ProcessExecutor(ABC):
    """Slots whose stages are processes. Leave the executor by `with`, so that no process stays.

    slots: number of stages that run at the same time.
    files: the folder of the sweep.
    interrupted: whether all stages must end.
    poll: is called regularly while `wait` waits.
    """

    def __init__(
        self,
        slots: int,
        *,
        files: SweepFolder,
        interrupted: Callable[[], bool],
        poll: Callable[[], None],
    ) -> None:
        self.slots, self._files = slots, files
        self._interrupted, self._poll = interrupted, poll
        self._ends: list[StageEnd] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not KeyboardInterrupt:  # the second Ctrl-C: kill at once
            self.stop()
        self._kill()

    @abstractmethod
    def start(self, slot: int, stage: RunStage) -> None:
        """Start a stage in a free slot. The stage resumes from its checkpoint if it has one."""

    @abstractmethod
    def stop(self) -> None:
        """End all stages with checkpoints; kill a process that takes longer than GRACE_S."""

    @abstractmethod
    def _collect_ends(self) -> None:
        """Append the stages that have ended to `_ends`, after a wait of one poll interval."""

    @abstractmethod
    def _kill(self) -> None:
        """Kill every process at once."""

    def wait(self) -> StageEnd | None:
        """Wait for the next end of a stage; None if the executor is interrupted."""
        while not self._interrupted():
            if self._ends:
                return self._ends.pop(0)
            self._collect_ends()
            if not self._ends:  # a free slot comes before the files and the display
                self._poll()
        return None

    def _build_command(
        self, slot: int, stage: RunStage, folder: Path | None = None
    ) -> list[str] | None:
        """Build the arguments of a stage; None if it cannot run, and then the stage has ended."""
        try:
            return self._files.build_command(stage, folder)
        except SpecError as error:
            message = "; ".join(error.problems)
            self._ends.append(StageEnd(slot, stage, "failed", None, message))
            return None

    def _end_stage(self, slot: int, stage: RunStage, exit_code: int) -> None:
        """Record the end of a stage from the exit code, the log and the folder of its process."""
        status: Ending = "done"
        score, message = None, None
        if exit_code == 0:
            try:
                score = load_run(self._files.path / stage.run).returns["last_eval_mean"]
            except (SpecError, KeyError) as error:
                status, message = "failed", f"run.json of the run cannot be used: {error}"
        else:
            status = "failed" if exit_code in (1, 2) else "died"
            message = f"{describe_exit(exit_code)}; {last_lines(self._files.log(stage.run))}"
        self._ends.append(StageEnd(slot, stage, status, score, message))


@dataclass
class _Running:
    stage: RunStage
    process: Process


class LocalExecutor(ProcessExecutor):
    """Slots of this machine.

    cores: the core numbers of each slot.
    """

    def __init__(
        self,
        cores: Sequence[Sequence[int]],
        *,
        files: SweepFolder,
        interrupted: Callable[[], bool],
        poll: Callable[[], None],
    ) -> None:
        super().__init__(len(cores), files=files, interrupted=interrupted, poll=poll)
        self._cores = [tuple(c) for c in cores]
        self._running: dict[int, _Running] = {}

    def start(self, slot: int, stage: RunStage) -> None:
        if (arguments := self._build_command(slot, stage)) is not None:
            process = start_process(arguments, self._cores[slot], self._files.log(stage.run))
            self._running[slot] = _Running(stage, process)

    def _collect_ends(self) -> None:
        for slot, running in list(self._running.items()):
            if (exit_code := running.process.poll()) is not None:
                del self._running[slot]
                self._end_stage(slot, running.stage, exit_code)
        if not self._ends:
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        stop_processes([running.process for running in self._running.values()])

    def _kill(self) -> None:
        kill_processes([running.process for running in self._running.values()])
        self._running.clear()


def start_process(arguments: Sequence[str], cores: Sequence[int], log: Path) -> Process:
    """Start a process of `pearl` with these arguments.

    The process is pinned to these cores. It ends, with a checkpoint, when this process dies.
    """
    threads = {f"{name}_NUM_THREADS": str(len(cores)) for name in _THREADS}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, open(os.devnull, "rb") as empty_input:
        output.write(f"$ pearl {shlex.join(arguments)}\n".encode())
        output.flush()
        return start(
            ChildProgram(
                "pearl.cli:main",
                arguments,
                stdin=empty_input.fileno(),
                output=output.fileno(),
                environment=threads,
                cores=cores,
                dies_by=signal.SIGTERM,
            )
        )


def stop_processes(processes: Sequence[Process]) -> None:
    """Terminate processes, which then write checkpoints; kill them after GRACE_S."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    end_s = time.monotonic() + GRACE_S
    for process in processes:
        with suppress(TimeoutExpired):
            process.wait(max(end_s - time.monotonic(), 0.0))
    kill_processes(processes)


def kill_processes(processes: Sequence[Process]) -> None:
    """Kill processes at once, each with the process group that it leads."""
    for process in processes:
        if process.poll() is None:
            host_system.kill_group(process.pid)
            process.wait(GRACE_S)


def describe_exit(exit_code: int) -> str:
    """Describe the end of a process: `ended by signal SIGKILL`."""
    if exit_code < 0:
        try:
            return f"ended by signal {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"ended by signal {-exit_code}"
    return f"ended with exit status {exit_code}"


def last_lines(log: Path) -> str:
    """Quote the last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - 4000, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return f"{log} cannot be read"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("$ pearl ")][-LOG_LINES:]
    return f"last output: {' / '.join(lines)}" if lines else "it printed nothing"
