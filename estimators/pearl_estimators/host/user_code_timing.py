"""Timing of user code, which no calibration has: environments, kernels, networks and algorithms.

A process of its own times what a command needs, and the store (`timed_rows`) keeps it.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from pearl_devices import Device, Kernel, UnsupportedError
from pearl_devices.base import IN_TURN, PROCESSES, Call
from pearl_devices.kernels import kind_of
from pearl_estimators.cpu_datasheet import cpu_datasheet
from pearl_estimators.estimates import Estimate
from pearl_estimators.host.benchmark_kernels import CORES, GROUPS, group, timed_variant
from pearl_estimators.host.calibration import MeasuringDiedError, MeasuringTimeoutError
from pearl_estimators.host.child_process import run_in_child
from pearl_estimators.host.linear_fit import family
from pearl_estimators.host.timed_rows import (
    Job,
    Seconds,
    append_row,
    build_kernel,
    describe_job,
    find_others,
    find_row,
    path,
    stored_rows,
    unstored,
)
from pearl_estimators.host.timer import alone_s, time_call
from pearl_estimators.sealed_files import CalibrationError

COUNTS = (1, 4)
"""Numbers of environments that are timed in a call. Their difference gives the cost of one more."""
EACH_S, ROUNDS, TIMEOUT_S = 0.05, 3, 60.0
"""Seconds of timing a kernel in a round; rounds; limit of the process in seconds.

