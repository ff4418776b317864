"""How well links between hosts are predicted: `python -m benchmarks.links [--quick] [--json PATH]`.

The link to another node of the Ray cluster of RAY_ADDRESS, else of two raylets that are started on
this machine, is measured as `pearl calibrate --on ray` does, by each carrier. In turns with its
sizes 20 are timed that the fit does not see, and each is compared with its prediction. The repeat
error is that of a second timing of all: no prediction is nearer.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from dataclasses import asdict
from itertools import product
from statistics import median, quantiles
from typing import Any

from benchmarks.bars import at_most, finish
from benchmarks.two_hosts import with_raylets
from pearl.cluster.transport import CARRIERS
from pearl.formatting import si

UNSEEN, LEAST, MOST = 20, 64, 1 << 20
"""Sizes, log-uniform between these bytes."""
INLINE = 100_000
"""Bytes from which Ray hands an array over by its object store."""
ASKED = 0.15


def sizes(seed: int) -> list[int]:
    """Sizes of messages, none of which the fit has seen."""
    from pearl.cluster.links import SIZES

    r, found = random.Random(seed), set[int]()
    while len(found) < UNSEEN:
        size = round(LEAST * (MOST / LEAST) ** r.random())
        found |= {size} - set(SIZES)
    return sorted(found)


def compared(rounds: int, seed: int) -> tuple[list[list[str]], dict[str, Any]]:
    """A row a round and link, and what the JSON keeps."""
    from pearl.cluster import connection, links
    from pearl.cluster.timing import time_messages

    ray = connection.connect()
    here = ray.get_runtime_context().get_node_id()
    nodes = connection.nodes()
    home = next(n for n in nodes if n.id == here)
    others = [n for n in nodes if n.id != here and n.cores]
    if not others:
        sys.exit("links: the cluster has no other node with cores")
    rows: list[list[str]] = []
    kept: list[dict[str, Any]] = []
    for number in range(rounds):
        for node, carrier in product(others, CARRIERS):
            unseen = sizes(seed + number)
            all_sizes = [*links.SIZES, *unseen]
            first, second = (time_messages(home, node, carrier, all_sizes) for _ in range(2))
            link = links.measure_link(home, node, carrier, first[: len(links.SIZES)])
            first, second = (each[len(links.SIZES) :] for each in (first, second))
            off = link.errors(first)
            small = link.errors([t for t in first if t.size_bytes < INLINE])
            large = link.errors([t for t in first if t.size_bytes >= INLINE])
            again = [
                abs(a / b - 1)
                for x, y in zip(first, second, strict=True)
                for a, b in ((x.one_way_s, y.one_way_s), (x.pipelined_s, y.pipelined_s))
            ]
            cut = quantiles(off, n=20)
            kept.append(
                {
                    "link": asdict(link), "unseen": [asdict(t) for t in first],
                    "error": median(off), "small": median(small), "large": median(large),
                    "low": cut[0], "high": cut[-1], "repeat": median(again),
                },
            )  # fmt: skip
            rows.append(
                [
                    f"{home.name}, {node.name}", carrier, si(link.latency_s, "s"),
                    si(link.per_message_s, "s"), si(link.bytes_per_s, "B/s"), f"{median(off):.1%}",
                    f"{median(small):.1%}, {median(large):.1%}", f"{cut[0]:.1%} to {cut[-1]:.1%}",
                    f"{median(again):.1%}",
                ],
            )  # fmt: skip
    return rows, {"rounds": kept}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.links")
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    def measured(cluster: Any) -> int:
        return judged(*compared(1 if options.quick else 3, options.seed), options.json)

    if "RAY_ADDRESS" in os.environ:
        return measured(None)
    return with_raylets(measured, (1, 1))


def judged(rows: list[list[str]], values: dict[str, Any], json_path: str | None) -> int:
    """Shows the rows and judges each carrier; the exit status."""
    bars = []
    for carrier in CARRIERS:
        kept = [each for each in values["rounds"] if each["link"]["carrier"] == carrier]
        found = sorted(each["error"] for each in kept)
        over = f"{found[0]:.1%} to {found[-1]:.1%} over rounds"
        what = f"median error of {UNSEEN} unseen sizes, both ways, by {carrier} ({over})"
        bars.append(at_most(what, median(found), ASKED, "{:.1%}"))
    columns = ["link", "by", "latency", "a message", "bandwidth", "median error"]
    columns += ["below, above 100 kB", "5 to 95 %", "repeat"]
    return finish("links", columns, rows, bars, [], json_path, values)


if __name__ == "__main__":
    sys.exit(main())
