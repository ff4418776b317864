"""Measuring this host: the tasks of the child process that `child_process` starts."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pearl_devices import Kernel, UnsupportedError, torch_threads
from pearl_estimators.host import interference
from pearl_estimators.host.benchmark_kernels import (
    CORES,
    bound,
    by_threads,
    code_of,
    firings,
    held_out,
    training,
    variants,
)
from pearl_estimators.host.calibration import Calibration, HeldOutTiming
from pearl_estimators.host.free_cores import look
from pearl_estimators.host.journal import Tell, journal_writer
from pearl_estimators.host.linear_fit import family, point, predict
from pearl_estimators.host.probe import probe_here
from pearl_estimators.host.timer import HELD, Timing, time_call
from pearl_estimators.host.user_code_timing import time_here

POINT_S = (0.004, 0.015)  # shortest and longest time given to one point in one round
ROUNDS = 3
THREADS_S = 6.0
"""What timing by several threads of torch may take (a kernel takes some 0.1 s)."""
LANES_S = 8.0
"""Of these what measuring the cost of lanes may take, and waiting for the cores, twice `MORE_S` (3
to 7 s on 2 × AMD EPYC, 2026)."""
TIMING = 0.7  # share of the time left that the timings are given; their warm-up takes the rest
MORE_ROUNDS, MORE_S = 20, 2.0
"""Rounds and seconds more, at most, of calls on two cores that were never timed with the cores as
far apart as they are to be."""
PAUSE_S = 0.2
"""Between these, and while waiting that the cores are so (assumed)."""

Timer = Callable[[float], Timing]
"""Times one bound kernel for about so many seconds."""
Prepare = Callable[[Kernel, str], Timer]
"""Binds a kernel in a variant; UnsupportedError or ImportError where this installation cannot."""


def _prepare(kernel: Kernel, variant: str) -> Timer:
    call, cores = bound(kernel, variant), variants(kernel).get(variant, 1)
    several, threads = firings(kernel), torch_threads.threads_of(variant)
    if threads > 1:
        return lambda seconds: time_call(call, seconds=seconds, computes=False, cores=threads)
    return lambda seconds: time_call(call, seconds=seconds, cores=cores, firings=several)


class _TimedKernel:
    """A kernel in a variant and its timings so far.

    Of a call on two cores also the latency between these before and after each timing, in seconds.
    """

    def __init__(self, kernel: Kernel, variant: str, timer: Timer) -> None:
        self.kernel, self.variant, self._timer = kernel, variant, timer
        self.pair = variants(kernel).get(variant, 1) > 1
        self.timings: list[Timing] = []
        self.apart: list[tuple[float, float]] = []

    def add(self, seconds: float, apart: Callable[[], float]) -> None:
        before_s = apart() if self.pair else 0.0
        self.timings.append(self._timer(min(max(seconds, POINT_S[0]), POINT_S[1])))
        self.apart.append((before_s, apart() if self.pair else 0.0))

    def held(self) -> list[tuple[Timing, tuple[float, float]]]:
        """Timings in which the kernel had all its cores."""
        both = zip(self.timings, self.apart, strict=True)
        return [(t, near) for t, near in both if t.contention <= HELD]

    def counted(self, apart_s: float) -> list[Timing]:
        """Timings in which the kernel had all its cores, so far apart."""
        from pearl_devices.primitives.math.core_latency import alike

        return [t for t, near in self.held() if all(alike(s, apart_s) for s in near)]

    def found(self, apart_s: float = 0.0) -> dict[str, Any]:
        """The kernel's point: the fastest of the timings that count.

        Of a call on two cores those of `counted` count, else those of `held`, else all; the point's
        share of the CPU says which.
        """
        counted = self.timings
        if self.pair:
            counted = self.counted(apart_s) or [t for t, _ in self.held()] or counted
        medians = [t.median_s for t in counted]
        best = min(counted, key=lambda t: t.median_s)
        made = point(
            *(self.kernel, self.variant, best.median_s),
            spread=best.spread,
            share=1 / best.contention,
            unsteady=max(medians) / min(medians),
        )
        return {"point": {**vars(made), "terms": dict(made.terms)}}


def time_points(
    seconds: float,
    jobs: Iterable[tuple[Kernel, str]],
    tell: Tell,
    *,
    apart_s: float = 0.0,
    prepare: Prepare = _prepare,
    clock: Callable[[], float] = time.perf_counter,
    apart: Callable[[], float] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Time these kernels in this process, and tell of each as soon as it is timed, then as it is
    timed better. Returns the latency between two cores that calls on both were timed at, in seconds
    (0 where no call had both).

    Every kernel is timed in ROUNDS rounds and keeps its fastest: other load on the machine comes
    and goes, and slows a core even where it does not take the core. Of calls on two cores only
    timings count in which these were as near as they often are (`apart` measures it); a host that
    moves the processors of a virtual machine changes that. These are told of at the end. A family
    that cannot be bound here is told of as `skipped`, with the reason.

    seconds: limit of the whole. Compiling and importing count, so the points share the rest, within
        POINT_S each.
    apart_s: the latency to time at; 0 for the nearest in a quarter of the timings, so that one
        calibration takes the same as the next.
    """
    end_s = clock() + seconds
    apart = apart or _exchange()
    waiting = list(jobs)
    timed: list[_TimedKernel] = []
    skipped: set[str] = set()

    def share_s(rounds: int, count: int) -> float:
        return TIMING * (end_s - clock()) / (rounds * max(count, 1))

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
            tell(each.found())
    for left in range(ROUNDS - 1, 0, -1):
        share = share_s(left, len(timed))
        for each in timed:
            each.add(share, apart)
            if not each.pair:
                tell(each.found())
    pairs = [each for each in timed if each.pair]
    readings = sorted(s for each in pairs for _, near in each.held() for s in near)
    if readings and not apart_s:
        apart_s = readings[len(readings) // 4]
    more_s = clock() + MORE_S
    for _ in range(MORE_ROUNDS):
        lacking = [each for each in pairs if not each.counted(apart_s)]
        if not lacking or not apart_s or clock() > more_s:
            break
        pause(PAUSE_S)
        for each in lacking:
            each.add(POINT_S[1], apart)
    if apart_s:
        tell({"apart_s": apart_s})
    for each in pairs:
        tell(each.found(apart_s))
    return apart_s


def _exchange() -> Callable[[], float]:
    from pearl_devices.primitives.math.core_latency import exchange_s

    return exchange_s


def chosen(
    only: Sequence[str], groups: Sequence[str], known: Calibration
) -> list[tuple[Kernel, str]]:
    """The kernels and variants of `lacking` whose `code_of` is one of `only`, in its order."""
    place = {code: n for n, code in enumerate(only)}
    jobs = [(code_of(of, v), (of, v)) for of, v in lacking(groups, known)]
    return [job for _, job in sorted((j for j in jobs if j[0] in place), key=lambda j: place[j[0]])]


def everything(seconds: float, groups: Sequence[str], known: Calibration, tell: Tell) -> None:
    """Tell of the kernels of `groups` that `known` has no point of, and of the lane costs that
    it lacks: those of the runtime, and the slow-down of calls on two cores by each other."""
    jobs, points_s = lacking(groups, known), max(seconds - LANES_S, seconds / 2)
    apart_s = time_points(points_s, jobs, tell, apart_s=known.apart_s)
    time_threads(_new(by_threads(groups), known), tell)
    if CORES < 2 or find_spec(RUNTIME.partition(".")[0]) is None:
        return
    runtime = dict(known.runtime) or _runtime(apart_s)
    if runtime:
        tell({"runtime": runtime})
        kernels = ((k, v) for k in training(groups) for v in variants(k))
        tell({"beside": interference.measure_slowdowns(kernels, known.beside, bound)})


def lacking(groups: Sequence[str], known: Calibration) -> list[tuple[Kernel, str]]:
    """The kernels and variants to fit on, of these groups, of which `known` has no point."""
    return _new(((of, v) for of in training(groups) for v in variants(of)), known)


def _new(jobs: Iterable[tuple[Kernel, str]], known: Calibration) -> list[tuple[Kernel, str]]:
    """Those of which `known` has no point, and does not say why."""
    have = {p.key for p in known.points}
    return [
        (kernel, variant)
        for kernel, variant in jobs
        if point(kernel, variant, 1.0).key not in have
        and f"{family(kernel)} {variant}" not in known.skipped
    ]


def time_threads(
    jobs: Iterable[tuple[Kernel, str]],
    tell: Tell,
    *,
    prepare: Prepare = _prepare,
    share: Callable[[int], float] = look,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Time these kernels, by several threads of torch, for THREADS_S at most, while so many cores
    are free: where something else has a part of one, each operation waits for the scheduler, and a
    gradient step takes ten times as long and more. Told of are only timings that had all cores."""
    end_s = clock() + THREADS_S
    for kernel, variant in jobs:
        if clock() > end_s or share(torch_threads.threads_of(variant)) < 1 / HELD:
            return
        try:
            each = _TimedKernel(kernel, variant, prepare(kernel, variant))
        except (UnsupportedError, ImportError) as error:
            tell({"skipped": {f"{family(kernel)} {variant}": str(error)}})
            continue
        for _ in range(ROUNDS):
            each.add(POINT_S[1], lambda: 0.0)
        each.timings = [timing for timing, _ in each.held()]
        if each.timings:
            tell(each.found())


RUNTIME = "pearl.runtime.lanes.overhead"
"""The module whose `measured` times what lanes cost, where the runtime is installed."""


def _runtime(
    apart_s: float,
    run: Callable[[], dict[str, float]] | None = None,
    share: Callable[[int], float] = look,
) -> dict[str, float]:
    """Cost of lanes, measured with the cores as far apart as when calls on two of them were timed.

    Empty where the cores do not come to be so, or two were not to be had before and after.
    run: the function that measures it.
    """
    from pearl_devices.primitives.math.core_latency import as_near

    run = run or import_module(RUNTIME).measured
    found: dict[str, float] = {}
    end_s = time.monotonic() + MORE_S
    while True:
        if share(2) >= 1 / HELD:
            timed, near = as_near(run, apart_s)
            if share(2) >= 1 / HELD:
                found = timed
                if near:
                    return found
        if time.monotonic() > end_s:
            return found
        time.sleep(PAUSE_S)


def check_here(
    calibration: Calibration, *, seconds: float = 8.0, prepare: Prepare = _prepare
) -> list[HeldOutTiming]:
    """Time the held-out kernels in this process beside what `calibration` predicts for them."""
    jobs = [(k, v, f) for k in held_out() for v in variants(k) if (f := calibration.find(k, v))]
    timers = [prepare(kernel, variant) for kernel, variant, _ in jobs]
    share = min(max(seconds / (ROUNDS * max(len(jobs), 1)), POINT_S[0]), POINT_S[1])
    timings = [[timer(share).median_s for timer in timers] for _ in range(ROUNDS)]
    rows = []
    for (kernel, variant, found), *times in zip(jobs, *timings, strict=True):
        guess = predict(found, point(kernel, variant, 1.0))
        sizes = ", ".join(f"{k} {v}" for k, v in kernel.dims.items())
        what = f"{family(kernel)} ({sizes})"
        rows.append(
            HeldOutTiming(what, variant, guess.seconds, min(times), guess.low_s, guess.high_s)
        )
    return rows


def _end_with_parent() -> None:
    """Ends this process, and those it has started, once the parent has closed the input.

    Read below `sys.stdin`: a process that an environment forks meanwhile closes its own copy of
    that, and would wait for ever for the lock of a thread that it does not have.
    """
    while os.read(0, 1 << 12):
        pass
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """`measure SECONDS`, `check SECONDS`, `own SECONDS` or `probe SECONDS`.

    The first line of input is the task's JSON: groups, known calibration, journal and the families
    and variants to time alone; a calibration; kernels of the user's own; nothing.
    """
    task, seconds = arguments[0], float(arguments[1])
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if task == "check":
        rows = check_here(Calibration.from_json(given), seconds=seconds)
        print(json.dumps([asdict(row) for row in rows]))
    elif task == "own":
        print(json.dumps(time_here(given, seconds)))
    elif task == "probe":
        gc.disable()  # it ends soon, and each look for garbage walks all that torch brings
        print(json.dumps(probe_here(seconds)))
    else:
        known, tell = Calibration.from_json(given["known"]), journal_writer(Path(given["journal"]))
        if given["only"]:
            jobs = chosen(given["only"], given["groups"], known)
            time_points(seconds, jobs, tell, apart_s=known.apart_s)
        else:
            everything(seconds, given["groups"], known, tell)
        print("null")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