The rounds alternate between the kernels of a job, and the fastest counts, so that a burst of other
load falls into one round only."""
LONG_S = 0.3
"""A call of a network or an algorithm that takes longer is timed once."""
BUDGET_S = 10.0
"""CPU seconds that a command spends on timing networks and algorithms, at most about."""
BAND, OCTAVE = 1.3, 0.1
"""Least factor of a band, and how much each doubling of the time adds to a scaled one. Assumed: the
spread of one timing is narrower than the difference between two runs."""
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
    kernels, _ = _count_job(kernel, variant)
    return _timings(*kernels, variant=variant)


def _count_job(kernel: Kernel, variant: str) -> Job:
    bare = replace(kernel, flops=0.0, bytes_in=0.0, bytes_out=0.0, resident_bytes=0.0)
    return tuple(replace(bare, dims={**kernel.dims, "envs": n}) for n in COUNTS), variant


def time_user_kernel(kernel: Kernel, variant: str) -> Estimate:
    """Estimate a call of a user-defined kernel kind from a timing in a child process.

    The arrays hold small random numbers.

    Raises:
        CalibrationError: the kernel cannot be timed; the text says why.
    """
    (seconds,) = _timings(kernel, variant=variant)
    return _estimate(seconds, f"{kernel.kind} timed on this host")


def is_user_code(kernel: Kernel) -> bool:
    """Return whether no calibration and no count of the data sheet serves a kernel, because it runs
    code of the user."""
    kind = kind_of(kernel)
    if kind.structure == "environment":
        return group(family(kernel)) not in GROUPS
    return _has_network(kernel) or kind.structure in ("own", "sweep", "average", "shared")


def _has_network(kernel: Kernel) -> bool:
    """Whether a kernel computes with a user-defined network or a user-defined loss."""
    return bool(kernel.modules) or kind_of(kernel).assumed


def list_jobs(kernel: Kernel, variant: str) -> list[Job]:
    """Return the jobs whose timings give the time of a call; empty if it runs no user code."""
    if not is_user_code(kernel):
        return []
    if kind_of(kernel).structure == "environment":
        return [_count_job(kernel, variant)]
    return [((kernel,), _timed_as(kernel, variant))]


def _timed_as(kernel: Kernel, variant: str) -> str:
    """The variant that is timed: `torch` for several threads, which need as many free cores."""
    return "torch" if timed_variant(variant) != variant or variant == "torch-2" else variant


def estimate_network(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """Estimate a call with a user-defined network or loss: timed, scaled from the nearest timed
    size of the same code, or the data sheet and why it is not timed."""
    way = _timed_as(kernel, variant)
    job = (kernel,), way
    sheet = cpu_datasheet(kernel, device, variant, width)
    if row := find_row(job):
        if way == variant:
            return _estimate(row[0], "timed on this host")
        near = [(kernel, row[0])]
    else:
        near = list(find_others(job))
    if not near:
        time_jobs([job])
        if find_row(job):
            return estimate_network(kernel, device, variant, width)
        why = _failed[describe_job(job)["key"]]
        return replace(sheet, source=f"{sheet.source}; not timed: {why}")
    ratios = [sheet.latency_s / cpu_datasheet(k, device, way, 1).latency_s for k, _ in near]
    octaves, by, seconds = min(
        (abs(math.log2(ratio)), ratio, timed[0])
        for ratio, (_, timed) in zip(ratios, near, strict=True)
    )
    latency_s, band = by * seconds, BAND + OCTAVE * octaves
    return replace(
        sheet,
        latency_s=latency_s,
        occupancy_s=latency_s,
        low_s=latency_s / band,
        high_s=latency_s * band,
        rung="probed",
        source=f"{by:.3g} x the nearest timed size, by the ratio of the data sheet; band assumed",
    )


def _estimate(seconds: Sequence[float], source: str) -> Estimate:
    return Estimate(
        seconds[0],
        low_s=max(0.0, min(seconds[0] / BAND, seconds[1])),  # a block by `alone_s` may be below 0
        high_s=max(seconds[0] * BAND, seconds[2]),
        rung="measured",
        bound_by="overhead",
        source=f"{source}; band at least ×/÷ {BAND:g}, assumed",
    )


def _timings(*kernels: Kernel, variant: str) -> list[Seconds]:
    timings = _timed(kernels, variant)
    if isinstance(timings, str):
        raise CalibrationError(timings)
    return timings


def _timed(kernels: tuple[Kernel, ...], variant: str) -> list[Seconds] | str:
    """A timing of each kernel, or the reason for having none."""
    job = kernels, variant
    time_jobs([job])
    return find_row(job) or _failed[describe_job(job)["key"]]


_failed: dict[str, str] = {}
"""Key of a job → why it is not timed. This process does not try again."""
_spent_s = [0.0]
"""CPU seconds of all processes that have timed networks and algorithms for this one."""


def time_jobs(jobs: Iterable[Job]) -> None:
    """Time the jobs that the store lacks, in their order, in one child process.

    If user code ends the process, another one times the rest. Networks and algorithms are timed
    until BUDGET_S is spent.
    """
    described = {row["key"]: (job, row) for job in jobs if (row := describe_job(job))}
    while True:
        known = {*stored_rows(), *_failed}
        left = {key: each for key, each in described.items() if key not in known}
        optional = [key for key, (job, _) in left.items() if _has_network(job[0][0])]
        if _spent_s[0] >= BUDGET_S:
            _failed.update(dict.fromkeys(optional, f"the budget of {BUDGET_S:g} s was spent"))
            left = {key: each for key, each in left.items() if key not in optional}
        if not left:
            return
        _time_in_child(left, optional)


def _time_in_child(left: Mapping[str, tuple[Job, dict[str, Any]]], optional: list[str]) -> None:
    """Time these jobs in a child process until it ends; it stores what it has timed."""
    limit_s = _step_limit_s.get()
    request = {
        "jobs": [row for _, row in left.values()],
        "optional": optional,
        "budget_s": BUDGET_S - _spent_s[0],
        "file": str(path()),
        "step_limit_s": limit_s,
    }
    steps = f", each step for at most {limit_s:g} s" if limit_s else ""
    named = ", ".join(dict.fromkeys(_describe(job[0][0]) for job, _ in left.values()))
    LOG.info("timing %s, in a process of its own, for at most %.0f s%s", named, TIMEOUT_S, steps)
    late = threading.Timer(NAMED_S, _name_late, (left,))
    late.daemon = True
    late.start()
    try:
        answer = run_in_child("own", EACH_S, timeout_s=TIMEOUT_S, request=request)
        unstored.update(answer["unstored"])
        _failed.update(answer["failed"])
        for key in left.keys() - stored_rows().keys():
            _failed.setdefault(key, "the process that measures gave no result")
        _spent_s[0] += answer["cpu_s"] if optional else 0.0
    except CalibrationError as error:
        rest = [key for key in left if key not in stored_rows()]
        if not rest:
            return
        kernels = left[rest[0]][0][0]
        if not isinstance(error, MeasuringDiedError):  # the rest would take as long
            _failed.update(dict.fromkeys(rest, str(error)))
        _failed[rest[0]] = str(error)
        if isinstance(error, MeasuringDiedError | MeasuringTimeoutError):
            failed_timings[kernels[0].program or kernels[0].kind] = str(error)
            LOG.warning(
                "timing %s failed: %s. The plan assumes a time; training calls the same code and "
                "may end in the same way",
                *(_describe(kernels[0]), error),
            )
    finally:
        late.cancel()
    for key in left:
        if failed := _failed.get(key, "").partition("EnvironmentFailed: ")[2]:
            LOG.warning("%s. The plan assumes a time; training would end in the same way", failed)


def _name_late(left: Mapping[str, tuple[Job, dict[str, Any]]]) -> None:
    """Name the job that a child process has been timing for long."""
    waiting = (job for key, (job, _) in left.items() if key not in stored_rows())
    if job := next(waiting, None):
        LOG.warning(
            "timing %s has not answered for %.0f s; after %.0f s it is ended, and the plan "
            "assumes a time",
            *(_describe(job[0][0]), NAMED_S, TIMEOUT_S),
        )


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


def time_user_code(request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Time jobs and store their rows. Runs in the child process.

    The result has the rows that could not be written, the reasons why others were not timed, and
    the CPU seconds of this process.
    """
    failed: dict[str, str] = {}
    rows: dict[str, Any] = {}
    begin_s = time.process_time()
    for described in request["jobs"]:
        key = described["key"]
        optional = key in request["optional"]
        if optional and time.process_time() - begin_s > request["budget_s"]:
            failed[key] = f"the budget of {BUDGET_S:g} s was spent"
            continue
        try:
            timings = _time_job(described, seconds, request.get("step_limit_s"), once=optional)
            try:
                append_row(Path(request["file"]), described, timings)
            except OSError:  # a folder without write permission
                rows[key] = {**described, "seconds": timings}
        except UnsupportedError as error:
            failed[key] = str(error)
        except Exception as error:  # user code may raise anything
            text = traceback.format_exception_only(error)[-1].strip()
            failed[key] = f"measuring this host failed: {text}"
    return {"unstored": rows, "failed": failed, "cpu_s": time.process_time()}


