"""Links between hosts: measured on the running cluster, fitted, and stored next to calibrations.

Each carrier of messages has its own links. The model is that of `Link`: a message arrives latency_s
+ bytes / bytes_per_s after it was sent (half of a round trip), and occupies the link for
per_message_s + bytes / bytes_per_s (the part of each message in a pipeline's time).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pearl.cluster import connection
from pearl.cluster.connection import Node
from pearl.cluster.timing import TimedMessage, time_messages
from pearl.cluster.transport import CARRIERS
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl_devices import Link
from pearl_devices.base import UNTIMED
from pearl_devices.cache_folder import cache_folder
from pearl_estimators.sealed_files import seal, unseal

SCHEMA = 4
"""Links of schema 1 were timed without pauses, those of schema 2 only by calls of Ray, those of
schema 3 over connections whose batches had no tags."""
SIZES = (1, 512, 4096, 16_384, 65_536, 131_072, 262_144, 1_048_576, 4_194_304)
"""Bytes of the timed messages."""
Z25, Z95 = 0.6745, 1.6449
"""Distance of the lower quartile of a normal distribution below its median, and of its 95th
percentile above, in standard deviations."""
HANDLED_S = 3.5e-4
"""Seconds that a run spends on a message besides its transport, which no timing of a link includes:
packing, unpacking, counting, and threads that wake each other (assumed: 0.15 ms of CPU time to pack
and 0.19 to receive, of runs over two raylets, 2 x AMD EPYC, virtual, 2026-11-23)."""

ASSUMED = {
    "tcp": {"latency_s": 3e-4, "per_message_s": 4e-5, "bytes_per_s": 4.7e8},
    "ray": {"latency_s": 1.1e-3, "per_message_s": 2.5e-4, "bytes_per_s": 9e8},
}
"""Figures of links that were not measured: measured between two raylets of one machine with two
busy cores (Ray 2.60, 2 x AMD EPYC, virtual, 2026-11-23). By TCP the cost of a message is 1.4 times
the measured one without tags, and the bandwidth is that of a network of 10 Gbit/s, 1.2 GB/s, and of
HMAC-SHA256 at both ends, 1.57 GB/s each (96 kB in 61 us, the same CPU, 2026-11-24)."""
ASSUMED_SOURCE = (
    "assumed: {} as between two raylets of one machine; `pearl calibrate --on ray` times it"
)


@dataclass(frozen=True)
class MeasuredLink:
    """A measured link between two nodes.

    latency_s: seconds of a message beyond its bytes.
    per_message_s: seconds of each further message in a row beyond its bytes.
    bytes_per_s: rate of one direction.
    timings: the timed messages.
    home, other: names of the nodes. addresses: their addresses. carrier: of the messages.
    created: UTC, ISO 8601.
    error: median of |predicted / measured − 1| over the fitted timings.
    """

    home: str
    other: str
    addresses: tuple[str, str]
    carrier: str
    created: str
    latency_s: float
    per_message_s: float
    bytes_per_s: float
    error: float
    timings: tuple[TimedMessage, ...]

    def __post_init__(self) -> None:
        for name in ("latency_s", "per_message_s", "bytes_per_s", "error"):
            value = getattr(self, name)
            if not (isinstance(value, float) and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}; it must be a finite number, at least 0")
        if not self.bytes_per_s:
            raise ValueError("bytes_per_s is 0; it must be above 0")

    def predicted(self, size_bytes: float) -> tuple[float, float]:
        """Return seconds of a message one way, and of a message in a pipeline."""
        moving = size_bytes / self.bytes_per_s
        return self.latency_s + moving, self.per_message_s + moving

    def errors(self, timings: Sequence[TimedMessage]) -> list[float]:
        """Return |predicted / measured − 1| of each timing, both ways."""
        found = []
        for each in timings:
            one_way, pipelined = self.predicted(each.size_bytes)
            found += [abs(one_way / each.one_way_s - 1), abs(pipelined / each.pipelined_s - 1)]
        return found

    @property
    def band(self) -> tuple[float, float]:
        """The band of nine in ten messages, around the lower quartile that the figures are fitted
        to, of a log-normal distribution with the median spread of the timings."""
        half = math.log(median(t.spread for t in self.timings)) / 2
        quartile = Z25 / Z95 * half
        return math.exp(quartile - half), math.exp(quartile + half)

    @property
    def link(self) -> Link:
        """Return the `Link` of a platform; its ends are the hosts."""
        ends = f"{self.home} and {self.other}"
        source = f"measured {self.created[:10]} between {ends} by {self.carrier}"
        numbers = ("latency_s", "per_message_s", "bytes_per_s")
        own = f"{source}, and {1e3 * HANDLED_S:.2f} ms that a run takes itself (assumed)"
        return Link(
            self.home,
            self.other,
            latency_s=self.latency_s + HANDLED_S,
            bytes_per_s=self.bytes_per_s,
            per_message_s=self.per_message_s,
            sources={**dict.fromkeys(numbers, source), "latency_s": own},
            band=self.band,
        )


def link(home: Node, other: Node, carrier: str) -> Link:
    """Return the measured link of two nodes, else a link of assumed figures with such sources.

    Raises:
        SpecError: the file of measured links is damaged.
    """
    wanted = home.name, other.name, (home.address, other.address), carrier
    for found in load_links():
        if (found.home, found.other, found.addresses, found.carrier) == wanted:
            return found.link
    figures = ASSUMED[carrier]
    return Link(
        home.name,
        other.name,
        latency_s=figures["latency_s"] + HANDLED_S,
        bytes_per_s=figures["bytes_per_s"],
        per_message_s=figures["per_message_s"],
        sources=dict.fromkeys(figures, ASSUMED_SOURCE.format(carrier)),
        band=UNTIMED,
    )


def measure(sizes: Sequence[int] = SIZES) -> list[MeasuredLink]:
    """Measure the links from this node to all others that have cores, and store them.

    Raises:
        SpecError: there is no cluster.
        CalibrationError: a node stops answering.
    """
    ray = connection.connect()
    here = ray.get_runtime_context().get_node_id()
    nodes = connection.nodes()
    home = next(n for n in nodes if n.id == here)
    others = [n for n in nodes if n.id != here and n.cores]
    found = [
        measure_link(home, n, c, time_messages(home, n, c, sizes)) for n in others for c in CARRIERS
    ]
    _keep(found)
    return found


def measure_link(
    home: Node, other: Node, carrier: str, timings: Sequence[TimedMessage]
) -> MeasuredLink:
    """Return the link of this node, home, and another node, fitted to new timings."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    rough = MeasuredLink(
        home.name,
        other.name,
        (home.address, other.address),
        carrier,
        created,
        *fit_link(timings),
        0.0,
        tuple(timings),
    )
    return MeasuredLink(**{**vars(rough), "error": median(rough.errors(timings))})


