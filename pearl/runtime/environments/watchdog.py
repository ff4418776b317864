"""Watchdog: names environments that do not answer, and ends the process if a step can be neither
awaited nor interrupted.

A step that returns to Python now and then is interrupted
(`external_envs.interrupting_overdue_envs`). The lane that learns detects a hung environment in
another thread. But nothing interrupts code in the main thread that never returns to Python, or code
that holds the interpreter's lock, and a process that dies cannot tell why. So a second process
watches (`watcher`): environments write to shared memory what they are asked, and Python writes the
signals that come to a pipe. Worker processes need no watcher: their parent ends them and reports
how they ended.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import pearl_devices
from pearl.early_exit import ending_with_an_error
from pearl.runtime.environments import watcher
from pearl.runtime.environments.external_envs import SteppedEnvs, interrupting_overdue_envs
from pearl.waits import NAMED_S
from pearl_devices.primitives.envs.asked import EPISODE, SINCE, Asked, new_slot
from pearl_devices.system import host_system

HARD_LIMIT_FACTOR = 4
"""Multiple of `train.env_time_limit` without an answer after which the process ends."""

DEVICES = pearl_devices.__path__[0]
"""Folder of the package of which the watcher imports the operating system alone."""


class Watcher:
    """The process that watches, for its parent."""

    def __init__(self) -> None:
        """Start the process.

        Raises:
            OSError: there are too few handles or processes.
        """
        memory, report = host_system.share_memory("pearl watcher", watcher.SIZE), _new_file()
        signals, told = map(host_system.move_up, os.pipe())
        try:
            self._memory = mmap.mmap(memory, watcher.SIZE)
            self._cells = memoryview(self._memory).cast("d")
            self._entries = dict[int, dict[str, Any]]()
            given = [os.getpid(), memory, signals, report]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watcher.__file__, DEVICES, *map(str, given)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[memory, signals, report],
                start_new_session=True,
            )
        except BaseException:
            os.close(report)
            os.close(told)
            raise
        finally:
            os.close(memory)
            os.close(signals)
        self._report, self._told = report, told
        os.set_blocking(self._told, False)
        self._before = None if _in_main_thread() else -1
        if self._before is None:
            self._before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        self._reports = not faulthandler.is_enabled()
        if self._reports:
            faulthandler.enable(self._report)

    def add(self, env: SteppedEnvs, entry: Mapping[str, Any]) -> int:
        """Watch an environment; return the number of its slot."""
        slot = next(n for n in range(watcher.SLOTS) if n not in self._entries)
        first = watcher.HEADER + watcher.SLOT * slot
        env.share(self._cells[first : first + watcher.SLOT])
        self._entries[slot] = {**entry, "slot": slot}
        self._write()
        return slot

    def remove(self, env: SteppedEnvs, slot: int) -> bool:
        """Watch an environment no longer; return whether another one is watched."""
        env.share(new_slot())
        del self._entries[slot]
        self._write()
        return bool(self._entries)

    def _write(self) -> None:
        text = json.dumps(list(self._entries.values())).encode()
        text = text if len(text) <= watcher.SIZE - watcher.TEXT else b"[]"
        self._cells[watcher.SEQUENCE] += 1.0
        self._memory[watcher.TEXT : watcher.TEXT + len(text)] = text
        self._cells[watcher.LENGTH] = len(text)
        self._cells[watcher.SEQUENCE] += 1.0

    def close(self) -> None:
        """End the process."""
        if self._reports and faulthandler.is_enabled():
            faulthandler.disable()
        if _in_main_thread():
            signal.set_wakeup_fd(self._before if self._before is not None else -1)
        self._process.kill()
        self._process.wait()
        for handle in (self._told, self._report):
            with suppress(OSError):  # code of an environment may have closed it
                os.close(handle)
        self._cells.release()
        with suppress(BufferError):  # an environment still has its slot
            self._memory.close()


def _new_file() -> int:
    """Return the handle of a file without a name."""
    with tempfile.TemporaryFile() as file:
        return host_system.move_up(os.dup(file.fileno()))


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_running: list[Watcher] = []
"""The watcher of this process, if there is one."""


@atexit.register
def _close() -> None:
    while _running:
        _running.pop().close()


def _forked() -> None:
    """A fork of this process is not watched, and its signals are not those of a run."""
    if _running:
        _running.clear()
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)


host_system.after_fork(_forked)


@contextmanager
def watching(
    environments: Mapping[str, SteppedEnvs], limit_s: float, stands: str = watcher.STANDS
) -> Iterator[None]:
    """Within this context, have environments watched: one that does not answer for `NAMED_S` is
    named on standard error, and after `HARD_LIMIT_FACTOR` × `limit_s` the process is ended. So it
    is some seconds after the second SIGTERM or SIGHUP. If the process dies, the environment that
    it asked is named. stands: what such an end leaves, in words.

    Where no process can be started, or none that shares memory, nothing is watched.
    """
    if not environments or not host_system.PROCESSES:
        yield
        return
    added: list[tuple[SteppedEnvs, int]] = []
    try:
        if not _running:
            _running.append(Watcher())
    except OSError:
        yield
        return
    watched = _running[0]
    try:
        for task, env in environments.items():
            entry = {
                "what": f"environment {env.name!r} of {task}",
                "named_s": NAMED_S,
                "end_s": HARD_LIMIT_FACTOR * limit_s,
                "then": f"after {limit_s:g} s it is interrupted (train.env_time_limit)",
                "failed": failed_timing(env.name),
                "stands": stands,
            }
            if len(added) < watcher.SLOTS:
                added.append((env, watched.add(env, entry)))
        with ending_with_an_error():
            yield
    finally:
        left = [watched.remove(*pair) for pair in added]
        if not (left and left[-1]) and watched in _running:
            _running.remove(watched)
            watched.close()


WAY_OUT = "Ctrl-C, or SIGTERM if that does nothing, ends the command"
"""What happens next, where code of the user has no time limit."""


class _Code(Asked):
    """Code of the user that runs in this process."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


