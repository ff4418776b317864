"""Timing of user-defined environments and kernels, which no calibration has: once a process."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from typing import Any

from pearl_devices import Kernel, UnsupportedError
from pearl_devices.base import IN_TURN, PROCESSES, Call
from pearl_devices.kernels import kind_of
from pearl_estimators.estimates import Estimate
from pearl_estimators.host.benchmark_kernels import CORES
from pearl_estimators.host.calibration import MeasuringDiedError, MeasuringTimeoutError
from pearl_estimators.host.child_process import run_in_child
from pearl_estimators.host.timer import alone_s, time_call
from pearl_estimators.sealed_files import CalibrationError

COUNTS = (1, 4)
"""Numbers of environments that are timed in a call. Their difference gives the cost of one more."""
EACH_S, ROUNDS, TIMEOUT_S = 0.1, 3, 60.0
"""Seconds of timing a kernel in a round; rounds; limit of the process in seconds.

The rounds alternate between the kernels, and the fastest counts, so that a burst of other load
falls into one round only."""
NAMED_S = 30.0
"""Seconds without an answer after which a timing is named."""
ACTIONS = 64
"""Number of random actions that alternate in the calls of a timing."""
WAITS = 0.5
"""Least waiting share of a step for which an environment counts as waiting (assumed)."""

LOG = logging.getLogger("pearl")

_step_limit_s: ContextVar[float | None] = ContextVar("step_limit_s", default=None)
"""Seconds that a step of an environment may take while it is timed; None: TIMEOUT_S in all."""


@contextmanager
def limiting_steps(seconds: float | None) -> Iterator[None]:
    """Within this context, a step of an environment that is timed may take `seconds`."""
    before = _step_limit_s.set(seconds)
    try:
        yield
    finally:
        _step_limit_s.reset(before)


Seconds = tuple[float, float, float, float]
"""Median, fastest, slowest, and the CPU seconds of this process in the quickest round."""


def time_user_env(kernel: Kernel, variant: str) -> Estimate:
    """Estimate a call of a user-defined environment from two timings in a child process.

    Environments in processes compute on all cores. Their call takes at least the time in which all
    of them compute one after the other, divided by the number of cores.

    Raises:
        CalibrationError: the environment cannot be timed; the text says why.
    """
    few, many = _time_counts(kernel, variant)
    envs, steps = kernel.dim("envs"), COUNTS[1] - COUNTS[0]
    least_s, how = 0.0, f"{COUNTS[0]} and {COUNTS[1]} environments"
    if variant == PROCESSES:
        least_s = envs * _time_counts(kernel, IN_TURN)[0][3] / CORES
        how += f", each in a process; alone one waits {waiting_share(kernel):.0%} of a step"

    def at(place: int) -> float:
        one_more = max(0.0, (many[place] - few[place]) / steps)
        return max(few[place] + one_more * (envs - COUNTS[0]), one_more * envs, least_s)

    return _estimate((at(0), at(1), at(2)), f"{kernel.program} timed on this host with {how}")


def waiting_share(kernel: Kernel) -> float:
    """Return the share of a step, 0 to 1, in which a user-defined environment does not compute.

    It waits for another process, a device or a server then. 0 if it cannot be timed.
    """
    try:
        seconds, _, _, cpu_s = _time_counts(kernel, IN_TURN)[0]
    except CalibrationError:
        return 0.0
    return max(0.0, 1 - cpu_s / seconds) if seconds > 0 else 0.0


def gains_by_processes(kernel: Kernel) -> bool:
    """Return whether an environment waits, and can be timed in processes.

    A vector environment cannot; it would have the roofline instead of a timing.
    """
    if waiting_share(kernel) < WAITS:
        return False
    try:
        _time_counts(kernel, PROCESSES)
    except CalibrationError:
        return False
    return True


def _time_counts(kernel: Kernel, variant: str) -> list[Seconds]:
    """Timings of a call with each of COUNTS environments."""
    bare = replace(kernel, flops=0.0, bytes_in=0.0, bytes_out=0.0, resident_bytes=0.0)
    sized = (replace(bare, dims={**kernel.dims, "envs": n}) for n in COUNTS)
    return _timings(*sized, variant=variant)


def time_user_kernel(kernel: Kernel, variant: str) -> Estimate:
    """Estimate a call of a user-defined kernel kind from a timing in a child process.

    The arrays hold small random numbers.

    Raises:
        CalibrationError: the kernel cannot be timed; the text says why.
    """
    (seconds,) = _timings(kernel, variant=variant)
    return _estimate(seconds, f"{kernel.kind} timed on this host")


def _estimate(seconds: Sequence[float], source: str) -> Estimate:
    return Estimate(
        seconds[0],
        low_s=max(0.0, min(seconds[0], seconds[1])),  # a block by `alone_s` may be below 0
        high_s=max(seconds[0], seconds[2]),
        rung="measured",
        bound_by="overhead",
        source=source,
    )


def _timings(*kernels: Kernel, variant: str) -> list[Seconds]:
    timings = _timed(kernels, variant)
    if isinstance(timings, str):
        raise CalibrationError(timings)
    return timings


@lru_cache(maxsize=64)
def _timed(kernels: tuple[Kernel, ...], variant: str) -> list[Seconds] | str:
    """A timing of each kernel, or the reason for having none. A failure is not tried again."""
    rows = [
        {"kind": k.kind, "sizes": dict(k.dims), "program": k.program, "args": dict(k.args)}
        for k in kernels
    ]
    limit_s = _step_limit_s.get()
    request = {"kernels": rows, "variant": variant, "step_limit_s": limit_s}
    what = _describe(kernels[0])
    steps = f", each step for at most {limit_s:g} s" if limit_s else ""
    LOG.info("timing %s, in a process of its own, for at most %.0f s%s", what, TIMEOUT_S, steps)
    late = threading.Timer(
        NAMED_S,
        LOG.warning,
        (
            "timing %s has not answered for %.0f s; after %.0f s it is ended, and the plan "
            "assumes a time",
            *(what, NAMED_S, TIMEOUT_S),
        ),
    )
    late.daemon = True
    late.start()
    try:
        timings = run_in_child("own", EACH_S, timeout_s=TIMEOUT_S, request=request)
    except CalibrationError as error:
        if isinstance(error, MeasuringDiedError | MeasuringTimeoutError):
            failed_timings[kernels[0].program or kernels[0].kind] = str(error)
            LOG.warning(
                "timing %s failed: %s. The plan assumes a time; training calls the same code and "
                "may end in the same way",
                *(what, error),
            )
        elif failed := str(error).partition("EnvironmentFailed: ")[2]:
            LOG.warning("%s. The plan assumes a time; training would end in the same way", failed)
        return str(error)
    finally:
        late.cancel()
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in timings]


failed_timings: dict[str, str] = {}
"""Program of an environment or kind of a kernel → how the process ended that timed it."""


def _describe(kernel: Kernel) -> str:
    if kind_of(kernel).structure == "environment":
        return f"environment {kernel.program!r}"
    return f"kernel {kernel.kind}"


def bind_new_actions(call: Call) -> Call:
    """Give a bound call of an environment with discrete actions new actions in every call.

    In many environments, a repeated action ends no episode, and resets are a part of a run's steps.
    The actions are uniform, ACTIONS of them in turn, from a fixed seed. Other calls are returned
    unchanged.
    """
    import numpy as np
    from gymnasium.spaces import Discrete

    from pearl_devices.primitives.envs.gym_envs import env_step_of

    step = env_step_of(call)
    if step is None or not isinstance(step.action_space, Discrete):
        return call
    action = step.buffers["act.action"]
    shape = (ACTIONS, *action.shape)
    actions = cycle(np.random.default_rng(0).integers(0, step.action_space.n, shape))

    def act() -> None:
        action[:] = next(actions)
        call()

    act.inner = call  # type: ignore[attr-defined]
    return act


def time_user_code(request: Mapping[str, Any], seconds: float) -> list[Seconds]:
    """Return the `Seconds` of each kernel's quickest round. Runs in the child process.

    The time of all rounds is limited, so kernels with long calls have one or two rounds.

    Raises:
        ValueError: a kernel cannot be bound; the text says why.
    """
    from pearl_devices import kernel
    from pearl_estimators.host.benchmark_kernels import bind_filled

    calls: list[tuple[Call, bool]] = []
    for row in request["kernels"]:
        sizes = {n: tuple(v) if isinstance(v, list) else v for n, v in row["sizes"].items()}
        timed = kernel(row["kind"], sizes, program=row["program"], args=row["args"])
        try:
            # User code may wait for a simulator, a device or another process.
            may_wait = kind_of(timed).structure != "shared"
            calls.append((bind_new_actions(bind_filled(timed, request["variant"])), may_wait))
        except UnsupportedError as error:
            raise ValueError(str(error)) from None
    rounds: list[list[Seconds]] = [[] for _ in calls]
    with _interrupting([call for call, _ in calls], request.get("step_limit_s")):
        _time_rounds(calls, rounds, seconds)
    return [min(timings) for timings in rounds]


def _time_rounds(
    calls: Sequence[tuple[Call, bool]], rounds: Sequence[list[Seconds]], seconds: float
) -> None:
    """Append a timing of each call to its rounds, until the time is used up."""
    end_s = time.monotonic() + 2 * ROUNDS * seconds * len(calls)
    for number in range(ROUNDS):
        if number and time.monotonic() > end_s:
            break
        for timings, (call, may_wait) in zip(rounds, calls, strict=True):
            timing = time_call(call, seconds=seconds, computes=not may_wait, wall=alone_s)
            cpu_s = timing.median_s / timing.contention
            timings.append((timing.median_s, timing.low_s, timing.high_s, cpu_s))


@contextmanager
def _interrupting(calls: Sequence[Call], limit_s: float | None) -> Iterator[None]:
    """Within this context, interrupt a step of the environments behind `calls` that takes longer
    than `limit_s`: it fails with TimeoutError."""
    from pearl_devices.primitives.envs.gym_envs import env_step_of
    from pearl_devices.system import host_system

    found = (env_step_of(getattr(call, "inner", call)) for call in calls)
    steps = [step for step in found if step is not None]
    if limit_s is None or not steps or not host_system.INTERRUPTS:
        yield
        return

    def tick(number: int, frame: object) -> None:
        for step in steps:
            if step.since_s is not None and time.monotonic() - step.since_s > limit_s:
                raise TimeoutError(f"it has not answered for {limit_s:g} s (train.env_time_limit)")

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, limit_s / 4, limit_s / 4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