def _time_job(
    described: Mapping[str, Any], seconds: float, limit_s: float | None, *, once: bool
) -> list[Seconds]:
    """The `Seconds` of each kernel's quickest round. Kernels with long calls have fewer rounds.

    once: a call of more than LONG_S is timed once.
    """
    from pearl_estimators.host.benchmark_kernels import bind_filled

    calls: list[tuple[Call, bool]] = []
    for row in described["kernels"]:
        timed = build_kernel(row)
        # User code may wait for a simulator, a device or another process.
        waits = kind_of(timed).structure in ("environment", "own", "sweep", "average")
        calls.append((bind_new_actions(bind_filled(timed, described["variant"])), waits))
    rounds: list[list[Seconds]] = [[] for _ in calls]
    with _interrupting([call for call, _ in calls], limit_s):
        if once:
            begin_s = time.process_time()
            calls[0][0]()
            cpu_s = time.process_time() - begin_s
            if cpu_s > LONG_S:
                return [(cpu_s, cpu_s, cpu_s, cpu_s)]
        end_s = time.monotonic() + 2 * ROUNDS * seconds * len(calls)
        for number in range(ROUNDS):
            if number and time.monotonic() > end_s:
                break
            for timings, (call, waits) in zip(rounds, calls, strict=True):
                timing = time_call(call, seconds=seconds, computes=not waits, wall=alone_s)
                cpu_s = timing.median_s / timing.contention
                timings.append((timing.median_s, timing.low_s, timing.high_s, cpu_s))
    return [min(timings) for timings in rounds]


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
