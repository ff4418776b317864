"""Runs over two hosts whose cable is pulled: `python -m benchmarks.networks [--carrier NAME]
[--json FILE]`.

Two raylets, each in a network namespace of this machine with an address of its own, a virtual cable
between them (`tests/networks.py`; Linux, as root; the extra [ray]). Nothing crosses the loopback of
this machine. Per policy one run is left alone, one has its cable pulled for 10 s, and one for good,
each after its first checkpoint; parameters are those of the same plan in one thread, bit for bit.
still: the longest time without news of the run, which shows that the cable was missed.
The speed of a real network is not shown here.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.bars import ABSENT, Bar, show, verdict

SETTINGS = (
    "platform=ray", "algorithm.hidden=[64, 64]", "train.steps=40000", "train.evaluate_every=0",
    "train.final_episodes=2", "train.checkpoint_every=4000",
)  # fmt: skip
POLICIES = {
    "synchronous_actors": ("limits.distribution=synchronous_actors",),
    "data_parallel_learners": (
        "limits.distribution=data_parallel_learners", "limits.learners=2", "train.steps=16000",
    ),
}  # fmt: skip
PULLED: dict[str, float | None] = {"left alone": 0.0, "pulled for 10 s": 10.0, "pulled": None}
"""Seconds without the cable; None: for good."""
ENDS_S = 300.0
"""Seconds within which a run ends."""


def trained(hosts: Any, out: Path, settings: tuple[str, ...], without_s: float | None) -> float:
    """A run from the first host, the second one's cable pulled after its first checkpoint; its
    seconds."""
    words = [word for key in settings for word in ("--set", key)]
    command = [sys.executable, "-m", "pearl", "train", "dqn_cartpole", *words, "--out", str(out)]
    begin_s = time.monotonic()
    run = subprocess.Popen(
        hosts[0].inside(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        while without_s != 0.0 and not (out / "checkpoint.safetensors").exists():
            if run.poll() is not None or time.monotonic() - begin_s > ENDS_S:
                raise RuntimeError(f"no checkpoint: {run.communicate()[0] if run.poll() else ''}")
            time.sleep(0.01)
        if without_s != 0.0:
            hosts[1].cable("down")
        if without_s:
            time.sleep(without_s)
            hosts[1].cable("up")
        said, _ = run.communicate(timeout=ENDS_S)
    finally:
        run.kill()
    if run.returncode:
        raise RuntimeError(f"status {run.returncode}: {said}")
    return time.monotonic() - begin_s


def still_s(out: Path) -> float:
    """The longest time between two rows of a run's metrics."""
    with (out / "metrics.csv").open(newline="") as rows:
        walls = [float(row["wall_s"]) for row in csv.DictReader(rows)]
    return max(after - before for before, after in pairwise(walls))


def one(policy: str, what: str, carrier: str, folder: Path) -> tuple[list[str], list[str]]:
    """A row, and all that was not as promised."""
    import numpy as np
    from safetensors.numpy import load_file

    from pearl.planning.runs import load_run
    from tests.networks import two_hosts
    from tests.ray_cluster import ray_cluster

    settings = (*SETTINGS, *POLICIES[policy])
    calm = folder / policy
    with two_hosts() as hosts, ray_cluster(hosts=hosts):
        if not calm.exists():
            trained(hosts, calm, (*settings, "train.lanes=one"), 0.0)
        out = folder / f"{policy} {what}"
        over = (*settings, f"train.carrier={carrier}")
        seconds = trained(hosts, out, over, PULLED[what])
    run = load_run(out)
    found, expected = (load_file(f / "checkpoint.safetensors") for f in (out, calm))
    same = found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) for name in found
    )
    (traffic,) = run.traffic
    reason = run.events[0].partition(": ")[2].partition("; ")[0] if run.events else ""
    without_s, still = PULLED[what], still_s(out)
    missed = without_s is not None and still < without_s
    checks = {
        "other bits": not same, "the cable was not missed": missed,
        "islands lost": bool(run.restarts) != (without_s is None),
    }  # fmt: skip
    wrong = [said for said, true in checks.items() if true]
    row = [policy, what, traffic["carrier"], f"{seconds:.0f} s", f"{still:.1f} s"]
    row += [str(run.restarts), reason, "equal" if same else "not equal"]
    return row, [f"{policy}, {what}: {', '.join(wrong)}"] if wrong else []


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.networks", description=__doc__)
    parser.add_argument("--carrier", choices=("tcp", "ray"), default="tcp")
    parser.add_argument("--json")
    given = parser.parse_args(argv)
    from tests.networks import allowed

    if not allowed():
        print("networks: this machine makes no network namespaces; run it on Linux, as root")
        return ABSENT
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        for policy in POLICIES:
            for what in PULLED:
                row, unlike = one(policy, what, given.carrier, Path(folder))
                rows.append(row)
                print("  ".join(row), flush=True)
                wrong += unlike
    columns = ["policy", "cable", "carrier", "whole run", "still", "lost islands", "why", "bits"]
    show("networks", columns, rows)
    bars = [Bar("runs not as promised", "; ".join(wrong) or "0", "0", not wrong)]
    return verdict("networks", bars, [], given.json, {"columns": columns, "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
