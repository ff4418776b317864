"""A long run of three lanes in processes: memory, handles and processes stay what they are.

`python -m benchmarks.soak [--minutes 30] [--json FILE]`. A worker is killed now and then, since
what leaks most easily is what recovery leaves behind. Exit status 0 only if nothing grows.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar, at_most, finish
from pearl.runtime import fork_server
from pearl.training.steering import Progress
from tests.lanes import planned, replay_spec, trained

SLOPE_BYTES_PER_S = 2**20 / 60
"""Resident memory may grow by 1 MiB a minute once warm: the allocator's own noise (assumed)."""

WARM = 0.25
"""The part of the time that does not count: code is loaded, pools fill."""

KILL_EVERY_S = 20.0


class Watch:
    """What a listener sees of this process and its children, a few times a second."""

    def __init__(self, seconds: float) -> None:
        self.end_s = time.monotonic() + seconds
        self.rows: list[tuple[float, int, int, int]] = []
        self.killed, self.dice, self.next_s = 0, random.Random(0), time.monotonic() + KILL_EVERY_S

    def __call__(self, progress: Progress) -> None:
        now, found = time.monotonic(), fork_server.running_pids()
        self.rows.append((now, rss_bytes([os.getpid(), *found]), handles(), len(found)))
        if now > self.next_s and found:
            self.next_s = now + KILL_EVERY_S
            self.killed += 1
            os.kill(self.dice.choice(found), signal.SIGKILL)
        if now > self.end_s:
            self.end_s = float("inf")
            signal.raise_signal(signal.SIGINT)


def handles() -> int:
    """Those that a run could leave: memory, bells, pipes and files of its folder."""
    kinds, found = ("memfd", "eventfd", "pipe:", tempfile.gettempdir()), 0
    for handle in Path("/proc/self/fd").iterdir():
        try:
            name = str(handle.readlink())
        except OSError:
            continue
        found += any(kind in name for kind in kinds)
    return found


def rss_bytes(processes: list[int]) -> int:
    """Resident memory of them all; one that has just ended counts as nothing."""
    total = 0
    for process in processes:
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def soak(minutes: float) -> dict[str, Any]:
    """Trains for so long; what was seen, and whether it stayed."""
    replay = {"capacity": 20_000, "kind": "prioritised", "fanout": 8}
    spec = replay_spec("dqn", {"policy_lag": 2}, replay=replay, n_step=3)
    spec["train"] |= {"evaluate_every": 50_000, "checkpoint_every": 50_000}
    shared, begun, before = set(os.listdir("/dev/shm")), handles(), fork_server.running_pids()
    watch = Watch(60.0 * minutes)
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(spec)
        options = {"steps": 10**11, "out": folder, "progress": watch}
        run = trained(*plan, "processes", **options).run  # type: ignore[attr-defined,arg-type]
    del plan
    gc.collect()
    rows = np.array(watch.rows)
    whole = rows[(rows[:, 3] == rows[:, 3].max()) & (rows[:, 0] > np.quantile(rows[:, 0], WARM))]
    slope = float(np.polyfit(whole[:, 0], whole[:, 1], 1)[0])
    # Halves rather than ends: a reading taken while a worker starts would be one of the ends.
    first, last = np.array_split(whole, 2)
    return {
        "minutes": minutes, "status": run.status, "env_steps": run.env_steps,
        "restarts": run.restarts, "killed": watch.killed, "lost_transitions": run.lost_transitions,
        "rss_bytes": float(np.median(whole[:, 1])), "rss_slope_bytes_per_s": slope,
        "handles": [float(np.median(first[:, 2])), float(np.median(last[:, 2]))],
        "processes": [float(np.median(first[:, 3])), float(np.median(last[:, 3]))],
        "handles_left": handles() - begun,
        "processes_left": len(set(fork_server.running_pids()) - set(before)),
        "shared_memory_left": len(set(os.listdir("/dev/shm")) - shared),
    }  # fmt: skip


def bars(found: dict[str, Any]) -> list[Bar]:
    """What was asked."""
    ends = ("handles", "processes")
    left = ("handles_left", "processes_left", "shared_memory_left")
    equal = [
        *((f"{n}, both halves", *found[n]) for n in ends), *((n, found[n], 0) for n in left),
        ("workers started again", found["restarts"], found["killed"]),
        ("ended as asked", found["status"], "interrupted"),
    ]  # fmt: skip
    slope = found["rss_slope_bytes_per_s"]
    return [
        at_most("memory grows by, bytes/s", slope, SLOPE_BYTES_PER_S, "{:.0f}"),
        *(Bar(what, f"{seen}", f"{asked}", seen == asked) for what, seen, asked in equal),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    found = soak(given.minutes)
    rows = [[name, f"{value}"] for name, value in found.items()]
    return finish("soak", ["", "found"], rows, bars(found), [], given.json, found)


if __name__ == "__main__":
    sys.exit(main())
