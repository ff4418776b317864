"""External environments: environments whose state is not in the arrays of a run.

This module has the log of their failures, their time limit, their snapshots and their restoration.
Native environments live in the arrays and need none of these.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from pearl.waits import NAMED_S
from pearl_devices import Buffers, Call
from pearl_devices.base import EnvironmentFailed
from pearl_devices.kernels import LEFT_OUT, kind_of
from pearl_devices.kernels.interface import OBSERVED, changes, trained_arrays
from pearl_devices.system import host_system

if TYPE_CHECKING:
    from pearl.graph.task_graph import TaskGraph
    from pearl.runtime.protocol.single_lane import Job
    from pearl_devices.primitives.envs.env_step import EnvStep

LOGGER = logging.getLogger("pearl")

TIME_LIMIT_S = 60.0
"""Seconds that a step of an environment may take, by default (assumed)."""

PassFirst = Callable[[Any], Any]
Environments = Mapping[str, "EnvStep"]
"""Name of a task (with `@` and the number of the group if it has several) → its environments."""


class SteppedEnvs(Protocol):
    """Environments of one kind that a lane steps.

    name: of the kind.
    since_s: monotonic time at which the step began that has not returned; None if none is running.
    slot: what is asked, in numbers (`pearl_devices.primitives.envs.asked`).
    """

    name: str

    @property
    def since_s(self) -> float | None: ...

    @property
    def slot(self) -> memoryview[float]: ...

    def share(self, slot: memoryview[float]) -> None:
        """Write to `slot` from now on."""


EVENTS = 100
"""Most failures whose texts are stored; all failures are counted."""


@dataclass
class FailureLog:
    """Failures of lanes and environments in a run.

    restarts: number of restarts of lanes and environments.
    lost_transitions: number of steps that were begun and not stored.
    events: texts of failures and notes, at most EVENTS.
    failure: why the run must stop; None while it may go on.
    """

    restarts: int = 0
    lost_transitions: int = 0
    events: list[str] = field(default_factory=list)
    failure: str | None = None

    def note(self, text: str, *, lost: int = 0, restarts: int = 1) -> None:
        """Add an event. lost: transitions lost. restarts: 0 if nothing was restarted."""
        self.restarts += restarts
        self.lost_transitions += lost
        if len(self.events) < EVENTS:
            self.events.append(text)

    def announce(self, text: str) -> None:
        """Add an event after which nothing was restarted, and log it at once."""
        self.note(text, restarts=0)
        LOGGER.warning(text)


def external_envs_of(job: Job, call: Call) -> EnvStep | None:
    """Return the external environments behind a bound call; None if it steps none."""
    if not job.steps_external_envs:
        return None
    from pearl_devices.primitives.envs.gym_envs import env_step_of

    return env_step_of(call)


Listener = Callable[[str, int], bool]
"""Gets a failure of an environment (text, transitions lost); returns whether the run goes on."""


def failure_listener(log: FailureLog, *, restart: bool) -> Listener:
    """Return a listener for failures of environments.

    The environment restarts in any case, so that the iteration can be completed. Unless `restart`,
    the run then stops.
    """

    def listen(text: str, lost: int) -> bool:
        log.note(text, lost=lost)
        if not restart and log.failure is None:
            log.failure = text
        return restart

    return listen


def failure_sender(send: Callable[..., object], *, restart: bool) -> Listener:
    """Return a listener that sends failures to the process that has the log: send(failure=text,
    lost=transitions)."""

    def listen(text: str, lost: int) -> bool:
        send(failure=text, lost=lost)
        return restart

    return listen


_awake = {"checked_s": 0.0, "since_s": 0.0}
"""Monotonic times: of the last call of `describe_overdue_env`, and of the time since which this
process has run without being stopped."""


def describe_overdue_env(environments: Mapping[str, SteppedEnvs], limit_s: float) -> str | None:
    """Name an environment whose step has taken longer than `limit_s`; None if there is none.

    Call this several times within `limit_s`. A longer gap between two calls means that the process
    was stopped (with Ctrl-Z, for example); then the time limit starts again.
    """
    now_s = monotonic()
    if now_s - _awake["checked_s"] > limit_s:
        _awake["since_s"] = now_s
    _awake["checked_s"] = now_s
    for name, env in environments.items():
        since_s = env.since_s
        if since_s is not None and now_s - max(since_s, _awake["since_s"]) > limit_s:
            where = describe_place(env)
            return f"environment {env.name!r} of {name}{where} has not answered for {limit_s:g} s"
    return None


def describe_place(env: SteppedEnvs) -> str:
    """Name the number, the episode and the step of what is asked of an environment."""
    _, number, step, episode = (int(n) for n in env.slot)
    which = f", number {number}" if number >= 0 else ""
    return f"{which}, episode {episode}, step {step},"


@contextmanager
def interrupting_overdue_envs(
    environments: Mapping[str, SteppedEnvs],
    limit_s: float,
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Within this context, interrupt a step of this thread's environments after `limit_s`: a
    signal handler raises TimeoutError inside the step. After NAMED_S, `on_wait` gets a sentence.

    Python runs signal handlers in the main thread only, so in other threads this does nothing. Code
    that never returns to Python cannot be interrupted: see `watchdog`.
    """
    if not environments or threading.current_thread() is not threading.main_thread():
        yield
        return

    named: list[float] = []

    def look() -> str | None:
        overdue = describe_overdue_env(environments, limit_s)  # first: it notices a stop
        began = [env.since_s for env in environments.values() if env.since_s is not None]
        waits = describe_overdue_env(environments, NAMED_S) if on_wait else None
        if on_wait and waits and named != began:
            named[:] = began
            on_wait(waits)
        return overdue

    def tick(number: int, frame: FrameType | None) -> None:
        if look():
            raise TimeoutError(f"it has not answered for {limit_s:g} s (train.env_time_limit)")

    if not host_system.INTERRUPTS:
        with _ending_overdue_envs(look, limit_s):
            yield
        return
    before = signal.signal(signal.SIGALRM, tick)
    check_s = min(limit_s, NAMED_S) / 4 if on_wait else limit_s / 4
    timer = signal.setitimer(signal.ITIMER_REAL, check_s, check_s)
    try:
        yield
    finally:  # an evaluation within a run restores the timer of the run's environments
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def first_pass(graph: TaskGraph, arrays: Buffers) -> PassFirst | None:
    """Return what passes first observations through the kernels of the user that change them; None
    if there are none."""
    kernels = [
        t.kernel
        for t in graph.tasks
        if OBSERVED in changes(t.kernel) and kind_of(t.kernel).in_evaluation != LEFT_OUT
    ]
    if not kernels:
        return None
    from pearl_devices.primitives.envs.interface import Passing

    passing = [Passing(k, {name: arrays[name] for name in trained_arrays(k)}) for k in kernels]

    def pass_rows(rows: Any) -> Any:
        for kernel in passing:
            rows = kernel(OBSERVED, rows)
        return rows

    return pass_rows


