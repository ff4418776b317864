"""The measured rung of environments that no calibration knows: each is timed once a process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pearl_devices import Kernel, UnsupportedError
from pearl_devices.kernel import Arg, Dim
from pearl_estimators.estimates import Estimate
from pearl_estimators.host.calibration import CalibrationError
from pearl_estimators.host.child_process import in_child
from pearl_estimators.host.timer import time_call

COUNTS = (1, 4)
"""Environments in a call, timed: what one more costs is the difference."""
EACH_S, TIMEOUT_S = 0.2, 60.0

Seconds = tuple[float, float, float]
"""Median, fastest, slowest."""


def measured(kernel: Kernel, variant: str) -> Estimate:
    """One call of env_step `kernel` in `variant`, from two timings in a process of its own.

    Raises CalibrationError where it cannot be timed; the text says why.
    """
    sizes = tuple(sorted((k, v) for k, v in kernel.dims.items() if k != "envs"))
    args = tuple(sorted(kernel.args.items()))
    found = _timings(str(kernel.program), args, sizes, variant)
    if isinstance(found, str):
        raise CalibrationError(found)
    few, many = found
    envs, steps = kernel.dim("envs"), COUNTS[1] - COUNTS[0]

    def at(place: int) -> float:
        one_more = max(0.0, (many[place] - few[place]) / steps)
        return max(few[place] + one_more * (envs - COUNTS[0]), one_more * envs)

    seconds = at(0)
    return Estimate(
        seconds,
        low_s=min(seconds, at(1)),
        high_s=max(seconds, at(2)),
        rung="measured",
        bound_by="overhead",
        source=f"{kernel.program} timed on this host with {COUNTS[0]} and {COUNTS[1]} environments",
    )


@lru_cache(maxsize=64)
def _timings(
    program: str,
    args: tuple[tuple[str, Arg], ...],
    sizes: tuple[tuple[str, Dim], ...],
    variant: str,
) -> tuple[Seconds, Seconds] | str:
    """The two timings, or why there are none, which is not tried again either."""
    given = {"program": program, "args": dict(args), "sizes": dict(sizes), "variant": variant}
    try:
        found = in_child("env", EACH_S, timeout_s=TIMEOUT_S, given=given)
    except CalibrationError as error:
        return str(error)
    few, many = (tuple(map(float, each)) for each in found)
    return (few[0], few[1], few[2]), (many[0], many[1], many[2])


def time_here(given: Mapping[str, object], seconds: float) -> list[Seconds]:
    """What `in_child` runs: median, fastest and slowest of a call with each of COUNTS."""
    from pearl_devices import kernel
    from pearl_estimators.host.benchmark_kernels import bound

    sizes, args = given["sizes"], given["args"]
    if not isinstance(sizes, dict) or not isinstance(args, dict):
        raise ValueError(f"an environment to time needs sizes and args; given are {given}")
    rows: list[Seconds] = []
    for envs in COUNTS:
        of = kernel("env_step", {**sizes, "envs": envs}, program=str(given["program"]), args=args)
        try:
            timing = time_call(bound(of, str(given["variant"])), seconds=seconds)
        except UnsupportedError as error:
            raise ValueError(str(error)) from None
        rows.append((timing.median_s, timing.low_s, timing.high_s))
    return rows
