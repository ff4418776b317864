"""Seconds in which a lane was ready to run and had no core, which Linux counts for every thread.

A lane that sleeps because it waits for tokens is not ready, so its sleep does not count. Time that
the host of a virtual machine takes does not count either.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from pearl_devices.primitives import HELPER
from pearl_devices.system import host_system

Thread = tuple[int, int]
"""Numbers of a process and of its thread."""

Waits = Mapping[tuple[str, Thread], float]
"""Lane and one of its threads → seconds so far in which the thread was ready and had no core."""


def current_threads() -> list[Thread]:
    """Return this thread and its helpers, which compute half of each gradient step."""
    helpers = [t.native_id for t in threading.enumerate() if t.name == HELPER and t.native_id]
    return [(os.getpid(), n) for n in (threading.get_native_id(), *helpers)]


def read_waits(lanes: Mapping[str, list[Thread]]) -> Waits:
    """Return the seconds of every thread of every lane so far.

    The result is empty if the system does not count them, and if there are more threads than cores,
    because these threads wait for each other.
    """
    threads = [(lane, thread) for lane, own in lanes.items() for thread in own]
    if len(threads) > len(host_system.usable_cpus()):
        return {}
    found = {key: host_system.queued_s(*key[1]) for key in threads}
    waits = {key: seconds for key, seconds in found.items() if seconds is not None}
    return waits if len(waits) == len(found) else {}


def lane_wait_s(before: Waits, after: Waits, lane: str) -> float | None:
    """Return the seconds that `lane` waited, by its thread that waited longest.

    If no lane has that name, the lane that waited longest counts. None if no seconds are known.
    """
    waited_s = {key: after[key] - before[key] for key in after if key in before}
    own = [seconds for (name, _), seconds in waited_s.items() if name == lane]
    return max(own or waited_s.values(), default=None)
