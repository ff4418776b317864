"""Measured rung of code of the user's own, which no calibration knows: timed once a process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from typing import Any

from pearl_devices import Kernel, UnsupportedError
from pearl_devices.base import IN_TURN, PROCESSES, Call
from pearl_devices.kernels import kind_of
from pearl_estimators.estimates import Estimate
from pearl_estimators.host.benchmark_kernels import CORES
from pearl_estimators.host.calibration import CalibrationError
from pearl_estimators.host.child_process import in_child
from pearl_estimators.host.timer import alone_s, time_call

COUNTS = (1, 4)
"""Environments in a call, timed: the cost of one more is the difference."""
EACH_S, ROUNDS, TIMEOUT_S = 0.1, 3, 60.0
"""Seconds of timing a kernel in a round; rounds, in turns over the kernels, of each of which the
quickest counts: a burst of other load is in one of them; seconds until the process is ended."""
ACTIONS = 64

WAITS = 0.5
"""Share of a step from which on an environment waits rather than computes (assumed)."""

Seconds = tuple[float, float, float, float]
"""Median, fastest, slowest, and the CPU seconds of this process in the quickest round."""


def time_user_env(kernel: Kernel, variant: str) -> Estimate:
    """One call of an environment of the user's own, from two timings in a process of its own.

    Of environments in processes of their own, which compute on all cores, no call is shorter than
    what they compute one after the other, by the timings of such calls, over the cores.

    Raises:
        CalibrationError: it cannot be timed; the text says why.
    """
    few, many = _of_counts(kernel, variant)
    envs, steps = kernel.dim("envs"), COUNTS[1] - COUNTS[0]
    least_s, how = 0.0, f"{COUNTS[0]} and {COUNTS[1]} environments"
    if variant == PROCESSES:
        least_s = envs * _of_counts(kernel, IN_TURN)[0][3] / CORES
        how += f", each in a process; alone one waits {waits(kernel):.0%} of a step"

    def at(place: int) -> float:
        one_more = max(0.0, (many[place] - few[place]) / steps)
        return max(few[place] + one_more * (envs - COUNTS[0]), one_more * envs, least_s)

    return _estimate((at(0), at(1), at(2)), f"{kernel.program} timed on this host with {how}")


def waits(kernel: Kernel) -> float:
    """The share of a step, 0 to 1, in which an environment of the user's own computes nothing: it
    waits for another process, a device or a server. 0 where it cannot be timed."""
    try:
        seconds, _, _, cpu_s = _of_counts(kernel, IN_TURN)[0]
    except CalibrationError:
        return 0.0
    return max(0.0, 1 - cpu_s / seconds) if seconds > 0 else 0.0


def _of_counts(kernel: Kernel, variant: str) -> list[Seconds]:
    """Timings of a call with each of COUNTS environments."""
    bare = replace(kernel, flops=0.0, bytes_in=0.0, bytes_out=0.0, resident_bytes=0.0)
    sized = (replace(bare, dims={**kernel.dims, "envs": n}) for n in COUNTS)
    return _timings(*sized, variant=variant)


def time_user_kernel(kernel: Kernel, variant: str) -> Estimate:
    """One call of a kernel kind of the user's own, from a timing in a process of its own, over
    arrays of small random numbers.

    Raises:
        CalibrationError: it cannot be timed; the text says why.
    """
    (found,) = _timings(kernel, variant=variant)
    return _estimate(found, f"{kernel.kind} timed on this host")


def _estimate(seconds: Sequence[float], source: str) -> Estimate:
    return Estimate(
        seconds[0],
        low_s=max(0.0, min(seconds[0], seconds[1])),  # by `alone_s` a block may take less than none
        high_s=max(seconds[0], seconds[2]),
        rung="measured",
        bound_by="overhead",
        source=source,
    )


def _timings(*kernels: Kernel, variant: str) -> list[Seconds]:
    found = _timed(kernels, variant)
    if isinstance(found, str):
        raise CalibrationError(found)
    return found


@lru_cache(maxsize=64)
def _timed(kernels: tuple[Kernel, ...], variant: str) -> list[Seconds] | str:
    """A timing of each, or why there are none, which is not tried again either."""
    given = [
        {"kind": k.kind, "sizes": dict(k.dims), "program": k.program, "args": dict(k.args)}
        for k in kernels
    ]
    try:
        rows = in_child(
            "own", EACH_S, timeout_s=TIMEOUT_S, given={"kernels": given, "variant": variant}
        )
    except CalibrationError as error:
        return str(error)
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in rows]


def acting(call: Call) -> Call:
    """A bound call; of an environment with discrete actions with others in every call.

    The same action again and again ends no episode of many environments, and what a reset costs is
    a part of a run's steps. The actions are uniform, 64 in turn by a fixed seed.
    """
    import numpy as np
    from gymnasium.spaces import Discrete

    from pearl_devices.primitives.envs.gym_envs import stepping

    step = stepping(call)
    if step is None or not isinstance(step.action_space, Discrete):
        return call
    action = step.buffers["act.action"]
    drawn = np.random.default_rng(0).integers(0, step.action_space.n, (ACTIONS, *action.shape))
    turn = cycle(drawn)

    def whole() -> None:
        action[:] = next(turn)
        call()

    return whole


def time_here(given: Mapping[str, Any], seconds: float) -> list[Seconds]:
    """What `in_child` runs: the `Seconds` of a call of each kernel in its quickest round. One whose
    calls are long has a round less, or two."""
    from pearl_devices import kernel
    from pearl_estimators.host.benchmark_kernels import bound

    calls: list[tuple[Call, bool]] = []
    for k in given["kernels"]:
        sizes = {n: tuple(v) if isinstance(v, list) else v for n, v in k["sizes"].items()}
        of = kernel(k["kind"], sizes, program=k["program"], args=k["args"])
        try:
            # Code of the user's own may wait: for a simulator, a device, another process.
            waits = kind_of(of).structure != "shared"
            calls.append((acting(bound(of, given["variant"])), waits))
        except UnsupportedError as error:
            raise ValueError(str(error)) from None
    rows: list[list[Seconds]] = [[] for _ in calls]
    end_s = time.monotonic() + 2 * ROUNDS * seconds * len(calls)
    for number in range(ROUNDS):
        if number and time.monotonic() > end_s:
            break
        for row, (call, waits) in zip(rows, calls, strict=True):
            timing = time_call(call, seconds=seconds, computes=not waits, wall=alone_s)
            cpu_s = timing.median_s / timing.contention
            row.append((timing.median_s, timing.low_s, timing.high_s, cpu_s))
    return [min(row) for row in rows]
