"""Watchdog: ends the process if an environment step neither returns nor can be interrupted.

An environment that returns to Python now and then is interrupted (`external_envs.watched`). The
lane that learns notices an environment in another thread that does not answer. Neither reaches code
in the main thread that never returns to Python, nor code that holds the interpreter's lock: then
nothing can be mended or saved, and the process says so and ends. Worker processes need no watchdog:
their parent ends them, and they end with their parent.
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
"""Exit status of the process: that of a failed run."""

LOOK_S = 0.02

_usleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))
_write: Any = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
_exit: Any = types.ExternalFunction("_exit", types.void(types.int32))


@compiled(nogil=True, error_model="numpy")
def _watch(beats: int, over: int, looks: int, look_us: int, text: int, size: int) -> None:
    """Without the interpreter's lock: ends the process, `text` on standard error, once the cell
    `beats` has been the same for so many looks; returns once the cell `over` is not 0."""
    seen, same = load(beats), 0
    while load(over) == 0:
        _usleep(look_us)
        now = load(beats)
        same = same + 1 if now == seen else 0
        seen = now
        if same >= looks:
            _write(2, text, size)
            _exit(STATUS)


@contextmanager
def exiting_on_hang(environments: Mapping[str, SteppedEnvs], limit_s: float) -> Iterator[None]:
    """Meanwhile this process ends, with a line on standard error and `STATUS`, once one of its
    environments has not answered for `TIMES` × `limit_s`. Who holds the interpreter's lock so long
    is taken to be one of them."""
    if not environments:
        yield
        return
    end_s, over = HARD_LIMIT_FACTOR * limit_s, threading.Event()
    known = " or ".join(f"environment {env.name!r} of {task}" for task, env in environments.items())
    text: npt.NDArray[np.uint8] = np.frombuffer(
        _said(f"{known} has held the interpreter's lock for {end_s:g} s"), np.uint8
    )
    cells = np.zeros(2, np.int64)
    beats, look_s = int(cells.ctypes.data), min(LOOK_S, limit_s / 64)

    def beat() -> None:
        while not over.wait(limit_s / 4):
            cells[0] += 1
            why = describe_overdue_env(environments, end_s)
            if why is not None and not over.is_set():
                os.write(2, _said(why))
                os._exit(STATUS)

    looks, look_us = int(end_s / look_s), max(1, int(look_s * 1e6))
    given = (beats, beats + 8, looks, look_us, int(text.ctypes.data), text.size)
    threads = [
        threading.Thread(target=beat, daemon=True, name="environments asked"),
        threading.Thread(target=_watch, args=given, daemon=True, name="interpreter asked"),
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
    here: Mapping[str, SteppedEnvs], all_: Mapping[str, SteppedEnvs], limit_s: float
) -> Iterator[None]:
    """Meanwhile environments that do not answer are interrupted, or else this process ends.

    here: the environments of this thread, which can be interrupted. all_: those of this process.
    """
    if not all_:
        yield
        return
    with exiting_on_hang(all_, limit_s), interrupting_overdue_envs(here, limit_s):
        yield


def _said(why: str) -> bytes:
    return (
        f"pearl: {why} and cannot be interrupted; the process ends here, and the last checkpoint "
        "in the run's folder, if there is one, stands\n"
    ).encode()