def fit_link(timings: Sequence[TimedMessage]) -> tuple[float, float, float]:
    """Fit latency_s, per_message_s and bytes_per_s, none below 0, with the least sum of relative
    errors, on which a size with another path, such as Ray's object store, has little influence."""
    import numpy as np
    from scipy.optimize import linprog

    largest, n = max(t.size_bytes for t in timings), 2 * len(timings)
    rows = [[1 / t.one_way_s, 0.0, t.size_bytes / largest / t.one_way_s] for t in timings]
    rows += [[0.0, 1 / t.pipelined_s, t.size_bytes / largest / t.pipelined_s] for t in timings]
    ratio, off = np.array(rows), np.eye(n)
    found = linprog(
        np.concatenate([np.zeros(3), np.ones(n)]),  # the sum of |ratio - 1|
        A_ub=np.block([[ratio, -off], [-ratio, -off]]),
        b_ub=np.concatenate([np.ones(n), -np.ones(n)]),
    )
    assert found.x is not None  # any three numbers are feasible
    latency_s, per_message_s, moving_s = (float(x) for x in found.x[:3])
    return latency_s, per_message_s, largest / max(moving_s, 1e-12)


def path() -> Path:
    """Return the path of the measured links."""
    return cache_folder() / "links.json"


def load_links() -> list[MeasuredLink]:
    """Return the measured links; empty if there is no file.

    Raises:
        SpecError: the file is damaged.
    """
    file = path()
    try:
        body = unseal(json.loads(file.read_text(encoding="utf-8")), SCHEMA, "links")
        return [_link_from(each) for each in body["links"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"{file}: {error}; remove it, and measure with `pearl calibrate --on ray`"
        ) from None


def _link_from(each: dict[str, Any]) -> MeasuredLink:
    timings = tuple(TimedMessage(**one) for one in each["timings"])
    return MeasuredLink(**{**each, "addresses": tuple(each["addresses"]), "timings": timings})


def _keep(found: Sequence[MeasuredLink]) -> None:
    """Store these links; they replace older links of the same nodes."""
    new = {(each.home, each.other, each.carrier) for each in found}
    try:
        old = [each for each in load_links() if (each.home, each.other, each.carrier) not in new]
    except SpecError:  # the new measurements replace a damaged file
        old = []
    body = {"schema": SCHEMA, "links": [asdict(each) for each in [*old, *found]]}
    plain = json.loads(json.dumps(body, allow_nan=False))
    path().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path(), json.dumps(seal(plain), indent=1).encode())
