"""What a message between two nodes takes by each carrier: `python -m benchmarks.carriers
[--quick] [--json PATH]`.

All are between this process and actors on the second of two raylets that are started on this
machine: calls with the pieces of `pearl.cluster.chunks`, and wires (`pearl.cluster.transport`),
as in a run. There and back one after the other, and one way in a row. CPU seconds are those of
this process, the actors and the raylets together, less what all of them take while nothing is sent.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from benchmarks.bars import ABSENT, Bar, finish
from pearl.cluster.chunks import chunk_count, join_chunks, split_message
from pearl.formatting import si

SIZES = (1_000, 16_000, 64_000, 256_000, 1_048_576, 4_194_304)
"""Bytes of the messages."""
ROUNDS = 5
EACH_S = 0.4
"""Seconds of timing a size in a round, each of the two ways."""
UNDER_WAY = 16
WAIT_S = 60.0

Send = Callable[[Any, int, bool], None]
"""(message, how many, whether each comes back before the next goes)."""


class Far:
    """The actor at the other end of a wire."""

    def join(self, at: Any) -> None:
        from pearl.cluster.door import join

        self.wire = join(at)

    def serve(self) -> None:
        """Take as many messages as each order says, and send them back if it says so."""
        while (order := self.wire.receive(WAIT_S)[0].view(np.int64))[0]:
            for _ in range(order[0]):
                found = self.wire.receive(WAIT_S)
                if order[1]:
                    self.wire.send(found)
            if not order[1]:
                self.wire.send([])


class Echo:
    """The actor at the other end of Ray's calls."""

    def back(self, *parts: Any) -> Any:
        found = split_message(join_chunks(parts))
        return found if len(found) > 1 else found[0]

    def taken(self, *parts: Any) -> int:
        return len(parts)


def by_wire(wire: Any) -> Send:
    def send(message: Any, count: int, back: bool) -> None:
        wire.send([np.array([count, back], np.int64).view(np.uint8)])
        for _ in range(count):
            wire.send([message])
            if back:
                wire.receive(WAIT_S)
        if not back:
            wire.receive(WAIT_S)

    return send


def by_ray(ray: Any, actor: Any) -> Send:
    def send(message: Any, count: int, back: bool) -> None:
        under_way: list[Any] = []
        for _ in range(count):
            if back:
                call = actor.back.options(num_returns=chunk_count(message.size))
                found = ray.get(call.remote(*split_message(message)), timeout=WAIT_S)
                join_chunks(found if isinstance(found, list) else [found])
                continue
            if len(under_way) == UNDER_WAY:
                ray.get(under_way.pop(0), timeout=WAIT_S)
            under_way.append(actor.taken.remote(*split_message(message)))
        if under_way:
            ray.get(under_way, timeout=WAIT_S)

    return send


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that these processes have taken so far."""
    found = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        found += int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


def timed(
    send: Send, size: int, back: bool, each_s: float, pids: list[int], idle: float
) -> tuple[float, float]:
    """Seconds of a message, and CPU seconds."""
    message = np.arange(size).astype(np.uint8)
    begin_s = time.perf_counter()
    send(message, UNDER_WAY, back)
    count = max(UNDER_WAY, int(UNDER_WAY * each_s / (time.perf_counter() - begin_s)))
    before_s, begin_s = cpu_s(pids), time.perf_counter()
    send(message, count, back)
    wall_s = time.perf_counter() - begin_s
    messages = count * (2 if back else 1)
    return wall_s / messages, (cpu_s(pids) - before_s - idle * wall_s) / messages


def compared(cluster: Any, rounds: int, each_s: float) -> dict[tuple[int, bool, str], Any]:
    """Size, way and carrier → (seconds, CPU seconds) of each round."""
    from pearl.cluster import connection
    from pearl.cluster.door import TransportListener
    from tests.ray_cluster import members

    ray = connection.connect()
    here = ray.get_runtime_context().get_node_id()
    home, other = sorted(connection.nodes(), key=lambda node: node.id != here)
    options = {"num_cpus": 0, "max_concurrency": 2, **connection.on_node(other)}
    echo = ray.remote(Echo).options(**options).remote()
    far = ray.remote(Far).options(**options).remote()
    door = TransportListener(home.address)
    joined = far.join.remote(door.at)
    wire = door.open()
    ray.get(joined, timeout=WAIT_S)
    serving = far.serve.remote()
    ways = {"tcp": by_wire(wire), "ray": by_ray(ray, echo)}
    for send in ways.values():  # the first messages are slower
        send(np.zeros(1, np.uint8), UNDER_WAY, True)
    pids = [os.getpid(), *(p for node in cluster.nodes.values() for p in members(node.pid))]
    before_s, begin_s = cpu_s(pids), time.perf_counter()
    time.sleep(10 * each_s)
    idle = (cpu_s(pids) - before_s) / (time.perf_counter() - begin_s)
    found: dict[tuple[int, bool, str], Any] = {}
    for _ in range(rounds):
        for size in SIZES:
            for back in (True, False):
                for carrier, send in ways.items():
                    one = timed(send, size, back, each_s, pids, idle)
                    found.setdefault((size, back, carrier), []).append(one)
    wire.send([np.zeros(2, np.int64).view(np.uint8)])
    ray.get(serving, timeout=WAIT_S)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.carriers")
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    if find_spec("ray") is None:
        print("absent: Ray; pip install 'pearl-toolkit[ray]'")
        return ABSENT
    from pearl.cluster.transport import CARRIERS
    from tests.ray_cluster import ray_cluster

    with ray_cluster() as cluster:
        found = compared(cluster, 1 if options.quick else ROUNDS, EACH_S)
    figures = {
        key: tuple(median(r[i] for r in rounds) for i in (0, 1)) for key, rounds in found.items()
    }
    rows: list[list[str]] = []
    shares: tuple[list[float], list[float]] = ([], [])
    for size in SIZES:
        for back in (True, False):
            row = [si(float(size), "B"), "one by one" if back else "in a row"]
            for i in (0, 1):
                row += [si(figures[size, back, c][i], "s") for c in CARRIERS]
            rows.append(row)
            for i, ratios in enumerate(shares):
                ratios.append(figures[size, back, "tcp"][i] / figures[size, back, "ray"][i])
    columns = ["bytes", "way", *CARRIERS, *(f"CPU of {c}" for c in CARRIERS)]
    bars = []
    for name, ratios in zip(("time", "CPU time"), shares, strict=True):
        what = f"{name} of tcp over that of ray, median of sizes and ways"
        share = median(ratios)
        bars.append(Bar(what, f"{share:.2f}", "at most 0.5", share <= 0.5))
    kept = [
        {"bytes": size, "back": back, "carrier": c, "wall_s": wall_s, "cpu_s": spent_s}
        for (size, back, c), (wall_s, spent_s) in figures.items()
    ]
    return finish("carriers", columns, rows, bars, [], options.json, {"figures": kept})


if __name__ == "__main__":
    sys.exit(main())
