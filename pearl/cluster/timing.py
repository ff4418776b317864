"""Messages between two nodes, timed by what carries them.

What is timed is what a run does: at both ends one thread sends and another one receives, a message
goes alone after a pause, and many go in a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from statistics import quantiles
from threading import Thread
from typing import Any, Protocol

from pearl.cluster import connection
from pearl.cluster.chunks import Bytes, chunk_count, join_chunks, split_message
from pearl.cluster.connection import Node
from pearl.cluster.door import Rendezvous, TransportListener, join
from pearl.cluster.transport import Transport
from pearl_estimators.host.calibration import CalibrationError

IN_FLIGHT = 16
"""Messages of a row that are under way."""
PAUSE_S = 1e-2
"""Seconds without a message before each that is timed alone, as lanes compute meanwhile: threads,
connections and cores that sleep answer later than those of one message after another. Longer pauses
make it hardly longer: 0.4 ms without one, 0.5 after 1 ms, 1.1 after 5, 1.2 after 10 and 30 (medians
of 512 B by calls of Ray between two raylets, 2 x AMD EPYC, virtual, 2026-11-23)."""
ROUNDS = 3
EACH_S = 0.15
"""Seconds of timing a size in a round, in each of the two ways."""
QUARTER = 4
"""Place of the lower quartile among 19 cuts."""
CALL_S = 30.0
"""Seconds within which a call is answered (assumed)."""


@dataclass(frozen=True)
class TimedMessage:
    """A size of message, timed.

    size_bytes: of the message.
    one_way_s: half of a round trip. pipelined_s: a message of a row. Of each the lower quartile: as
        kernels, messages are timed as on machines that do nothing else.
    spread: the greater of the two ways' 95th percentile / 5th.
    """

    size_bytes: int
    one_way_s: float
    pipelined_s: float
    spread: float


class _Echo:
    """The actor at the other end. As in an outpost one thread takes messages, one lane has them,
    and one gives them back. Of a wire, those whose first byte is COUNTED are counted, and every
    IN_FLIGHT of them answered by one byte."""

    def __init__(self) -> None:
        self._taken: SimpleQueue[Bytes] = SimpleQueue()
        self._given: SimpleQueue[Bytes] = SimpleQueue()
        self._loop(self._lane)

    def _loop(self, step: Callable[[], None]) -> None:
        def loop() -> None:
            while True:
                try:
                    step()
                except RuntimeError:  # the other end is gone
                    return

        Thread(target=loop, daemon=True).start()

    def _lane(self) -> None:
        self._given.put(self._taken.get())

    def take(self, *parts: Bytes) -> None:
        self._taken.put(join_chunks(parts))

    def give(self) -> Any:
        found = split_message(self._given.get(timeout=CALL_S))
        return found if len(found) > 1 else found[0]

    def taken(self, *parts: Bytes) -> int:
        return int(join_chunks(parts).nbytes)

    def join(self, at: Rendezvous) -> None:
        wire, self._counted = join(at), 0

        def receive() -> None:
            for message in wire.receive(CALL_S):
                if not message[0]:
                    self._taken.put(message)
                    continue
                self._counted += 1
                if not self._counted % IN_FLIGHT:
                    self._taken.put(message[:1])

        self._loop(receive)
        self._loop(lambda: wire.send([self._given.get()]))


COUNTED = 1


class _Way(Protocol):
    """How messages go to the actor and back."""

    def asked(self, size_bytes: int) -> Any:
        """Have the next message come back; what `back` takes."""

    def send(self, message: Bytes) -> None: ...

    def back(self, asked: Any) -> None:
        """Wait for what comes back."""

    def in_a_row(self, message: Bytes) -> list[float]:
        """Seconds a message with IN_FLIGHT under way, of each so many in a row."""


class _ByRay:
    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._take = actor.take.options(concurrency_group="into")

    def asked(self, size_bytes: int) -> Any:
        count = chunk_count(size_bytes)
        return self._actor.give.options(concurrency_group="out", num_returns=count).remote()

    def send(self, message: Bytes) -> None:
        self._take.remote(*split_message(message))

    def back(self, asked: Any) -> None:
        found = self._ray.get(asked, timeout=CALL_S)
        join_chunks(found if isinstance(found, list) else [found])

    def in_a_row(self, message: Bytes) -> list[float]:
        taken = self._actor.taken
        under_way = [taken.remote(*split_message(message)) for _ in range(IN_FLIGHT)]

        def turn() -> None:
            for _ in range(IN_FLIGHT):
                self._ray.get(under_way.pop(0), timeout=CALL_S)
                under_way.append(taken.remote(*split_message(message)))

        found = _repeated(turn)
        for each in under_way:
            self._ray.get(each, timeout=CALL_S)
        return found


class _ByWire:
    def __init__(self, wire: Transport) -> None:
        self._wire = wire

    def asked(self, size_bytes: int) -> Any:
        return None

    def send(self, message: Bytes) -> None:
        self._wire.send([message])

    def back(self, asked: Any) -> None:
        self._wire.receive(CALL_S)

    def in_a_row(self, message: Bytes) -> list[float]:
        message = message.copy()
        message[0] = COUNTED

        def send() -> None:
            for _ in range(IN_FLIGHT):
                self._wire.send([message])

        def turn() -> None:
            send()
            self._wire.receive(CALL_S)

        send()
        found = _repeated(turn)
        self._wire.receive(CALL_S)
        return found


@contextmanager
def _way(ray: Any, actor: Any, carrier: str, home: Node) -> Iterator[_Way]:
    """How a carrier brings messages to the actor, for as long as the context is open."""
    if carrier == "ray":
        yield _ByRay(ray, actor)
        return
    door = TransportListener(home.address)
    joined = actor.join.remote(door.at)
    with closing(door.open()) as wire:
        ray.get(joined, timeout=CALL_S)
        yield _ByWire(wire)


def _repeated(turn: Callable[[], None]) -> list[float]:
    """Seconds a message of turns of IN_FLIGHT messages."""
    found: list[float] = []
    end_s = time.perf_counter() + EACH_S
    while len(found) < 2 or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        turn()
        found.append((time.perf_counter() - begin_s) / IN_FLIGHT)
    return found


def timed(home: Node, other: Node, carrier: str, sizes: Sequence[int]) -> list[TimedMessage]:
    """Messages of these sizes from this node, home, to another and back, timed in turns.

    Raises:
        CalibrationError: the node does not answer.
    """
    import numpy as np

    ray = connection.connect()
    kind = ray.remote(concurrency_groups={"into": 1, "out": 1})(_Echo)
    actor = kind.options(num_cpus=0, **connection.on_node(other)).remote()
    arrays = {size: np.arange(size, dtype=np.uint8) for size in sizes}
    ways: dict[int, tuple[list[float], list[float]]] = {size: ([], []) for size in sizes}
    try:
        with _way(ray, actor, carrier, home) as by, _Turns(by) as turns:
            for array in arrays.values():  # the first message of a size is slower
                turns.turn(array)
            for _ in range(ROUNDS):
                for size, array in arrays.items():
                    ways[size][0].extend(s / 2 for s in _one_by_one(turns, array))
                    ways[size][1].extend(by.in_a_row(array))
    except (ray.exceptions.RayError, RuntimeError) as error:
        said = " ".join(str(error).split())[:300]
        raise CalibrationError(
            f"node {other.name} ({other.address}) does not answer by {carrier} while its link is "
            f"timed: {said}"
        ) from None
    finally:
        ray.kill(actor)
    cut = {size: [quantiles(way, n=20) for way in both] for size, both in ways.items()}
    return [
        TimedMessage(size, a[QUARTER], b[QUARTER], max(a[-1] / a[0], b[-1] / b[0]))
        for size, (a, b) in cut.items()
    ]


class _Turns:
    """Messages there and back, as a run's lane sends them: threads of their own send and receive.
    As a context, within which the two threads run."""

    def __init__(self, by: _Way) -> None:
        self._by = by
        self._sent: SimpleQueue[Bytes | None] = SimpleQueue()
        self._asked: SimpleQueue[tuple[Any] | None] = SimpleQueue()
        self._back: SimpleQueue[BaseException | None] = SimpleQueue()
        loops = self._send, self._receive
        self._threads = [Thread(target=loop, daemon=True) for loop in loops]

    def __enter__(self) -> _Turns:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._sent.put(None)
        self._asked.put(None)
        for thread in self._threads:
            thread.join(timeout=CALL_S)

    def turn(self, array: Bytes) -> float:
        """Seconds of a message there and back. What comes back is asked for, and nothing has
        crossed for PAUSE_S."""
        self._asked.put((self._by.asked(array.size),))
        time.sleep(PAUSE_S)
        begin_s = time.perf_counter()
        self._sent.put(array)
        error = self._back.get()
        seconds = time.perf_counter() - begin_s
        if error is not None:
            raise error
        return seconds

    def _send(self) -> None:
        while (array := self._sent.get()) is not None:
            try:
                self._by.send(array)
            except Exception as error:  # raised by the thread that waits for what comes back
                self._back.put(error)
                return

    def _receive(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                self._by.back(asked[0])
                self._back.put(None)
            except Exception as error:  # raised by the thread that waits for it
                self._back.put(error)
                return


def _one_by_one(turns: _Turns, array: Any) -> list[float]:
    """Seconds of round trips."""
    found: list[float] = []
    end_s = time.perf_counter() + EACH_S
    while len(found) < 3 or time.perf_counter() < end_s:
        found.append(turns.turn(array))
    return found