def close(environments: Environments) -> None:
    """End environments whose lanes have ended."""
    for env in environments.values():
        env.close()


@contextmanager
def _ending_overdue_envs(look: Callable[[], str | None], limit_s: float) -> Iterator[None]:
    """Within this context, end the process if `look` names an environment that is overdue. Nothing
    can interrupt it where the system has no timer."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(min(limit_s, NAMED_S) / 4):
            if overdue := look():
                text = (
                    f"pearl: {overdue} (train.env_time_limit), and {host_system.NAME} interrupts "
                )
                text += "none; the process ends now. A checkpoint in the run's folder stays valid\n"
                os.write(2, text.encode())
                os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True, name="pearl environments")
    watcher.start()
    try:
        yield
    finally:
        over.set()


def snapshot(environments: Environments) -> dict[str, list[dict[str, Any]]]:
    """Map each task to the JSON from which `restore` restores its environments."""
    return {name: env.snapshot() for name, env in environments.items()}


def restore(
    environments: Environments,
    snapshots: Mapping[str, Any],
    pass_first: PassFirst | None = None,
) -> list[str]:
    """Restore environments from the result of `snapshot`; return a sentence for each task of which
    some begin new episodes, because they did not come back the same.

    pass_first: see `first_pass`.

    Raises:
        ValueError: a snapshot is missing or damaged.
    """
    found: list[str] = []
    for name, env in environments.items():
        if name not in snapshots:
            raise ValueError(
                f"environments {env.name!r} of {name} are not in the checkpoint, so it cannot "
                "be resumed"
            )
        try:
            env.pass_first = pass_first
            found += env.restore(snapshots[name])
        except (ValueError, EnvironmentFailed):
            raise
        except Exception as error:  # a damaged entry, or an error of user code
            raise ValueError(
                f"environments {env.name!r} of {name} cannot be restored from the checkpoint: "
                f"{type(error).__name__}: {error}"
            ) from error
    return found
