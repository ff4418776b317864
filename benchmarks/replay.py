"""Prioritised replay alone: `python -m benchmarks.replay [--quick] [--peer NAME=PYTHON]`.

One round is a stratified sample of 256 of 1e6 transitions and the update of their priorities.
`ours, tree` leaves the rows where they are, as the peers' trees do; `ours` also copies the rows of
CartPole with their returns and computes the weights. CPU time of one thread; the contestants take
turns, each run in a process of its own; medians. A peer runs in the interpreter that
`--peer tianshou=…/bin/python` names, else in this one.

Two limits stand beside them. `bytes`: what a round must move (`pearl_devices.kernels` counts it) at
the bandwidth of a copy that no cache holds. `lines`: reading the cache lines that a round touches,
one a node and one a column of a row, at random in memory of the replay's size and nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.bars import ABSENT, Bar, finish, ran

ROWS, BATCH, LINE_BYTES = 1_000_000, 256, 64
FANOUTS = (4, 8, 16, 32)
CARTPOLE = {"envs": 8, "obs": 4, "act": 0, "n_step": 1}
WINDOW_S, WINDOWS = 0.1, 7
ASKED = (
    ("tianshou, tree", "ours, tree", 1.5),
    ("tianshou", "ours", 1.5),
    ("torchrl, tree", "ours, tree", 2.0),
)
"""Peer's row, ours, least ratio of their times."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

Call = Callable[[], object]


def seconds(call: Call) -> float:
    """Median CPU-seconds of a call, over windows of many."""
    call()
    found = []
    for _ in range(WINDOWS):
        begin, count = time.process_time(), 0
        while time.process_time() - begin < WINDOW_S:
            for _ in range(20):
                call()
            count += 20
        found.append((time.process_time() - begin) / count)
    return statistics.median(found)


def kernels(fanout: int) -> tuple[Any, Any]:
    """replay_sample and replay_update of this size."""
    from pearl_devices import kernel

    ring = {"capacity": ROWS, "prioritised": 1, "fanout": fanout, "batch": BATCH, "steps": 1}
    sizes = {name: ring[name] for name in ("capacity", "fanout", "batch", "steps")}
    return kernel("replay_sample", **CARTPOLE, **ring), kernel("replay_update", **sizes)


def filled(fanout: int) -> tuple[Any, Any, Any]:
    """A full replay with random priorities: (buffers, sample kernel, update kernel)."""
    import numpy as np

    from pearl_devices.buffers import allocate
    from pearl_devices.kernels.replay import tree_levels
    from pearl_devices.primitives.replay.sum_tree import raise_range

    sample, update = kernels(fanout)
    arrays, random = allocate([sample, update]), np.random.default_rng(0)
    for name, value in (("priority", (0.6, 1e-6, 1.0)), ("beta", (0.4, 1.0, 1e9))):
        arrays[f"replay.{name}"][:] = value
    for name in ("obs", "next_obs", "reward", "action"):
        arrays[f"replay.{name}"][...] = 1  # so that the pages are there
    arrays["replay.cursor"][:] = 0, ROWS
    arrays["hyper.discount"][:] = 0.99
    arrays["batch.td"][:] = np.abs(random.standard_normal((1, BATCH)))
    levels = np.array(tree_levels(ROWS, fanout), np.int64)
    arrays["replay.tree"][-levels[-1] :][:ROWS] = random.random(ROWS) + 0.01
    raise_range(arrays["replay.tree"], levels, fanout, 0, ROWS - 1)
    return arrays, sample, update


def ours(fanout: int) -> float:
    """Sample with rows and weights, then priorities: the two kernels as training calls them."""
    from pearl_devices import cpu

    arrays, sample, update = filled(fanout)
    draw, write = (cpu.bind(k, "native", arrays) for k in (sample, update))

    def both() -> None:
        draw()
        write()

    return seconds(both)


