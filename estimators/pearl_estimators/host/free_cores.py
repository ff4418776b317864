"""The share of its cores that a program would get now, from the kernel's counters."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from statistics import median

from pearl_devices.system import host_system

LOOKS, PAUSE_S = 5, 0.1
"""Measurements of `share_had`, and the pause between two: half a second, so that a burst of other
load, or an interrupt, affects one or two of them (assumed)."""
LOOK_S, DIGESTED_BYTES = 0.03, 1 << 20
"""Seconds for which one measurement keeps cores busy: several turns of the scheduler (assumed).
Each of its steps hashes this many bytes, in about half a millisecond."""


def queued_here_s() -> float | None:
    """Return the seconds that this thread was ready to run and had no core; None if the system does
    not count them."""
    return host_system.queued_s(os.getpid(), threading.get_native_id())


def look(cores: int = 1, seconds: float = LOOK_S) -> float:
    """Return the smallest share of a core that any of `cores` busy threads had, in one measurement.

    The share is the time in which the thread did not wait in the run queue. If the system does not
    count waits, it is CPU time over wall time.
    """
    data, shares = bytes(DIGESTED_BYTES), [0.0] * cores

    def busy(place: int) -> None:
        wall_0, cpu_0, queued_0 = time.perf_counter(), time.thread_time(), queued_here_s()
        while time.perf_counter() - wall_0 < seconds:
            hashlib.sha256(data)  # releases the interpreter's lock
        cpu_s, queued_1 = time.thread_time() - cpu_0, queued_here_s()
        wall_s = time.perf_counter() - wall_0
        if queued_0 is None or queued_1 is None:
            shares[place] = cpu_s / wall_s
        else:
            shares[place] = max(0.0, 1 - (queued_1 - queued_0) / wall_s)

    threads = [threading.Thread(target=busy, args=(place,)) for place in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(shares)


def share_had(
    cores: int = 1,
    *,
    look: Callable[[int], float] = look,
    stolen: Callable[[], float | None] = host_system.stolen_s,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Return the share of each of `cores` cores that a program would get now.

    This is the median of LOOKS measurements, less the share that the host of a virtual machine took
    in the meantime, if that is counted. A share well below 1 means that other programs use these
    cores.
    """
    before_s, shares = stolen(), list[float]()
    for n in range(LOOKS):
        if n:
            pause(PAUSE_S)
        shares.append(look(cores))
    after_s = stolen()
    stolen_s = 0.0 if before_s is None or after_s is None else after_s - before_s
    taken = stolen_s / (cores * LOOKS * LOOK_S)
    return median(shares) * max(0.0, 1 - taken)
