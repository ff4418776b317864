"""External environments: those whose state is not in the arrays of a run.

Here are the log of their failures, their time limit, their snapshots and their restoration. Native
environments live in the arrays and need none of this.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from pearl_devices import Call

if TYPE_CHECKING:
    from pearl.runtime.protocol.single_lane import Job
    from pearl_devices.primitives.envs.gym_steps import EnvStep

TIME_LIMIT_S = 60.0
"""Seconds that a step of an environment may take, where the spec does not say (assumed)."""

Environments = Mapping[str, "EnvStep"]
"""Name of a task, of its group too where it has several → its environments."""


class SteppedEnvs(Protocol):
    """Environments that are asked for steps.

    name: of their kind.
    since_s: monotonic time at which the one was asked that has not answered; None: none was.
    """

    name: str
    since_s: float | None


EVENTS = 100
"""Failures that are told in words at most; all are counted."""


@dataclass
class FailureLog:
    """Failures of lanes and environments in a run.

    restarts: of lanes and environments.
    lost_transitions: steps that were done, in part at least, and not stored.
    events: failures and notes in words, EVENTS at most.
    failure: why the run is to stop; None: it goes on.
    """

    restarts: int = 0
    lost_transitions: int = 0
    events: list[str] = field(default_factory=list)
    failure: str | None = None

    def note(self, text: str, *, lost: int = 0, restarts: int = 1) -> None:
        """Add an event. lost: transitions. restarts: 0 for a mere note."""
        self.restarts += restarts
        self.lost_transitions += lost
        if len(self.events) < EVENTS:
            self.events.append(text)


def external_envs_of(job: Job, call: Call) -> EnvStep | None:
    """The external environments behind a bound call; None where there are none."""
    if not job.steps_external_envs:
        return None
    from pearl_devices.primitives.envs.gym_envs import stepping

    return stepping(call)


def failure_listener(log: FailureLog, *, restart: bool) -> Callable[[str, int], None]:
    """A listener for failures of environments: text, transitions lost.

    The environment starts anew either way, so that the iteration can be completed. Unless `restart`
    the run then stops.
    """

    def hear(text: str, lost: int) -> None:
        log.note(text, lost=lost)
        if not restart and log.failure is None:
            log.failure = text

    return hear


_awake = {"looked_s": 0.0, "since_s": 0.0}
"""Monotonic times: of the last call of `describe_overdue_env`, and since which this
process was not stopped."""


def describe_overdue_env(environments: Mapping[str, SteppedEnvs], limit_s: float) -> str | None:
    """The environment that has not answered for `limit_s`, in words; None where all have.

    To be called several times in `limit_s`. Where it was not, the process had been stopped (Ctrl-Z,
    say), and the time begins anew.
    """
    now_s = monotonic()
    if now_s - _awake["looked_s"] > limit_s:
        _awake["since_s"] = now_s
    _awake["looked_s"] = now_s
    for name, env in environments.items():
        since_s = env.since_s
        if since_s is not None and now_s - max(since_s, _awake["since_s"]) > limit_s:
            return f"environment {env.name!r} of {name} has not answered for {limit_s:g} s"
    return None


@contextmanager
def interrupting_overdue_envs(
    environments: Mapping[str, SteppedEnvs], limit_s: float
) -> Iterator[None]:
    """Meanwhile an environment of this thread that does not answer within `limit_s` is interrupted
    by a TimeoutError raised inside it.

    Only the main thread of a process can be interrupted so; in other threads nothing happens here.
    Code that never returns to Python is not reached: see `watchdog`.
    """
    if not environments or threading.current_thread() is not threading.main_thread():
        yield
        return

    def tick(number: int, frame: FrameType | None) -> None:
        if describe_overdue_env(environments, limit_s):
            raise TimeoutError(f"it has not answered for {limit_s:g} s (train.env_time_limit)")

    before = signal.signal(signal.SIGALRM, tick)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s / 4, limit_s / 4)
    try:
        yield
    finally:  # of lanes whose environments are watched, amid an evaluation
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def snapshot(environments: Environments) -> dict[str, list[dict[str, Any]]]:
    """Name of a task → the JSON from which `restore` brings its environments back."""
    return {name: env.snapshot() for name, env in environments.items()}


def restore(environments: Environments, kept: Mapping[str, Any]) -> None:
    """Bring environments back as they were.

    Raises:
        ValueError: one is missing in `kept`, or does not come back the same.
    """
    for name, env in environments.items():
        if name not in kept:
            raise ValueError(
                f"environments {env.name!r} of {name} are not in the checkpoint; it cannot go on"
            )
        try:
            env.restore(kept[name])
        except ValueError:
            raise
        except Exception as error:  # a damaged entry, or whatever a program of others raises
            raise ValueError(
                f"environments {env.name!r} of {name} cannot come back by what the checkpoint "
                f"says of them: {type(error).__name__}: {error}"
            ) from error
