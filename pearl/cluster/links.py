"""Links between hosts: measured on the very cluster, fitted, and kept beside calibrations.

What is timed is what a run does: calls of an actor on the other node with an array of bytes in
pieces, one after the other and pipelined. The model is `Link`'s: a message arrives latency_s +
bytes / bytes_per_s after it was sent (half of a round trip), and takes the link per_message_s +
bytes / bytes_per_s (of a pipeline's time, each message's part).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from pearl.cluster import connection
from pearl.cluster.connection import Node
from pearl.cluster.pieces import Bytes, cut, joined, pieces
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl_devices import Link
from pearl_devices.cache_folder import cache_folder
from pearl_estimators.host.calibration import CalibrationError, sealed, unsealed

SCHEMA = 1
SIZES = (1, 512, 4096, 16_384, 65_536, 131_072, 262_144, 1_048_576, 4_194_304)
"""Bytes of the messages that are timed."""
IN_FLIGHT = 16
"""Calls that a pipeline has begun and not ended."""
ROUNDS = 5
EACH_S = 0.15
"""Seconds of timing a size in a round, in each of the two ways."""
QUARTER = 4
"""Place of the lower quartile among 19 cuts."""
CALL_S = 30.0
"""Seconds within which a call is answered (assumed)."""

ASSUMED = {"latency_s": 4e-4, "per_message_s": 5.5e-4, "bytes_per_s": 4e8}
"""Where nothing was measured: calls between two raylets of one machine with two busy cores, 800 us
there and back, 550 us pipelined, 2.8 ms one way for 1 MiB (Ray 2.60, 2 x AMD EPYC, virtual,
2026)."""
ASSUMED_SOURCE = (
    "assumed: Ray between two raylets of one machine; `pearl calibrate --on ray` times it"
)


@dataclass(frozen=True)
class TimedMessage:
    """A size of message, timed.

    one_way_s: half of a round trip. pipelined_s: a message of a pipeline. Of each the lower
        quartile: as kernels, messages are timed as on machines that do nothing else.
    spread: the greater of the two ways' 95th percentile / 5th.
    """

    size_bytes: int
    one_way_s: float
    pipelined_s: float
    spread: float


@dataclass(frozen=True)
class MeasuredLink:
    """A link between two nodes, as measured.

    home, other: names of the nodes; addresses: theirs. created: UTC, ISO 8601.
    error: median of |predicted / measured − 1| over the timings that it was fitted to.
    """

    home: str
    other: str
    addresses: tuple[str, str]
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
        """Seconds of a message one way, and of one in a pipeline."""
        moving = size_bytes / self.bytes_per_s
        return self.latency_s + moving, self.per_message_s + moving

    def errors(self, timings: Sequence[TimedMessage]) -> list[float]:
        """|predicted / measured − 1| of each timing, both ways."""
        found = []
        for each in timings:
            one_way, pipelined = self.predicted(each.size_bytes)
            found += [abs(one_way / each.one_way_s - 1), abs(pipelined / each.pipelined_s - 1)]
        return found

    @property
    def link(self) -> Link:
        """As a platform has it; its ends are the hosts."""
        source = f"measured {self.created[:10]} between {self.home} and {self.other}"
        numbers = ("latency_s", "per_message_s", "bytes_per_s")
        return Link(
            self.home,
            self.other,
            latency_s=self.latency_s,
            bytes_per_s=self.bytes_per_s,
            per_message_s=self.per_message_s,
            sources=dict.fromkeys(numbers, source),
        )


def link(home: Node, other: Node) -> Link:
    """The measured link of two nodes, else one of assumed figures, whose sources say so.

    Raises:
        SpecError: the file of measured links is damaged.
    """
    for found in stored():
        ends = (found.home, found.other), found.addresses
        if ends == ((home.name, other.name), (home.address, other.address)):
            return found.link
    return Link(
        home.name,
        other.name,
        latency_s=ASSUMED["latency_s"],
        bytes_per_s=ASSUMED["bytes_per_s"],
        per_message_s=ASSUMED["per_message_s"],
        sources=dict.fromkeys(ASSUMED, ASSUMED_SOURCE),
    )


def measure(sizes: Sequence[int] = SIZES) -> list[MeasuredLink]:
    """Measure the links from this node to all others that have cores, and keep them.

    Raises:
        SpecError: there is no cluster.
        CalibrationError: a node does not answer amid it.
    """
    ray = connection.connected()
    here = ray.get_runtime_context().get_node_id()
    nodes = connection.nodes()
    home = next(n for n in nodes if n.id == here)
    others = [n for n in nodes if n.id != here and n.cores]
    found = [modelled(home, n, timed(n, sizes)) for n in others]
    _keep(found)
    return found


def modelled(home: Node, other: Node, timings: Sequence[TimedMessage]) -> MeasuredLink:
    """The link of this node, home, and another one of the cluster that is fitted to timings of
    now."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    figures = fitted(timings)
    rough = MeasuredLink(
        home.name,
        other.name,
        (home.address, other.address),
        created,
        *figures,
        0.0,
        tuple(timings),
    )
    return MeasuredLink(**{**vars(rough), "error": median(rough.errors(timings))})


