"""Speed beside other libraries: `python -m benchmarks.peers [--quick] [--peer NAME=PYTHON]`.

Env steps per CPU-second of the workloads in `peers_workloads`, one thread, after a warm-up. The
libraries take turns, each run in a process of its own; medians, and the ratios pair by pair. A peer
runs in the interpreter that `--peer sb3=…/bin/python` names, else in this one (extra `[bench]`).
sbx's compiled steps run on one thread too (XLA_FLAGS). The rows `products` are no loops but limits:
what W3 would reach were a gradient step only its matrix products, and everything else free.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.bars import ABSENT, Bar, finish
from benchmarks.peers_libraries import PEERS, RUNS
from benchmarks.peers_workloads import WORKLOADS

ROWS = {
    "W1x8": ("ours", "ours, gymnasium", "ours, prioritised", "sb3", "sbx", "eager"),
    "W1x1": ("ours", "ours, gymnasium", "sb3", "sbx", "eager"),
    "W3": ("ours", "sb3", "sbx", "products", "products, ours"),
}
QUICK = {"W1x8": ("ours", "ours, gymnasium", "sb3", "sbx")}
ASKED = (
    ("W1x8", "ours", "sb3", 20.0),
    ("W1x8", "ours", "sbx", 6.0),
    ("W1x8", "ours, gymnasium", "sbx", 5.0),
    ("W1x1", "ours, gymnasium", "sb3", 20.0),
    ("W3", "ours", "sbx", 1.3),
    ("W3", "ours", "products", 0.9),
)
"""Workload, row, row it is compared with, least ratio."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
}


def measure(load: str, name: str, seed: int, python: str) -> float | None:
    """One run in a process of its own; None if the library is not there."""
    command = [python, "-m", "benchmarks.peers", "--one", load, name, "--seed", str(seed)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=str(Path(__file__).parents[1]),
        env=os.environ | ONE_THREAD,
        timeout=600,
        check=False,
    )
    if done.returncode == ABSENT:
        return None
    if done.returncode:
        sys.exit(f"{load}, {name}: {done.stderr.strip()[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["per_cpu_s"])


def one(load: str, name: str, seed: int) -> int:
    """What `measure` starts: prints the rate as JSON."""
    try:
        rate = RUNS[name](WORKLOADS[load], seed)
    except ModuleNotFoundError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return ABSENT
    print(json.dumps({"per_cpu_s": rate}))
    return 0


def interpreters(given: list[str]) -> dict[str, str]:
    """Peer → interpreter; exits naming an unknown peer or an entry without `=`."""
    found = dict.fromkeys(PEERS, sys.executable)
    for entry in given:
        name, equals, python = entry.partition("=")
        if name not in PEERS or not equals:
            sys.exit(f"--peer {entry}: give NAME=PYTHON with a name of {', '.join(PEERS)}")
        found[name] = python
    return found


def ratio(rates: dict[str, list[float]], a: str, b: str) -> float:
    return statistics.median(x / y for x, y in zip(rates[a], rates[b], strict=True))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one pair of W1 with 8 environments")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each row (default 3)")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return one(options.one[0], options.one[1], options.seed)
    pythons = interpreters(options.peer)
    plan, pairs = (QUICK, 1) if options.quick else (ROWS, options.pairs)
    rates: dict[str, dict[str, list[float]]] = {}
    absent = set()
    for load, names in plan.items():
        for name in names:
            if name.startswith("ours"):
                measure(load, name, 0, sys.executable)  # compiles, so that no counted run does
        found: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(pairs):
            for name in names:
                rate = measure(load, name, seed, pythons.get(name, sys.executable))
                if rate is None:
                    absent.add(name)
                else:
                    found[name].append(rate)
        rates[load] = {name: values for name, values in found.items() if values}
    rows = []
    for load, measured in rates.items():
        for name, several in measured.items():
            against = [f"{ratio(measured, 'ours', name):.2f}" if name != "ours" else ""]
            middle = f"{statistics.median(several):,.0f}"
            rows.append(
                [load, name, middle, f"{min(several):,.0f} – {max(several):,.0f}", *against]
            )
    bars = []
    for load, a, b, least in ASKED:
        if {a, b} <= set(rates.get(load, {})):
            value = ratio(rates[load], a, b)
            text = f"{load}: {a} over {b}"
            bars.append(Bar(text, f"{value:.2f}×", f"at least {least:g}×", value >= least))
    columns = ["workload", "who", "env steps per CPU-s, median", "range", "ours ×, by pairs"]
    left_out = [f"{load}, {a} over {b}" for load, a, b, _ in ASKED if a not in plan.get(load, ())]
    values = {"rates": rates, "workloads": {load: WORKLOADS[load].what for load in plan}}
    status = finish("peers", columns, rows, bars, left_out, options.json, values)
    for name in sorted(absent):
        print(f"absent: {name} needs {PEERS[name]}: --peer {name}=PYTHON, or install it here")
    return ABSENT if absent else status


if __name__ == "__main__":
    sys.exit(main())
