"""The tasks of the process that times kernels, which `child_process` starts."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any

from pearl_devices import Kernel, UnsupportedError, torch_threads
from pearl_devices.system import host_system
from pearl_estimators.host import interference
from pearl_estimators.host.benchmark_kernels import (
    CORES,
    bind_filled,
    code_of,
    draw_fit_kernels,
    draw_held_out_kernels,
    firings_per_call,
    offered_variants,
    threaded_kernels,
)
from pearl_estimators.host.calibration import Calibration, HeldOutTiming
from pearl_estimators.host.calibration_file import Tell, journal_writer
from pearl_estimators.host.free_cores import look
from pearl_estimators.host.linear_fit import family, point, predict
from pearl_estimators.host.probe import time_probe
from pearl_estimators.host.timer import HELD, Timing, time_call
from pearl_estimators.host.user_code_timing import time_user_code

POINT_S = (0.004, 0.015)
"""Shortest and longest time that one point has in one round, in seconds."""
ROUNDS = 3
THREADS_S = 6.0
"""Limit of timing several threads of torch. One kernel takes about 0.1 s."""
LANES_S = 8.0
"""Share of the target duration for the cost of lanes. Waiting for the cores takes twice `MORE_S`
of it (measuring took 3 to 7 s on 2 × AMD EPYC, 2026)."""
TIMING = 0.7
"""Share of the time left that goes into timings. Their warm-up takes the rest."""
MORE_ROUNDS, MORE_S = 20, 2.0
"""Limits of the further rounds for calls on two cores that were never timed at the core latency
that the calibration is for."""
PAUSE_S = 0.2
"""Pause between these rounds, and between two checks of the core latency (assumed)."""

Timer = Callable[[float], Timing]
"""Times one bound kernel for about the given seconds."""
Prepare = Callable[[Kernel, str], Timer]
"""Binds a kernel in a variant. UnsupportedError or ImportError if this installation cannot."""


def _prepare(kernel: Kernel, variant: str) -> Timer:
    call, cores = bind_filled(kernel, variant), offered_variants(kernel).get(variant, 1)
    several, threads = firings_per_call(kernel), torch_threads.threads_of(variant)
    if threads > 1:
        return lambda seconds: time_call(call, seconds=seconds, computes=False, cores=threads)
    return lambda seconds: time_call(call, seconds=seconds, cores=cores, firings=several)


class _TimedKernel:
    """A kernel in a variant and its timings so far.

    Of a call on two cores, also the latency between the cores before and after each timing.
    """

    def __init__(self, kernel: Kernel, variant: str, timer: Timer) -> None:
        self._timer = timer
        self.pair = offered_variants(kernel).get(variant, 1) > 1
        self._counted = point(kernel, variant, 1.0)
        self.timings: list[tuple[Timing, list[float]]] = []

    def add(self, seconds: float, latency: Callable[[], float]) -> None:
        near = [latency()] if self.pair else []
        timing = self._timer(min(max(seconds, POINT_S[0]), POINT_S[1]))
        if self.pair:
            near.append(latency())
        self.timings.append((timing, near))

    def uncontended(self) -> list[tuple[Timing, list[float]]]:
        """Timings in which the kernel had all its cores."""
        return [(t, near) for t, near in self.timings if t.contention <= HELD]

    def at_latency(self, apart_s: float) -> list[Timing]:
        """Timings in which the kernel had all its cores, at this latency between them."""
        from pearl_devices.primitives.math.core_latency import alike

        return [t for t, near in self.uncontended() if all(alike(s, apart_s) for s in near)]

    def finding(self, apart_s: float = 0.0) -> dict[str, Any]:
        """The kernel's point: the fastest of the valid timings.

        For a call on two cores, valid timings are those of `at_latency`; without any, those of
        `uncontended`; without any, all. The point's share of the CPU shows which.
        """
        counted = [t for t, _ in self.timings]
        if self.pair:
            uncontended = [t for t, _ in self.uncontended()]
            counted = self.at_latency(apart_s) or uncontended or counted
        medians = [t.median_s for t in counted]
        best = min(counted, key=lambda t: t.median_s)
        timed = replace(
            self._counted,
            seconds=best.median_s,
            spread=best.spread,
            share=1 / best.contention,
            unsteady=max(medians) / min(medians),
        )
        return {"point": {**vars(timed), "terms": dict(timed.terms)}}


def time_points(
    seconds: float,
    jobs: Iterable[tuple[Kernel, str]],
    tell: Tell,
    *,
    apart_s: float = 0.0,
    prepare: Prepare = _prepare,
    apart: Callable[[], float] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Time these kernels in this process; return the latency between cores that counts, in seconds.

    A point is reported as soon as it is timed, and again if it is timed better. Every kernel is
    timed in ROUNDS rounds, and the fastest counts: other load on the machine varies, and slows a
    core even if it does not take the core. For calls on two cores, a timing counts only at the
    usual latency between these cores (`apart`), because a host may move the processors of a virtual
    machine. These points are reported at the end. A family that cannot be bound here is reported as
    `skipped`, with the reason.

    seconds: limit of the whole. Compiling and importing count, so the points share the rest, within
        POINT_S each.
    apart_s: the latency to time at. 0 takes the lower quartile of the measured latencies, so that
        calibrations agree. 0 is returned if no call had both its cores.
    """
    end_s = time.perf_counter() + seconds
    if apart is None:
        from pearl_devices.primitives.math.core_latency import exchange_s

        apart = exchange_s
    waiting = list(jobs)
    timed: list[_TimedKernel] = []
    skipped: set[str] = set()

    def share_s(rounds: int, count: int) -> float:
        return TIMING * (end_s - time.perf_counter()) / (rounds * max(count, 1))

    for kernel, variant in waiting:
        name = f"{family(kernel)} {variant}"
        if name in skipped:
            continue
        try:
            each = _TimedKernel(kernel, variant, prepare(kernel, variant))
        except (UnsupportedError, ImportError) as error:
            skipped.add(name)
            tell({"skipped": {name: str(error)}})
            continue
        timed.append(each)
        each.add(share_s(ROUNDS, len(waiting)), apart)
        if not each.pair:
            tell(each.finding())
    for left in range(ROUNDS - 1, 0, -1):
        share = share_s(left, len(timed))
        for each in timed:
            each.add(share, apart)
            if not each.pair:
                tell(each.finding())
    pairs = [each for each in timed if each.pair]
    readings = sorted(s for each in pairs for _, near in each.uncontended() for s in near)
    if readings and not apart_s:
        apart_s = readings[len(readings) // 4]
    more_s = time.perf_counter() + MORE_S
    for _ in range(MORE_ROUNDS):
        missing = [each for each in pairs if not each.at_latency(apart_s)]
        if not missing or not apart_s or time.perf_counter() > more_s:
            break
        pause(PAUSE_S)
        for each in missing:
            each.add(POINT_S[1], apart)
    if apart_s:
        tell({"apart_s": apart_s})
    for each in pairs:
        tell(each.finding(apart_s))
    return apart_s


def select_jobs(
    codes: Sequence[str], groups: Sequence[str], known: Calibration
) -> list[tuple[Kernel, str]]:
    """Return the `missing_jobs` whose `code_of` is one of `codes`, in the order of `codes`."""
    order = {code: n for n, code in enumerate(codes)}
    jobs = [(order.get(code_of(*job)), job) for job in missing_jobs(groups, known)]
    return [job for _, job in sorted(((n, j) for n, j in jobs if n is not None), key=itemgetter(0))]


def measure_all(seconds: float, groups: Sequence[str], known: Calibration, tell: Tell) -> None:
    """Time the points of these groups and the costs of several lanes that `known` lacks.

    The costs of lanes are those of the runtime, and the slow-down of two kernels by each other.
    """
    jobs, points_s = missing_jobs(groups, known), max(seconds - LANES_S, seconds / 2)
    apart_s = time_points(points_s, jobs, tell, apart_s=known.apart_s)
    time_threads(new_jobs(threaded_kernels(groups), known), tell)
    if CORES < 2 or find_spec(RUNTIME.partition(".")[0]) is None:
        return
    if runtime := dict(known.runtime) or _runtime(apart_s):
        tell({"runtime": runtime})
        kernels = ((k, v) for k in draw_fit_kernels(groups) for v in offered_variants(k))
        tell({"beside": interference.measure_slowdowns(kernels, known.beside, bind_filled)})


def missing_jobs(groups: Sequence[str], known: Calibration) -> list[tuple[Kernel, str]]:
    """Return the kernels and variants of these groups that `known` has no point of."""
    return new_jobs(
        ((of, v) for of in draw_fit_kernels(groups) for v in offered_variants(of)), known
    )


def new_jobs(jobs: Iterable[tuple[Kernel, str]], known: Calibration) -> list[tuple[Kernel, str]]:
    """Return the jobs that `known` has neither a point of nor a reason for having none."""
    timed = {p.key for p in known.points}
    return [
        (kernel, variant)
        for kernel, variant in jobs
        if point(kernel, variant, 1.0).key not in timed
        and f"{family(kernel)} {variant}" not in known.skipped
    ]


def time_threads(
    jobs: Iterable[tuple[Kernel, str]],
    tell: Tell,
    *,
    prepare: Prepare = _prepare,
    share: Callable[[int], float] = look,
) -> None:
    """Time these kernels with several threads of torch, for THREADS_S at most, on free cores.

    If another process has a part of a core, each operation waits for the scheduler, and a gradient
    step takes ten times as long or more. Therefore only timings that had all their cores are
    reported.
    """
    end_s = time.perf_counter() + THREADS_S
    for kernel, variant in jobs:
        if time.perf_counter() > end_s or share(torch_threads.threads_of(variant)) < 1 / HELD:
            return
        try:
            each = _TimedKernel(kernel, variant, prepare(kernel, variant))
        except (UnsupportedError, ImportError) as error:
            tell({"skipped": {f"{family(kernel)} {variant}": str(error)}})
            continue
        for _ in range(ROUNDS):
            each.add(POINT_S[1], lambda: 0.0)
        each.timings = each.uncontended()
        if each.timings:
            tell(each.finding())


RUNTIME = "pearl.runtime.lanes.overhead"
"""The module whose `measure_overhead` times the costs of lanes, if the runtime is installed."""


def _runtime(
    apart_s: float,
    measure: Callable[[], dict[str, float]] | None = None,
    share: Callable[[int], float] = look,
) -> dict[str, float]:
    """Measure the cost of lanes at the latency between cores that calls on two cores have.

    Empty if two cores were not free before and after. If the latency does not come back within
    MORE_S, the last measurement counts.
    """
    from pearl_devices.primitives.math.core_latency import as_near

    measure = measure or import_module(RUNTIME).measure_overhead
    costs: dict[str, float] = {}
    end_s = time.monotonic() + MORE_S
    while True:
        if share(2) >= 1 / HELD:
            timed, near = as_near(measure, apart_s)
            if share(2) >= 1 / HELD:
                costs = timed
                if near:
                    return costs
        if time.monotonic() > end_s:
            return costs
        time.sleep(PAUSE_S)


def time_held_out(
    calibration: Calibration, *, seconds: float, prepare: Prepare = _prepare
) -> list[HeldOutTiming]:
    """Time the held-out kernels in this process, and compare the predictions of `calibration`."""
    jobs = [
        (k, v, f)
        for k in draw_held_out_kernels()
        for v in offered_variants(k)
        if (f := calibration.find(k, v))
    ]
    timers = [prepare(kernel, variant) for kernel, variant, _ in jobs]
    share = min(max(seconds / (ROUNDS * max(len(jobs), 1)), POINT_S[0]), POINT_S[1])
    timings = [[timer(share).median_s for timer in timers] for _ in range(ROUNDS)]
    rows = []
    for (kernel, variant, fit), *times in zip(jobs, *timings, strict=True):
        guess = predict(fit, point(kernel, variant, 1.0))
        sizes = ", ".join(f"{k} {v}" for k, v in kernel.dims.items())
        label = f"{family(kernel)} ({sizes})"
        rows.append(
            HeldOutTiming(label, variant, guess.seconds, min(times), guess.low_s, guess.high_s)
        )
    return rows


def _input_apart() -> int:
    """Return a new descriptor of the input; code of the user reads an empty one instead. It would
    wait for the parent, or take what the parent writes."""
    watched, empty = host_system.move_up(os.dup(0)), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return watched


def _end_with_parent(watched: int) -> None:
    """End this process, and those it has started, once the parent has closed the input.

    The descriptor is read directly, not through `sys.stdin`: a process that an environment forks at
    the same time closes its own copy of `sys.stdin`, and would wait forever for the lock of a
    thread that it does not have.
    """
    while os.read(watched, 1 << 12):
        pass
    host_system.kill_group(os.getpid())
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Run `measure SECONDS`, `check SECONDS`, `own SECONDS` or `probe SECONDS`.

    The first line of input is the task's JSON. measure: groups, known calibration, path of the
    journal and the only codes to time; check: a calibration; own: user-defined kernels; probe:
    null.
    """
    task, seconds = arguments[0], float(arguments[1])
    request = json.loads(sys.stdin.readline())
    watched = _input_apart() if task == "own" else 0
    threading.Thread(target=_end_with_parent, args=(watched,), daemon=True).start()
    if task == "check":
        rows = time_held_out(Calibration.from_json(request), seconds=seconds)
        print(json.dumps([asdict(row) for row in rows]))
    elif task == "own":
        told = sys.stdout
        sys.stdout = sys.stderr  # what user code prints is no result
        print(json.dumps(time_user_code(request, seconds)), file=told)
        sys.stdout = told
    elif task == "probe":
        gc.disable()  # the process is short, and each collection walks all objects of torch
        print(json.dumps(time_probe(seconds)))
    else:
        known = Calibration.from_json(request["known"])
        tell = journal_writer(Path(request["journal"]))
        if request["only"]:
            jobs = select_jobs(request["only"], request["groups"], known)
            time_points(seconds, jobs, tell, apart_s=known.apart_s)
        else:
            measure_all(seconds, request["groups"], known, tell)
        print("null")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
