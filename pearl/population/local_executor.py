"""Runs as processes of this machine: each is `pearl train` on cores of its own, with a log."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pearl.errors import SpecError
from pearl.planning.runs import load_run
from pearl.population.driver import Ending, StageEnd
from pearl.population.schedulers import RunStage
from pearl.runtime.fork_server import ForkedProcess

LOOK_S = 0.01
"""Between two looks at the processes."""
GRACE_S = 60.0
"""A run that is told to end has so long for its checkpoint (assumed: an iteration is shorter)."""
LINES = 3
"""Last lines of a dead run that are told."""

_THREADS = ("OMP", "OPENBLAS", "MKL", "NUMBA", "NUMEXPR", "VECLIB_MAXIMUM")


@dataclass
class _Running:
    stretch: RunStage
    process: ForkedProcess
    log: Path


class LocalExecutor:
    """Slots of this machine. Leave it by `stop`, or by `with`, so that no process stays.

    cores: of each slot.
    command: arguments of `pearl` for a stretch; may raise SpecError, which is the stretch's end.
    log: the file for the words of a stretch.
    folder: the run folder of a stretch.
    asked: whether all are to be ended.
    look: is called now and then.
    """

    def __init__(
        self,
        cores: Sequence[Sequence[int]],
        *,
        command: Callable[[RunStage], list[str]],
        log: Callable[[RunStage], Path],
        folder: Callable[[RunStage], Path],
        asked: Callable[[], bool],
        look: Callable[[], None],
    ) -> None:
        self.slots, self._cores = len(cores), [tuple(c) for c in cores]
        self._command, self._log, self._folder = command, log, folder
        self._asked, self._look = asked, look
        self._running: dict[int, _Running] = {}
        self._refused: list[StageEnd] = []

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is KeyboardInterrupt:  # the second one: now
            self._kill()
        else:
            self.stop()

    def start(self, slot: int, stretch: RunStage) -> None:
        try:
            arguments = self._command(stretch)
        except SpecError as error:
            text = "; ".join(error.problems)
            self._refused.append(StageEnd(slot, stretch, "failed", None, text))
            return
        log = self._log(stretch)
        log.parent.mkdir(parents=True, exist_ok=True)
        process = start_process(arguments, self._cores[slot], log)
        self._running[slot] = _Running(stretch, process, log)

    def wait(self) -> StageEnd | None:
        while not self._asked():
            if self._refused:
                return self._refused.pop(0)
            for slot, running in self._running.items():
                if (code := running.process.poll()) is not None:
                    del self._running[slot]
                    stretch = running.stretch
                    return ended(slot, stretch, code, running.log, self._folder(stretch))
            self._look()
            time.sleep(LOOK_S)
        return None

    def stop(self) -> None:
        """End all runs, each with its checkpoint; one that takes longer than GRACE_S is killed."""
        for running in self._running.values():
            with suppress(ProcessLookupError):
                running.process.terminate()
        end_s = time.monotonic() + GRACE_S
        while time.monotonic() < end_s and any(
            r.process.poll() is None for r in self._running.values()
        ):
            time.sleep(LOOK_S)
        self._kill()

    def _kill(self) -> None:
        for running in self._running.values():
            if running.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(running.process.pid, signal.SIGKILL)
                running.process.wait(GRACE_S)
        self._running.clear()


def ended(slot: int, stretch: RunStage, code: int, log: Path, folder: Path) -> StageEnd:
    """The end of a stretch whose process ended with this status, by its words and its folder."""
    status: Ending = "done"
    score, message = None, None
    if code == 0:
        try:
            found = load_run(folder).returns
            score = found["last_eval_mean"]
        except (SpecError, KeyError) as error:
            status, message = "failed", f"its run.json cannot be used: {error}"
    else:
        status = "failed" if code in (1, 2) else "died"
        message = f"{how(code)}; {last_lines(log)}"
    return StageEnd(slot, stretch, status, score, message)


def start_process(arguments: Sequence[str], cores: Sequence[int], log: Path) -> ForkedProcess:
    """A process of `pearl` with these arguments, which sees these cores alone and ends, with a
    checkpoint, when this one dies."""
    threads = {f"{name}_NUM_THREADS": str(len(cores)) for name in _THREADS}
    with log.open("ab") as words, open(os.devnull, "rb") as nothing:
        words.write(f"$ pearl {shlex.join(arguments)}\n".encode())
        words.flush()
        return ForkedProcess(
            "pearl.cli:main",
            arguments,
            stdin=nothing.fileno(),
            output=words.fileno(),
            environment=threads,
            cores=cores,
            dies_by=signal.SIGTERM,
        )


def how(code: int) -> str:
    """The end of a process in words."""
    if code < 0:
        try:
            return f"ended by signal {signal.Signals(-code).name}"
        except ValueError:
            return f"ended by signal {-code}"
    return f"ended with exit status {code}"


def last_lines(log: Path) -> str:
    """The last lines of a file of words."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - 4000, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return f"{log} cannot be read"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("$ pearl ")][-LINES:]
    return f"it said last: {' / '.join(lines)}" if lines else "it said nothing"
