"""Measuring this host: what `child` runs in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec

from pearl_devices import Kernel, UnsupportedError
from pearl_estimators import interference
from pearl_estimators.calibration import NOISY, Calibration, Check, host, versions
from pearl_estimators.fit import Fit, Point, family, fit, point, predict
from pearl_estimators.measured import HELD, Timing, time_call
from pearl_estimators.own_env import time_here
from pearl_estimators.points import CORES, GROUPS, bound, firings, held_out, training, variants

POINT_S = (0.004, 0.015)  # shortest and longest time given to one point in one round
ROUNDS = 3
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
    several = firings(kernel)
    return lambda seconds: time_call(call, seconds=seconds, cores=cores, firings=several)


def measure(
    seconds: float,
    *,
    kernels: Iterable[tuple[Kernel, str]] | None = None,
    groups: Sequence[str] = GROUPS,
    known: Calibration | None = None,
    prepare: Prepare = _prepare,
    clock: Callable[[], float] = time.perf_counter,
    apart: Callable[[], float] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Calibration:
    """Time `kernels` (the training points of `groups` by default) in this process, and fit every
    family. known: what was measured before, of other groups; the fit is to all points.

    seconds: what the whole may take; compiling and importing count, so that the points share what
    is left, within POINT_S each. All are timed in ROUNDS rounds, and each keeps its fastest: what
    else runs on the machine comes and goes, and slows a core even where it does not take it.
    Of calls on two cores only those count in which these were as near as they often are (`apart`
    says how far); a host that moves the processors of a virtual machine changes that.
    A family that cannot be bound here is left out and says why in `skipped`.
    """
    start = clock()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    timers: list[tuple[Kernel, str, Timer]] = []
    skipped = dict(known.skipped) if known else {}
    for kernel, variant in _training(groups) if kernels is None else kernels:
        name = f"{family(kernel)} {variant}"
        if name in skipped:
            continue
        try:
            timers.append((kernel, variant, prepare(kernel, variant)))
        except (UnsupportedError, ImportError) as error:
            skipped[name] = str(error)
    begun = clock()
    left_s = seconds - (begun - start)
    apart_s = known.apart_s if known else 0.0
    timings, apart_s = _in_rounds(
        timers, lambda: left_s - (clock() - begun), apart or _exchange(), apart_s, pause
    )
    points = list(known.points) if known else []
    contention = [known.contention] * len(points) if known else []
    for (kernel, variant, _), found in zip(timers, timings, strict=True):
        medians = [timing.median_s for timing in found]
        fastest = min(found, key=lambda timing: timing.median_s)
        each = point(kernel, variant, fastest.median_s, fastest.spread)
        if f"{each.family} {variant}" not in skipped:
            points.append(each)
        contention += [max(medians) / min(medians), fastest.contention]
    fits = fitted(points)
    shared = sum(contention) / len(contention) if contention else 1.0
    if shared > NOISY:
        fits = [replace(each, band=each.band * shared) for each in fits]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    wall = clock() - start + (known.wall_s if known else 0.0)
    return Calibration(
        host(),
        versions(),
        now,
        wall,
        load,
        shared,
        tuple(fits),
        skipped,
        known.runtime if known else {},
        tuple(points),
        tuple(sorted({*groups, *(known.groups if known else ())})),
        apart_s,
        known.beside if known else {},
    )


ONE_CORE = ("replay_sample", "replay_update")
"""Families whose code is a part of calls on two cores too, on one of them."""


def fitted(points: Sequence[Point]) -> list[Fit]:
    """The fits of all variants, each on its own points; a call on two cores has the replay of the
    one-core variant, whose points tell what of it costs what."""
    found: list[Fit] = []
    for variant in dict.fromkeys(p.variant for p in points):
        own = [p for p in points if p.variant == variant]
        single = variant.removesuffix("-pair")
        lent = [
            replace(p, variant=variant)
            for p in points
            if single != variant and p.variant == single and p.family.startswith(ONE_CORE)
        ]
        families = {p.family for p in own}
        found += [each for each in fit([*own, *lent]) if each.family in families]
    return found


def _in_rounds(
    timers: Sequence[tuple[Kernel, str, Timer]],
    left_s: Callable[[], float],
    apart: Callable[[], float],
    apart_s: float,
    pause: Callable[[float], None],
) -> tuple[list[list[Timing]], float]:
    """The timings of each that count, and how far apart two cores were. left_s: seconds left.
    apart_s: how far apart they are to be; 0 for as near as they were in a quarter of the timings,
    so that one calibration takes the same as the next on a host that moves them now and then."""
    from pearl_devices.primitives.exchange import alike

    pairs = {n for n, (k, variant, _) in enumerate(timers) if variants(k).get(variant, 1) > 1}
    timings: list[list[Timing]] = [[] for _ in timers]
    readings: list[list[tuple[float, float]]] = [[] for _ in timers]

    def add(n: int, seconds: float) -> None:
        before_s = apart() if n in pairs else 0.0
        timings[n].append(timers[n][2](seconds))
        readings[n].append((before_s, apart() if n in pairs else 0.0))

    def held(n: int) -> list[tuple[Timing, tuple[float, float]]]:
        """Those in which it had both cores."""
        both = zip(timings[n], readings[n], strict=True)
        return [(t, near) for t, near in both if t.contention <= HELD]

    def counted(n: int) -> list[Timing]:
        if n not in pairs:
            return timings[n]
        return [t for t, near in held(n) if all(alike(s, apart_s) for s in near)]

    for left in range(ROUNDS, 0, -1):
        share = TIMING * left_s() / (left * max(len(timers), 1))
        for n in range(len(timers)):
            add(n, min(max(share, POINT_S[0]), POINT_S[1]))
    if pairs:
        found = [s for n in pairs for _, near in held(n) for s in near]
        found = sorted(found or [s for n in pairs for s in readings[n][0]])
        apart_s = apart_s or found[len(found) // 4]
    before_s = left_s()
    for _ in range(MORE_ROUNDS):
        lacking = [n for n in pairs if not counted(n)]
        if not lacking or before_s - left_s() > MORE_S:
            break
        pause(PAUSE_S)
        for n in lacking:
            add(n, POINT_S[1])
    return [counted(n) or timings[n] for n in range(len(timers))], apart_s


def _exchange() -> Callable[[], float]:
    from pearl_devices.primitives.exchange import exchange_s

    return exchange_s


def everything(seconds: float, groups: Sequence[str], known: Calibration | None) -> Calibration:
    """The kernels of `groups`, and where they are not known yet what lanes cost: the runtime, and
    each other."""
    found = measure(max(seconds - LANES_S, seconds / 2), groups=groups, known=known)
    begin = time.perf_counter()
    runtime = found.runtime or _runtime(found.apart_s)
    beside = found.beside
    if runtime and CORES > 1:
        beside = interference.measured(_training(groups), beside, bound)
    wall_s = found.wall_s + time.perf_counter() - begin
    return replace(found, runtime=runtime, beside=beside, wall_s=wall_s)


RUNTIME = "pearl.runtime.cost"
"""The module whose `measured` times what lanes cost, where the runtime is installed."""


def _runtime(apart_s: float) -> dict[str, float]:
    """With the cores as far apart as calls on two of them were timed, if they come to be."""
    if find_spec(RUNTIME.partition(".")[0]) is None:
        return {}
    from pearl_devices.primitives.exchange import as_near

    found: dict[str, float] = {}
    end_s = time.monotonic() + MORE_S
    while True:
        found, near = as_near(import_module(RUNTIME).measured, apart_s)
        if near or time.monotonic() > end_s:
            return found
        time.sleep(PAUSE_S)


def _training(groups: Sequence[str]) -> Iterator[tuple[Kernel, str]]:
    return ((kernel, variant) for kernel in training(groups) for variant in variants(kernel))


def check_here(
    calibration: Calibration, *, seconds: float = 8.0, prepare: Prepare = _prepare
) -> list[Check]:
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
        rows.append(Check(what, variant, guess.seconds, min(times), guess.low_s, guess.high_s))
    return rows


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main(arguments: list[str]) -> None:
    """`measure SECONDS`, `check SECONDS` or `env SECONDS`; what they are given is the first line of
    input: groups and what is known (null: all, nothing), a calibration, or an environment."""
    task, seconds = arguments[0], float(arguments[1])
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if task == "check":
        rows = check_here(Calibration.from_json(given), seconds=seconds)
        print(json.dumps([asdict(row) for row in rows]))
    elif task == "env":
        print(json.dumps(time_here(given, seconds)))
    else:
        asked = given or {"groups": GROUPS, "known": None}
        known = asked["known"] and Calibration.from_json(asked["known"])
        print(json.dumps(everything(seconds, asked["groups"], known).to_json()))
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
