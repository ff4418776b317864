"""Speed beside other libraries: `python -m benchmarks.peers [--quick] [--peer …]`.

Env steps per CPU-second of the workloads in `peers_workloads`, one thread, after a warm-up. All
take turns, each run in a process of its own; medians, and the ratios pair by pair. A peer runs in
the interpreter that `--peer sb3=…/bin/python` names, else in this one; one that is not there is
named as absent. XLA runs on one thread too (XLA_FLAGS).

The rows of products are no loops but limits: what a workload would reach if a gradient step were
its matrix products alone, by numpy or torch, or by our own tiles.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks import peers_ours, peers_xla
from benchmarks import peers_trainers as trainers
from benchmarks.bars import ABSENT, AbsentError, answer, named_pythons, run_module, show, verdict
from benchmarks.peers_ours import BFLOAT16, GYMNASIUM, OWN_ENV, SMALLEST, TORCH
from benchmarks.peers_table import ASKED, bars_of, rows_of
from benchmarks.peers_workloads import WORKLOADS, Workload

Found = dict[str, dict[str, list[dict[str, Any]]]]
"""Workload → row → what each run gave; pairs stand at equal places."""
RUNS: Mapping[str, Callable[[Workload, int], Any]] = {
    "ours": lambda w, s: peers_ours.ours(w, s, {}),
    "ours, gymnasium": lambda w, s: peers_ours.ours(w, s, GYMNASIUM),
    "ours, own env": lambda w, s: peers_ours.ours(w, s, OWN_ENV),
    "ours, torch": lambda w, s: peers_ours.ours(w, s, TORCH),
    "ours, bfloat16": lambda w, s: peers_ours.ours(w, s, BFLOAT16),
    "ours, smallest": lambda w, s: peers_ours.ours(w, s, SMALLEST),
    "sb3": lambda w, s: trainers.stable("sb3", w, s),
    "sbx": lambda w, s: trainers.stable("sbx", w, s),
    "tianshou": trainers.tianshou,
    "rllib": trainers.rllib,
    "xla": peers_xla.run,
    "products": lambda w, s: peers_ours.products(w, own=False),
    "products, ours": lambda w, s: peers_ours.products(w, own=True),
}
"""Row → the run that gives env steps per CPU-second. It imports its library on use."""
PEERS = {
    "sb3": "stable-baselines3", "sbx": "sbx-rl", "tianshou": "tianshou", "rllib": "ray[rllib]",
    "xla": "jax and optax",
}  # fmt: skip
"""Row that runs in an interpreter of its own (else in this one) → what that must have."""
PRODUCTS, UPDATES = ("products", "products, ours"), ("ours, torch", "ours, bfloat16")
ROWS = {
    "W1x8": ("ours", "ours, gymnasium", "sbx", "sb3", "rllib", "xla", *PRODUCTS),
    "W1x1": (
        *("ours", "ours, gymnasium", "ours, own env", "ours, smallest"),
        *("sb3", "sbx", "xla", *PRODUCTS),
    ),
    "W2": ("ours", "ours, gymnasium", "ours, smallest", "tianshou", *PRODUCTS),
    "W3": ("ours", "ours, gymnasium", *UPDATES, "sbx", "sb3", "xla", *PRODUCTS),
    "W5": ("ours", "ours, gymnasium", *UPDATES, "sbx", "sb3", "xla", *PRODUCTS),
    "W4": ("ours", "ours, gymnasium", "sb3", "sbx", "xla", *PRODUCTS),
}
QUICK = {"W1x8": ("ours", "ours, gymnasium", "sb3", "sbx")}


def measure(load: str, name: str, seed: int, python: str, steps: int | None) -> Any:
    """One run in a process of its own."""
    given = ["--one", load, name, "--seed", str(seed), *(["--steps", str(steps)] if steps else [])]
    what = f"{load}, {name}"
    return run_module(what, "benchmarks.peers", given, python=python, timeout_s=900)


def one(load: str, name: str, seed: int, steps: int | None) -> dict[str, Any]:
    """What `measure` starts: what the run gives, with the peak memory."""
    work = WORKLOADS[load]
    if steps:
        work = replace(work, steps=steps, peer_steps=dict.fromkeys(work.peer_steps, steps))
    given = RUNS[name](work, seed)
    result = given if isinstance(given, dict) else {"per_cpu_s": given}
    return result | {"rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def collect(
    plan: Mapping[str, tuple[str, ...]], pairs: int, pythons: Mapping[str, str], steps: int | None
) -> tuple[Found, dict[str, str]]:
    """All runs, interleaved; and row → why it is absent."""
    found: Found = {}
    absent: dict[str, str] = {}
    for load, names in plan.items():
        for name in names:
            if name.startswith("ours"):
                measure(load, name, 0, sys.executable, 2_000)  # compiles: no counted run does
        here: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for pair in range(pairs):
            for name in names:
                if f"{load}, {name}" in absent:
                    continue
                python = pythons.get(name, sys.executable)
                try:
                    given = measure(load, name, pair, python, steps)
                except AbsentError as error:
                    absent[f"{load}, {name}"] = str(error)
                    continue
                here[name].append(given)
                print(f"{load}, {name}, pair {pair + 1}: {_brief(given)}", flush=True)
        found[load] = {name: values for name, values in here.items() if values}
    return found, absent


def _brief(given: Mapping[str, Any]) -> str:
    return f"{given['per_cpu_s']:,.0f} per CPU-s, {given['rss_bytes'] / 2**20:.0f} MiB"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="one pair of W1 with 8 environments")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each row (default 3)")
    parser.add_argument("--steps", type=int, help="env steps of every run, to try the benchmark")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        load, name = options.one
        return answer(name, lambda: one(load, name, options.seed, options.steps))
    wrong = [load for load in options.loads if load not in ROWS]
    if wrong or options.pairs < 1:
        parser.error(f"workloads are {', '.join(ROWS)}, pairs at least 1")
    pythons = named_pythons(options.peer, PEERS)
    plan = QUICK if options.quick else ROWS
    plan = {
        load: names for load, names in plan.items() if not options.loads or load in options.loads
    }
    found, absent = collect(plan, 1 if options.quick else options.pairs, pythons, options.steps)
    columns = ["workload", "who", "per CPU-s, median", "range", "ours ×, by pairs", "peak MiB"]
    show("peers", columns, rows_of(found))
    bars = bars_of(found)
    left_out = [a.text for a in ASKED if not a.within(plan)]
    values = {"runs": found, "workloads": {k: w.what for k, w in WORKLOADS.items() if k in plan}}
    status = verdict("peers", bars, left_out if options.quick else [], options.json, values)
    for row, why in sorted(absent.items()):
        name = row.partition(", ")[2]
        print(f"absent: {row}: {why}; it needs {PEERS.get(name, name)}: --peer {name}=PYTHON")
    return ABSENT if absent else status


if __name__ == "__main__":
    sys.exit(main())
