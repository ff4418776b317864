"""Watchdog: ends the process if an environment step neither returns nor can be interrupted.

A step that returns to Python now and then is interrupted
(`external_envs.interrupting_overdue_envs`). The lane that learns detects a hung environment in
another thread. But nothing interrupts code in the main thread that never returns to Python, or code
that holds the interpreter's lock. Then no state can be saved, so the process reports the
environment and ends. Worker processes need no watchdog: their parent ends them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from pearl.runtime.environments.external_envs import (
    SteppedEnvs,
    describe_overdue_env,
    interrupting_overdue_envs,
)
from pearl_devices.primitives.code_cache import compiled
from pearl_devices.primitives.math.atomics import load

HARD_LIMIT_FACTOR = 4
"""Multiple of `train.env_time_limit` without an answer after which the process ends."""

STATUS = 1
"""Exit status of the process: the status of a failed run."""

CHECK_S = 0.02
"""Longest time between two checks of the thread without the interpreter's lock, in seconds."""

_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))
_write: Any = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
_exit: Any = types.ExternalFunction("_exit", types.void(types.int32))


@compiled(nogil=True, error_model="numpy")
def _watch(beats: int, over: int, checks: int, check_us: int, text: int, size: int) -> None:
    """End the process, with `text` on standard error, if the cell `beats` has the same value in
    `checks` checks in a row. Return when the cell `over` is non-zero.

    This function is compiled and runs without the interpreter's lock, which may never be free.
    """
    last, same = load(beats), 0
    while load(over) == 0:
        _usleep(check_us)
        now = load(beats)
        same = same + 1 if now == last else 0
        last = now
        if same >= checks:
            _write(2, text, size)
            _exit(STATUS)


@contextmanager
def exiting_on_hang(environments: Mapping[str, SteppedEnvs], limit_s: float) -> Iterator[None]:
    """Within this context, end the process once a step of an environment takes longer than
    `HARD_LIMIT_FACTOR` × `limit_s`, with a line on standard error and exit status `STATUS`.

    If code holds the interpreter's lock so long, PEARL assumes that it is an environment.
    """
    if not environments:
        yield
        return
    end_s, over = HARD_LIMIT_FACTOR * limit_s, threading.Event()
    names = " or ".join(f"environment {env.name!r} of {task}" for task, env in environments.items())
    text: npt.NDArray[np.uint8] = np.frombuffer(
        _last_words(f"{names} has held the interpreter's lock for {end_s:g} s"), np.uint8
    )
    cells = np.zeros(2, np.int64)
    beats, check_s = int(cells.ctypes.data), min(CHECK_S, limit_s / 64)

    def beat() -> None:
        while not over.wait(limit_s / 4):
            cells[0] += 1
            reason = describe_overdue_env(environments, end_s)
            if reason is not None and not over.is_set():
                os.write(2, _last_words(reason))
                os._exit(STATUS)

    checks, check_us = int(end_s / check_s), max(1, int(check_s * 1e6))
    arguments = (beats, beats + 8, checks, check_us, int(text.ctypes.data), text.size)
    threads = [
        threading.Thread(target=beat, daemon=True, name="environment watchdog"),
        threading.Thread(target=_watch, args=arguments, daemon=True, name="interpreter watchdog"),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        cells[1] = 1
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def env_time_limit(
    thread_envs: Mapping[str, SteppedEnvs], process_envs: Mapping[str, SteppedEnvs], limit_s: float
) -> Iterator[None]:
    """Within this context, interrupt steps of environments that exceed `limit_s`; if that is not
    possible, end this process.

    thread_envs: environments of this thread, which can be interrupted.
    process_envs: environments of all threads of this process.
    """
    if not process_envs:
        yield
        return
    with exiting_on_hang(process_envs, limit_s), interrupting_overdue_envs(thread_envs, limit_s):
        yield


def _last_words(reason: str) -> bytes:
    return (
        f"pearl: {reason} and cannot be interrupted; the process ends now. A checkpoint in the "
        "run's folder stays valid\n"
    ).encode()