def ours_tree(fanout: int) -> float:
    """The tree alone: one leaf from each share of the total, then new priorities for them."""
    import numpy as np

    from pearl_devices.kernels.replay import tree_levels
    from pearl_devices.primitives.math.rng import bits
    from pearl_devices.primitives.native import bound
    from pearl_devices.primitives.replay.ring import set_priorities
    from pearl_devices.primitives.replay.sum_tree import find_strata

    arrays, _, _ = filled(fanout)
    tree, index = arrays["replay.tree"], arrays["batch.index"][0]
    levels, count = np.array(tree_levels(ROWS, fanout), np.int64), [0]
    bound(find_strata, tree, levels, fanout, np.uint64(1), index)
    write = bound(
        set_priorities,
        tree,
        levels,
        fanout,
        arrays["replay.priority"],
        index,
        arrays["batch.td"][0],
    )

    def both() -> None:
        count[0] += 1
        find_strata(tree, levels, fanout, np.uint64(bits(np.uint64(7), count[0])), index)
        write()

    return seconds(both)


def tianshou() -> float:
    """Its prioritised buffer, filled at one stroke and not row by row, which takes minutes."""
    import numpy as np
    from tianshou.data import Batch, PrioritizedReplayBuffer

    buffer, obs = PrioritizedReplayBuffer(ROWS, alpha=0.6, beta=0.4), np.ones((ROWS, 4), np.float32)
    row = {"act": 1, "rew": 1.0, "terminated": False, "truncated": False, "info": {}}
    buffer.add(Batch(obs=obs[0], obs_next=obs[0], **row))
    ends = {name: np.zeros(ROWS, bool) for name in ("terminated", "truncated", "done")}
    numbers = {"act": np.ones(ROWS, np.int64), "rew": np.ones(ROWS)}
    buffer.set_batch(Batch(obs=obs, obs_next=obs.copy(), info=Batch(), **numbers, **ends))
    buffer._size = ROWS
    random = np.random.default_rng(0)
    buffer.weight[np.arange(ROWS)] = random.random(ROWS) + 0.01
    td = np.abs(random.standard_normal(BATCH))

    def both() -> None:
        _, index = buffer.sample(BATCH)
        buffer.update_weight(index, td)

    return seconds(both)


def tianshou_tree() -> float:
    import numpy as np
    from tianshou.data.utils.segtree import SegmentTree

    random, tree = np.random.default_rng(0), SegmentTree(ROWS)
    tree[np.arange(ROWS)] = random.random(ROWS) + 0.01
    td = np.abs(random.standard_normal(BATCH))

    def both() -> None:
        tree[tree.get_prefix_sum_idx(random.random(BATCH) * tree.reduce())] = td

    return seconds(both)


def torchrl() -> float:
    """Its two C++ trees, as its prioritised sampler keeps them: of sums, and of minima."""
    import torch
    from torchrl._torchrl import MinSegmentTreeFp32, SumSegmentTreeFp32

    torch.set_num_threads(1)
    sums, least = SumSegmentTreeFp32(ROWS), MinSegmentTreeFp32(ROWS)
    for tree in (sums, least):
        tree[torch.arange(ROWS)] = torch.rand(ROWS) + 0.01
    td = torch.rand(BATCH)

    def both() -> None:
        index = sums.scan_lower_bound(torch.rand(BATCH) * sums.query(0, ROWS))
        sums[index] = td
        least[index] = td

    return seconds(both)


def copying() -> float:
    """Seconds that the bytes of a round take at the bandwidth of a copy of 256 MiB."""
    import numpy as np

    source = np.ones(2**25)
    target = np.empty_like(source)
    best = min(_timed(lambda: np.copyto(target, source)) for _ in range(9))
    moved = sum(k.bytes_in + k.bytes_out for k in kernels(16))
    return float(moved / (2 * source.nbytes / best))