def fitted(timings: Sequence[TimedMessage]) -> tuple[float, float, float]:
    """latency_s, per_message_s and bytes_per_s, none below 0, with the least sum of relative
    errors: a size that takes another way, as Ray's object store, moves them little."""
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


class _Echo:
    """The actor at the other end."""

    def back(self, *parts: Bytes) -> Any:
        found = cut(joined(parts))
        return found if len(found) > 1 else found[0]

    def taken(self, *parts: Bytes) -> int:
        return int(joined(parts).nbytes)


def timed(other: Node, sizes: Sequence[int]) -> list[TimedMessage]:
    """Messages of these sizes to another node and back, timed in turns.

    Raises:
        CalibrationError: the node does not answer.
    """
    import numpy as np

    ray = connection.connected()
    actor = ray.remote(_Echo).options(num_cpus=0, **connection.on_node(other)).remote()
    arrays = {size: np.arange(size, dtype=np.uint8) for size in sizes}
    ways: dict[int, tuple[list[float], list[float]]] = {size: ([], []) for size in sizes}
    try:
        for array in arrays.values():  # the first call of a size is slower
            _there_and_back(ray, actor, array)
        for _ in range(ROUNDS):
            for size, array in arrays.items():
                ways[size][0].extend(s / 2 for s in _one_by_one(ray, actor, array))
                ways[size][1].extend(_pipelined(ray, actor, array))
    except ray.exceptions.RayError as error:
        said = " ".join(str(error).split())[:300]
        raise CalibrationError(
            f"node {other.name} ({other.address}) does not answer while its link is timed: {said}"
        ) from None
    finally:
        ray.kill(actor)
    cut = {size: [quantiles(way, n=20) for way in both] for size, both in ways.items()}
    return [
        TimedMessage(size, a[QUARTER], b[QUARTER], max(a[-1] / a[0], b[-1] / b[0]))
        for size, (a, b) in cut.items()
    ]


def _there_and_back(ray: Any, actor: Any, array: Bytes) -> None:
    back = actor.back.options(num_returns=pieces(array.size))
    found = ray.get(back.remote(*cut(array)), timeout=CALL_S)
    joined(found if isinstance(found, list) else [found])


def _one_by_one(ray: Any, actor: Any, array: Any) -> list[float]:
    """Seconds of round trips."""
    found: list[float] = []
    end_s = time.perf_counter() + EACH_S
    while len(found) < 3 or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        _there_and_back(ray, actor, array)
        found.append(time.perf_counter() - begin_s)
    return found


def _pipelined(ray: Any, actor: Any, array: Any) -> list[float]:
    """Seconds a message with IN_FLIGHT under way, of each so many in a row."""
    under_way = [actor.taken.remote(*cut(array)) for _ in range(IN_FLIGHT)]
    found: list[float] = []
    end_s = time.perf_counter() + EACH_S
    while len(found) < 2 or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        for _ in range(IN_FLIGHT):
            ray.get(under_way.pop(0), timeout=CALL_S)
            under_way.append(actor.taken.remote(*cut(array)))
        found.append((time.perf_counter() - begin_s) / IN_FLIGHT)
    for each in under_way:
        ray.get(each, timeout=CALL_S)
    return found


def path() -> Path:
    """Path of the measured links."""
    return cache_folder() / "links.json"


def stored() -> list[MeasuredLink]:
    """The links that were measured, none where there is no file.

    Raises:
        SpecError: the file is damaged.
    """
    file = path()
    try:
        body = unsealed(json.loads(file.read_text(encoding="utf-8")), SCHEMA, "links")
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
    """Write these beside the others that are kept, in place of older ones of the same nodes."""
    new = {(each.home, each.other) for each in found}
    try:
        old = [each for each in stored() if (each.home, each.other) not in new]
    except SpecError:  # what is measured now takes its place
        old = []
    body = {"schema": SCHEMA, "links": [asdict(each) for each in [*old, *found]]}
    plain = json.loads(json.dumps(body, allow_nan=False))
    path().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path(), json.dumps(sealed(plain), indent=1).encode())
