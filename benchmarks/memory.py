"""Memory: `python -m benchmarks.memory [--quick] [--peer NAME=PYTHON]`.

Bytes of the replay beside the bytes of the data it holds, and the largest resident set of a process
that trains one of the workloads of `peers_workloads`: each run in a process of its own, a few
thousand env steps, the same replay capacity for all. A peer runs in the interpreter that
`--peer sb3=…/bin/python` names, else in this one.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys

from benchmarks.bars import ABSENT, Bar, finish, ran
from benchmarks.peers_libraries import PEERS, RUNS
from benchmarks.peers_workloads import WORKLOADS

LOADS = ("W1x8", "W3")
QUICK = ("W1x8",)
OURS = "ours"
CAPACITY = 1_000_000
DATA, TREE = 1.05, 5.0
"""At most so many bytes of replay a byte of data, and of tree a transition."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
) | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}


def storage() -> dict[str, float]:
    """Bytes that replays take: a byte of their data, and of the tree a row.

    1e6 transitions whose data are two observations, action, reward and two flags; 1e5 stacks of
    four frames of 84 by 84, whose data are the frames, each once.
    """
    from pearl.algorithms.initial_values import CUT_EVERY
    from pearl_devices import kernel
    from pearl_devices.buffers import allocate
    from pearl_devices.kernels.replay import row_bytes

    ring = {"envs": 8, "obs": 4, "act": 0, "capacity": CAPACITY, "prioritised": 1, "fanout": 16}
    insert = kernel("replay_insert", **ring)
    held = {n: a.nbytes for n, a in allocate([insert]).items() if n.startswith("replay.")}
    tree = held.pop("replay.tree")
    size, rows = 84 * 84, CAPACITY // 10
    frames = {"stack": 4, "apart": 8, "ends": rows // CUT_EVERY + 8}
    stacks = ring | frames | {"capacity": rows, "obs": 4 * size, "prioritised": 0}
    made = allocate([kernel("replay_insert", stacks)])
    return {
        "data": sum(held.values()) / (CAPACITY * row_bytes(insert)),
        "frames": sum(a.nbytes for n, a in made.items() if n.startswith("replay.")) / (rows * size),
        "tree_bytes": tree / CAPACITY,
    }


def one(load: str, name: str) -> int:
    """What `measure` starts: trains, then prints the peak of its resident set as JSON."""
    try:
        RUNS[name](WORKLOADS[load], 0)
    except ModuleNotFoundError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return ABSENT
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak_rss_bytes": peak, "torch": "torch" in sys.modules}))
    return 0


def measure(load: str, name: str, python: str) -> dict[str, float] | None:
    """What one run took; None if the library is not there."""
    command = [python, "-m", "benchmarks.memory", "--one", load, name]
    done = ran(f"{load}, {name}", command, ONE_THREAD, 600)
    if done.returncode == ABSENT:
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return one(*options.one)
    pythons = dict.fromkeys(PEERS, sys.executable)
    for entry in options.peer:
        name, equals, python = entry.partition("=")
        if name not in PEERS or not equals:
            sys.exit(f"--peer {entry}: give NAME=PYTHON with a name of {', '.join(PEERS)}")
        pythons[name] = python
    rows, bars, absent = [], [], set[str]()
    peaks: dict[str, dict[str, float]] = {}
    for load in QUICK if options.quick else LOADS:
        measure(load, OURS, sys.executable)  # compiles: the run that counts finds its code cached
        peaks[load] = {}
        for name in (OURS, *(peer for peer in PEERS if peer in WORKLOADS[load].peer_steps)):
            found = measure(load, name, pythons.get(name, sys.executable))
            if found is None:
                absent.add(name)
                continue
            peaks[load][name] = found["peak_rss_bytes"]
            rows.append([load, name, f"{found['peak_rss_bytes'] / 2**20:,.0f} MiB"])
            if name == OURS:
                text = f"{load}: native plan and torch"
                said = "imported" if found["torch"] else "not imported"
                bars.append(Bar(text, said, "not imported", not found["torch"]))
        others = {name: peak for name, peak in peaks[load].items() if name != OURS}
        if others:
            least = min(others, key=lambda name: others[name])
            value = peaks[load][OURS] / others[least]
            text = f"{load}: peak resident set, over the smallest peer's ({least})"
            bars.append(Bar(text, f"{value:.2f}×", "at most 1×", value <= 1.0))
    held = storage()
    rows.append(["replay", "bytes a byte of data", f"{held['data']:.4f}"])
    rows.append(["replay", "bytes of tree a transition", f"{held['tree_bytes']:.3f}"])
    text = "replay: bytes a byte of data"
    bars.append(Bar(text, f"{held['data']:.4f}", f"at most {DATA}", held["data"] <= DATA))
    rows.append(["replay of frames", "bytes a byte of frames", f"{held['frames']:.4f}"])
    text = "replay of frames: bytes a byte of frames"
    bars.append(Bar(text, f"{held['frames']:.4f}", f"at most {DATA}", held["frames"] <= DATA))
    text, tree = "replay: bytes of tree a transition", held["tree_bytes"]
    bars.append(Bar(text, f"{tree:.3f}", f"at most {TREE:g}", tree <= TREE))
    left_out = [load for load in LOADS if load not in peaks]
    values = {"peak_rss_bytes": peaks, "replay": held}
    columns = ["what", "who", "measured"]
    status = finish("memory", columns, rows, bars, left_out, options.json, values)
    for name in sorted(absent):
        print(f"absent: {name} needs {PEERS[name]}: --peer {name}=PYTHON, or install it here")
    return ABSENT if absent else status


if __name__ == "__main__":
    sys.exit(main())