def touching() -> float:
    """Seconds to read, at random, as many cache lines as a round touches, in as much memory."""
    import numpy as np

    from pearl_devices.kernels.replay import tree_levels
    from pearl_devices.primitives.native import bound

    columns, levels = 6, len(tree_levels(ROWS, 16)) - 1
    bytes_held = sum(a.nbytes for n, a in filled(16)[0].items() if n.startswith("replay."))
    memory = np.ones(bytes_held // LINE_BYTES * (LINE_BYTES // 4), np.float32)
    lines = BATCH * (columns + 2 * levels)
    random = np.random.default_rng(0)
    many = random.integers(0, memory.size // 16, (64, lines)) * 16
    read, at = bound(read_lines, memory, many[0]), [0]

    def touch() -> None:
        at[0] = (at[0] + 1) % 64
        read.func(memory, many[at[0]])  # type: ignore[attr-defined]

    return seconds(touch)


def read_lines(memory: Any, at: Any) -> Any:
    total = memory[0]
    for j in range(at.size):
        total += memory[at[j]]
    return total


def _timed(call: Call) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


RUNS: dict[str, Callable[[], float]] = {
    **{f"ours, tree, fanout {f}": (lambda f=f: ours_tree(f)) for f in FANOUTS},  # type: ignore[misc]
    "ours, tree": lambda: ours_tree(16),
    "ours": lambda: ours(16),
    "tianshou, tree": tianshou_tree,
    "tianshou": tianshou,
    "torchrl, tree": torchrl,
    "limit, bytes": copying,
    "limit, lines": touching,
}
PEERS = {"tianshou": "tianshou", "torchrl": "torchrl with an extension that fits its torch"}


def one(name: str) -> int:
    """What `measure` starts: prints the seconds as JSON."""
    global read_lines
    if name == "limit, lines":
        from pearl_devices.primitives.native import exact

        read_lines = exact(read_lines)
    try:
        found = RUNS[name]()
    except ImportError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return ABSENT
    print(json.dumps({"seconds": found}))
    return 0


def measure(name: str, python: str) -> float | str:
    """Seconds a round, from a process of its own; why not, where the library does not load."""
    done = ran(name, [python, "-m", "benchmarks.replay", "--one", name], ONE_THREAD, 300)
    if done.returncode == ABSENT:
        return done.stderr.strip().splitlines()[-1][:200]
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn, and no sweep of fanouts")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--turns", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        return one(options.one)
    pythons = dict.fromkeys(PEERS, sys.executable)
    for entry in options.peer:
        name, equals, python = entry.partition("=")
        if name not in PEERS or not equals:
            sys.exit(f"--peer {entry}: give NAME=PYTHON with a name of {', '.join(PEERS)}")
        pythons[name] = python
    names = [n for n in RUNS if not (options.quick and "fanout" in n)]
    times: dict[str, list[float]] = {name: [] for name in names}
    absent: dict[str, str] = {}
    for _ in range(1 if options.quick else options.turns):
        for name in names:
            found = measure(name, pythons.get(name.partition(",")[0], sys.executable))
            if isinstance(found, str):
                absent[name] = found
            else:
                times[name].append(found)
    times = {name: values for name, values in times.items() if values}
    middle = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        [
            name,
            f"{1e6 * middle[name]:.1f} µs",
            f"{1e6 * min(values):.1f} – {1e6 * max(values):.1f}",
            f"{middle[name] / middle['ours, tree']:.2f}",
            f"{middle[name] / middle['ours']:.2f}",
        ]
        for name, values in times.items()
    ]
    bars = []
    for name, mine, least in ASKED:
        if name in middle:
            value = middle[name] / middle[mine]
            text = f"{name}, over {mine}"
            bars.append(Bar(text, f"{value:.2f}×", f"at least {least:g}×", value >= least))
    columns = ["who", "a round, median", "range", "× ours, tree", "× ours"]
    left_out = ["fanouts"] if options.quick else []
    title = f"replay: {BATCH} of {ROWS:,}, sample and priorities"
    status = finish(title, columns, rows, bars, left_out, options.json, {"seconds": times})
    for name, why in absent.items():
        peer = name.partition(",")[0]
        print(f"absent: {name}: needs {PEERS[peer]}: --peer {peer}=PYTHON ({why})")
    return ABSENT if absent else status


if __name__ == "__main__":
    sys.exit(main())
