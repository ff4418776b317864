"""Co-run slow-down: time of a kernel while another core runs another kernel, over its time alone.

Cores that share execution units, a cache or the path to memory slow each other down. Only a
measurement shows how much. An acting kernel is measured next to a learning one, both of middle
size, as lanes hold them. The other kernel runs in a fork of this process. Both are timed by the CPU
time of a call, alternately alone and together.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from pearl_devices import Kernel, UnsupportedError
from pearl_devices.base import Call, uses_several_cores
from pearl_devices.kernels import kind_of
from pearl_devices.system import host_system
from pearl_estimators.host.timer import HELD

ROUNDS, TRIES, STRETCH_S = 3, 9, 0.006
"""Number of comparisons of a pair, of which the median counts; their largest number; seconds of
each measurement."""
DOUBTED = 0.05
"""A larger slow-down is measured again after PAUSE_S, and the smallest counts, because the load of
other programs varies (both assumed)."""
PAUSE_S = 0.3
SETTLE_S = 0.001
"""Head start of the other side before this side reads the clock (assumed)."""
ANSWER = "dd"
LONGEST_S, ANSWER_S = 2.0, 10.0
"""Seconds after which the other side ends a measurement, and after which a silent side is given
up."""

Shares = Mapping[str, Mapping[str, float]]
"""Kernel → kernel on the other core, by `share_name` → slow-down as a share of the first's time."""

Bind = Callable[[Kernel, str], Call]


def share_name(kernel: Kernel, variant: str) -> str:
    """Return the name in `Shares` of a kernel's family and variant."""
    return f"{kind_of(kernel).family} {variant}"


def side(kernel: Kernel) -> int | None:
    """Return 0 for a kernel that acts, 1 for one that learns, None for neither or both."""
    return {"acts": 0, "learns": 1}.get(kind_of(kernel).side)


def measure_slowdowns(kernels: Iterable[tuple[Kernel, str]], known: Shares, bind: Bind) -> Shares:
    """Return `known` with the missing shares of the families of these (kernel, variant) pairs.

    The kernel of the median number of flops represents its family. No share is added if the system
    cannot fork, or if the two kernels never had a core each.
    """
    if not host_system.FORKS:
        return known
    families: tuple[dict[str, list[Kernel]], ...] = ({}, {})
    variants: dict[str, str] = {}
    for kernel, variant in kernels:
        which, name = side(kernel), share_name(kernel, variant)
        if which is not None and not uses_several_cores(variant):
            families[which].setdefault(name, []).append(kernel)
            variants[name] = variant
    lacking = {(a, b) for a in families[0] for b in families[1] if b not in known.get(a, {})}
    calls: tuple[dict[str, Call], ...] = ({}, {})
    for of, bound in zip(families, calls, strict=True):
        for name, several in of.items():
            if not any(name in pair for pair in lacking):
                continue
            middle = sorted(several, key=lambda k: k.flops)[len(several) // 2]
            try:
                bound[name] = bind(middle, variants[name])
            except (UnsupportedError, ImportError):  # the calibration reports it as skipped
                continue
            bound[name]()
    found = {name: dict(row) for name, row in known.items()}
    for learning, learns in calls[1].items():
        with _running_beside(learns) as other:
            for acting, acts in calls[0].items():
                if (acting, learning) not in lacking:
                    continue
                compared = _compare(acts, other)
                if compared is None:
                    continue
                mine, its = compared
                if max(compared) > DOUBTED:
                    time.sleep(PAUSE_S)
                    again = _compare(acts, other) or compared
                    mine, its = min(mine, again[0]), min(its, again[1])
                found.setdefault(acting, {})[learning] = mine
                found.setdefault(learning, {})[acting] = its
    return found


def _compare(call: Call, other: _Other) -> tuple[float, float] | None:
    """The slow-downs of `call` and of the other call by each other; None without a comparison.

    A comparison counts only if each call had a dedicated core.
    """
    found: list[tuple[float, float]] = []
    for _ in range(TRIES):
        alone = _stretch(call)
        other.start()
        time.sleep(STRETCH_S)
        its_alone = other.stop()
        other.start()
        time.sleep(SETTLE_S)
        beside = _stretch(call)
        its_beside = other.stop()
        held = max(s.contention for s in (alone, beside, its_alone, its_beside)) <= HELD
        longer = beside.seconds / alone.seconds, its_beside.seconds / its_alone.seconds
        if held:
            found.append((longer[0] - 1, longer[1] - 1))
        if len(found) == ROUNDS:
            break
    if not found:
        return None
    mine, its = (median(f[place] for f in found) for place in (0, 1))
    return max(0.0, mine), max(0.0, its)


class _Stretch(NamedTuple):
    """CPU seconds of a call, averaged over a stretch of calls, and the stretch's wall seconds over
    CPU seconds."""

    seconds: float
    contention: float


def _stretch(
    call: Call, on: Callable[[], bool] = lambda: True, longest_s: float = STRETCH_S
) -> _Stretch:
    """Repeat the call for `longest_s` seconds, or until `on` returns False."""
    calls, cpu_s, wall_s = 0, time.process_time(), time.perf_counter()
    while True:
        call()
        calls += 1
        now_s = time.perf_counter()
        if not on() or now_s - wall_s > longest_s:
            taken_s = max(time.process_time() - cpu_s, 1e-9)
            return _Stretch(taken_s / calls, (now_s - wall_s) / taken_s)


class _Other:
    """A fork of this process that calls a kernel on request."""

    def __init__(self, flag: mmap.mmap, ask: int, told: int) -> None:
        self._flag, self._ask, self._told = flag, ask, told

    def start(self) -> None:
        self._flag[0] = 1
        os.write(self._ask, b"r")

    def stop(self) -> _Stretch:
        """Return the stretch of calls since `start`."""
        self._flag[0] = 0
        if not select.select([self._told], [], [], ANSWER_S)[0]:
            raise TimeoutError(f"the other process has not answered for {ANSWER_S:g} s")
        answer = os.read(self._told, struct.calcsize(ANSWER))
        if not answer:
            raise ChildProcessError("the other process has ended, because its call failed")
        return _Stretch(*struct.unpack(ANSWER, answer))


@contextmanager
def _running_beside(call: Call) -> Iterator[_Other]:
    """Within this context, another process runs `call`. It also ends with this process, which
    closes the pipe."""
    flag = mmap.mmap(-1, mmap.PAGESIZE)
    asked, ask = os.pipe()
    told, tell = os.pipe()
    process = host_system.fork()
    if not process:
        os.close(ask)
        try:
            while os.read(asked, 1):
                stretch = _stretch(call, lambda: flag[0] == 1, LONGEST_S)
                os.write(tell, struct.pack(ANSWER, *stretch))
        finally:
            os._exit(0)
    os.close(asked)
    os.close(tell)
    try:
        yield _Other(flag, ask, told)
    finally:
        os.close(ask)
        os.close(told)
        host_system.collect_end(process, wait=True)
        flag.close()
