"""Timings of messages between two nodes, for each carrier.

The timed messages go as in a run: at both ends one thread sends and another receives; a message
goes alone after a pause, or many go in a row.
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
from pearl_estimators.sealed_files import CalibrationError

IN_FLIGHT = 16
"""Messages in flight in a row."""
PAUSE_S = 1e-2
"""Pause in seconds before each message that is timed alone, because lanes compute in between:
sleeping threads, connections and cores answer later than in a row of messages. Longer pauses hardly
add time: 0.4 ms without one, 0.5 after 1 ms, 1.1 after 5, 1.2 after 10 and 30 (medians of 512 B by
calls of Ray between two raylets, 2 x AMD EPYC, virtual, 2026-11-23)."""
ROUNDS = 3
EACH_S = 0.15
"""Seconds of timing a size in a round, for each of the two ways."""
QUARTER = 4
"""Index of the lower quartile among 19 cuts."""
CALL_S = 30.0
"""Seconds within which a call must be answered (assumed)."""


@dataclass(frozen=True)
class TimedMessage:
    """The timings of one size of message.

    size_bytes: of the message.
    one_way_s: half of a round trip. pipelined_s: a message in a row. Both are lower quartiles:
        messages are timed, as kernels are, as on an otherwise idle machine.
    spread: 95th percentile / 5th, the larger of the two ways.
    """

    size_bytes: int
    one_way_s: float
    pipelined_s: float
    spread: float


class _Echo:
    """The actor at the other end.

    As in a lane server, one thread receives messages, one lane holds them, and one thread sends
    them back. Messages over a transport whose first byte is COUNTED are only counted, and one byte
    answers every IN_FLIGHT of them.
    """

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
    """A way for messages to the actor and back."""

    def asked(self, size_bytes: int) -> Any:
        """Request the next message back; return the argument of `back`."""

    def send(self, message: Bytes) -> None: ...

    def back(self, asked: Any) -> None:
        """Wait for the message that comes back."""

    def in_a_row(self, message: Bytes) -> list[float]:
        """Return seconds per message with IN_FLIGHT messages in flight, for each such row."""


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

        found = _time_turns(turn)
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
        found = _time_turns(turn)
        self._wire.receive(CALL_S)
        return found


@contextmanager
def _way(ray: Any, actor: Any, carrier: str, home: Node) -> Iterator[_Way]:
    """Within this context, yield the way in which a carrier brings messages to the actor."""
    if carrier == "ray":
        yield _ByRay(ray, actor)
        return
    door = TransportListener(home.address)
    joined = actor.join.remote(door.at)
    with closing(door.open()) as wire:
        ray.get(joined, timeout=CALL_S)
        yield _ByWire(wire)


def _time_turns(turn: Callable[[], None]) -> list[float]:
    """Return seconds per message of turns of IN_FLIGHT messages."""
    found: list[float] = []
    end_s = time.perf_counter() + EACH_S
    while len(found) < 2 or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        turn()
        found.append((time.perf_counter() - begin_s) / IN_FLIGHT)
    return found


def time_messages(
    home: Node, other: Node, carrier: str, sizes: Sequence[int]
) -> list[TimedMessage]:
    """Time messages of these sizes from this node, home, to another and back, in turns.

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
    """Messages there and back, as a run's lane sends them, in separate threads for sending and
    receiving. The two threads run within this context."""

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
        """Return the seconds of a message there and back, after a pause of PAUSE_S, with the return
        message requested in advance."""
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
            except Exception as error:  # the thread that waits for the message raises it
                self._back.put(error)
                return

    def _receive(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                self._by.back(asked[0])
                self._back.put(None)
            except Exception as error:  # the waiting thread raises it
                self._back.put(error)
                return


def _one_by_one(turns: _Turns, array: Any) -> list[float]:
    """Return the seconds of round trips."""
    found: list[float] = []
    end_s = time.perf_counter() + EACH_S
    while len(found) < 3 or time.perf_counter() < end_s:
        found.append(turns.turn(array))
    return found
