"""The share of its cores that a program would get now, from the kernel's counters."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

PROC = Path("/proc")
LOOKS, PAUSE_S = 5, 0.1
"""Measurements of `share_had`, and the pause between two: half a second, so that a burst of other
load, or an interrupt, affects one or two of them (assumed)."""
LOOK_S, DIGESTED_BYTES = 0.03, 1 << 20
"""Seconds for which one measurement keeps cores busy: several turns of the scheduler (assumed).
Each of its steps hashes this many bytes, in about half a millisecond."""
STEAL = 8
"""Field of a line of /proc/stat that counts the ticks taken by the host (proc(5))."""


def queued_here_s(proc: Path = PROC) -> float | None:
    """Return the seconds that this thread was ready to run and had no core.

    This is Linux's run-queue delay (proc(5), schedstat). None if the system does not count it.
    """
    try:
        text = (proc / "thread-self" / "schedstat").read_text(encoding="ascii")
        return int(text.split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return None


def stolen_s(proc: Path = PROC) -> float:
    """Return the seconds that the host of this virtual machine has taken of this process's cores.

    The cores are those that this process may use, together (proc(5), stat). 0 if not counted.
    """
    mine = {f"cpu{n}" for n in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else {}
    try:
        lines = (proc / "stat").read_text(encoding="ascii").splitlines()
        rows = [fields for fields in map(str.split, lines) if fields and fields[0] in mine]
        return sum(int(fields[STEAL]) for fields in rows) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


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
    stolen: Callable[[], float] = stolen_s,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Return the share of each of `cores` cores that a program would get now.

    This is the median of LOOKS measurements, less the share that the host of a virtual machine took
    in the meantime. A share well below 1 means that other programs use these cores.
    """
    before_s, shares = stolen(), list[float]()
    for n in range(LOOKS):
        if n:
            pause(PAUSE_S)
        shares.append(look(cores))
    taken = (stolen() - before_s) / (cores * LOOKS * LOOK_S)
    return median(shares) * max(0.0, 1 - taken)