@contextmanager
def watching_user_code(what: str) -> Iterator[None]:
    """Within this context, name code of the user that ends the process. what: the code in words.

    Where no process can be started, or none that shares memory, nothing is watched.
    """
    code = _Code(what)
    code.slot[SINCE], code.slot[EPISODE] = monotonic(), -1.0
    added: int | None = None
    with suppress(OSError):
        if host_system.PROCESSES:
            _running[:] = _running or [Watcher()]
            entry = {"what": what, "named_s": 2 * NAMED_S, "end_s": math.inf, "then": WAY_OUT}
            added = _running[0].add(code, {**entry, "failed": "", "stands": ""})
    try:
        with ending_with_an_error():
            yield
    finally:
        if added is not None and not _running[0].remove(code, added):
            _running.pop().close()


def failed_timing(program: str) -> str:
    """How timing an environment failed in this process; empty if it did not."""
    timing = sys.modules.get("pearl_estimators.host.user_code_timing")
    return "" if timing is None else str(timing.failed_timings.get(program, ""))


@contextmanager
def env_time_limit(
    thread_envs: Mapping[str, SteppedEnvs],
    process_envs: Mapping[str, SteppedEnvs],
    limit_s: float,
    on_wait: Callable[[str], None] | None = None,
    stands: str = watcher.STANDS,
) -> Iterator[None]:
    """Within this context, interrupt steps of environments that exceed `limit_s`; if that is not
    possible, end this process.

    thread_envs: environments of this thread, which can be interrupted.
    process_envs: environments of all threads of this process.
    on_wait: called with a sentence about an environment of this thread that has not answered for
        NAMED_S.
    stands: as in `watching`.
    """
    if not process_envs:
        yield
        return
    with (
        watching(process_envs, limit_s, stands),
        interrupting_overdue_envs(thread_envs, limit_s, on_wait),
    ):
        yield
