"""Calibrations of an imagined machine, and processes that measure it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pearl_devices import Kernel
from pearl_estimators.host import calibrate_host
from pearl_estimators.host.benchmark_kernels import (
    draw_fit_kernels,
    group,
    offered_variants,
    threaded_kernels,
)
from pearl_estimators.host.calibration import Calibration
from pearl_estimators.host.calibration_file import journal_writer, store
from pearl_estimators.host.calibration_updates import fit_journal
from pearl_estimators.host.features import terms
from pearl_estimators.host.linear_fit import family
from pearl_estimators.host.timer import Timing
from pearl_estimators.host.user_code_timing import time_user_code

SECONDS = {
    "call": 2e-6, "gradient_step": 1e-6, "product": 1e-7, "operation": 2e-6, "layer": 1e-6,
    "backward_operation": 5e-6, "time": 5e-7, "cycles": 2e-10, "flops": 1e-11, "sides": 1e-10,
}  # fmt: skip

LANES = {"firing_s": 1e-6, "handoff_s": 1e-6, "carry_s_per_byte": 1e-11}
"""What lanes cost on it."""

SPREAD = 0.01
"""Of its timings: less than any band."""


@cache
def truth(k: Kernel, variant: str) -> float:
    """Seconds of the imagined machine: every term costs what it costs anywhere."""
    counted = terms(k, variant)
    return sum(SECONDS.get(name.partition(" ")[0], 1e-9) * n for name, n in counted.items())


def synthetic(
    noise: float = 0.0,
    contention: float | Callable[[Kernel, str], float] = 1.0,
    seed: int = 0,
    times: float | Callable[[Kernel, str], float] = 1.0,
) -> calibrate_host.Prepare:
    """A `prepare` whose timings are `truth` times a lognormal factor and `times`. contention: of
    the timings, as `Timing.contention`."""
    rng = np.random.default_rng(seed)

    def prepare(k: Kernel, variant: str) -> Callable[[float], Timing]:
        slow = contention(k, variant) if callable(contention) else contention
        long = times(k, variant) if callable(times) else times
        seconds = long * truth(k, variant) * math.exp(noise * rng.standard_normal())
        return lambda _: Timing(seconds, seconds, seconds, 8, SPREAD, slow)

    return prepare


KERNELS = [(k, v) for k in draw_fit_kernels() for v in offered_variants(k)]


def measure(
    seconds: float,
    *,
    kernels: Iterable[tuple[Kernel, str]],
    prepare: calibrate_host.Prepare,
    known: Calibration | None = None,
    apart: Callable[[], float] = lambda: 1e-6,
) -> Calibration:
    """What a process that measures these kernels leaves; two cores stay where they are."""
    found: list[Any] = []
    kernels = list(kernels)
    calibrate_host.time_points(
        *(seconds, kernels, found.append),
        apart_s=known.apart_s if known else 0.0,
        prepare=prepare,
        apart=apart,
        pause=lambda _: None,
    )
    threads = threaded_kernels({group(family(k)) for k, v in kernels if v == "torch"})
    calibrate_host.time_threads(threads, found.append, prepare=prepare, share=lambda _: 1.0)
    return fit_journal(known, found)


def keep() -> None:
    """Stores what measuring the whole imagined machine leaves, of this hour: nothing is timed
    again. Environments in Python take as much longer than native ones as they do. How far apart its
    cores are is not known, so no run that is off its plan looks at this host's."""
    times = synthetic(0.02, times=lambda _, variant: 20.0 if variant == "gymnasium" else 1.0)
    found = measure(30.0, kernels=KERNELS, prepare=times)
    store(replace(found, runtime=LANES, again=found.created, apart_s=0.0))


def time_briefly(task: str, seconds: float, *, timeout_s: float, request: Any) -> dict[str, Any]:
    """Replace `run_in_child` for user code: time it in this process, for a fiftieth of the time and
    without using up the budget. A process of its own would spend a second on imports."""
    assert task == "own"
    return {**time_user_code(request, seconds / 50), "cpu_s": 0.0}


class Child:
    """Stands for `run_in_child`: measures the imagined machine here and tells the journal.

    prepare: how. most: findings after which it is ended by `error`. asked: the groups of each call,
    points: how many points each told of, limits: its time limit.
    """

    def __init__(
        self,
        prepare: calibrate_host.Prepare | None = None,
        most: float = math.inf,
        error: BaseException | None = None,
    ) -> None:
        self.prepare, self.most, self.error = prepare or synthetic(0.02), most, error
        self.asked: list[list[str]] = []
        self.points: list[int] = []
        self.limits: list[float] = []

    def __call__(self, task: str, seconds: float, *, timeout_s: float, request: Any) -> object:
        assert task == "measure"
        self.asked.append(request["groups"])
        self.limits.append(timeout_s)
        known = Calibration.from_json(request["known"])
        jobs = calibrate_host.missing_jobs(request["groups"], known)
        if request["only"]:
            jobs = calibrate_host.select_jobs(request["only"], request["groups"], known)
        self.points.append(len(jobs))
        write, told = journal_writer(Path(request["journal"])), [0]

        def tell(found: Mapping[str, Any]) -> None:
            if told[0] >= self.most and self.error:
                raise self.error
            told[0] += 1
            write(found)

        calibrate_host.time_points(
            *(seconds, jobs, tell),
            apart_s=known.apart_s,
            prepare=self.prepare,
            apart=lambda: 1e-6,
            pause=lambda _: None,
        )
        if request["only"]:
            return None
        threads = calibrate_host.new_jobs(threaded_kernels(request["groups"]), known)
        calibrate_host.time_threads(threads, tell, prepare=self.prepare, share=lambda _: 1.0)
        tell({"runtime": LANES})
        return None
