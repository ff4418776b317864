"""`Transport`: one end of a TCP connection between two processes, for batches of messages.

A batch is a head of fixed size, a tag, a body (the sizes of the messages, then the messages) and a
tag. A tag is the HMAC-SHA256 of everything that this end has sent so far over this connection,
without tags, under a key of this connection and direction. So no number is trusted before a tag has
proved its writer, and a batch that was altered, repeated, omitted or reflected has a wrong tag.
Messages are not encrypted.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pearl.cluster.chunks import Bytes

CARRIERS = ("tcp", "ray")
"""Carriers of messages between hosts: TCP connections, or calls of Ray."""

ENCRYPTED = "RAY_USE_TLS"
"""Ray's variable that turns on encryption between its nodes."""

HEAD = struct.Struct("<qq")
"""Bytes of the body, and number of messages."""

TAG = 32
"""Bytes of a tag."""

MOST = 512
"""Most messages of a batch; one system call takes all of them."""

AHEAD = 1 << 16
"""Most bytes that one system call reads, of several batches in a row."""

MOST_BYTES = 1 << 34
"""Most bytes of a batch (assumed)."""

HEARTBEAT_S = 1.0
"""Seconds without anything to send after which a process sends an empty batch."""

SENT_S = 120.0
"""Seconds in which the other process must make room for a batch (assumed)."""

MID_S = 30.0
"""Seconds within which a batch must arrive after its beginning (assumed)."""

SLOWEST = 1e5
"""Bytes per second of the slowest network: large batches get additional time (assumed)."""


class Keys(NamedTuple):
    """Keys of a connection: for data that this end sends, and for data that it receives."""

    sent: bytes
    coming: bytes


class Transport:
    """One end. `send` and `receive` may run at the same time; several threads may send, one may
    receive.

    Raises:
        RuntimeError: the other end is gone or does not answer in time, or the data are not what the
            other end sent. The transport is then unusable.
    """

    def __init__(self, found: socket.socket, keys: Keys) -> None:
        """found: connected to an end that has proved that it knows the secret (`door`)."""
        self._socket, self._lock = found, threading.Lock()
        self._sent, self._come = (hmac.new(key, digestmod="sha256") for key in keys)
        self._ready = select.poll()
        self._ready.register(found, select.POLLIN)
        found.settimeout(None)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for way, limit_s in ((socket.SO_RCVTIMEO, MID_S), (socket.SO_SNDTIMEO, SENT_S)):
            found.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(limit_s), 0))
        self._ahead = memoryview(bytearray(AHEAD))
        self._held = self._ahead[:0]
        self._beat_s = time.monotonic()

    @property
    def quiet(self) -> bool:
        """Return whether nothing was sent for `HEARTBEAT_S`."""
        return time.monotonic() - self._beat_s > HEARTBEAT_S

    def close(self) -> None:
        """Close the connection. Nothing is sent or received any more."""
        self._socket.close()

    def send(self, messages: Sequence[Bytes]) -> None:
        """Send messages; none is a heartbeat."""
        for first in range(0, max(1, len(messages)), MOST):
            self._send(messages[first : first + MOST])

    def _send(self, messages: Sequence[Bytes]) -> None:
        sizes = np.array([m.size for m in messages], np.int64)
        body_bytes = sizes.nbytes + int(sizes.sum())
        if body_bytes > MOST_BYTES:
            raise RuntimeError(f"a batch of {body_bytes} bytes; at most {MOST_BYTES} are allowed")
        head = HEAD.pack(body_bytes, len(messages))
        arrays: list[Any] = [sizes, *messages]
        body = [array for array in arrays if array.size]
        with self._lock:
            parts: list[Any] = [head, self._tag(head), *body, self._tag(*body)]
            left = [memoryview(part).cast("B") for part in parts]
            until_s = time.monotonic() + SENT_S + body_bytes / SLOWEST
            while left:
                try:
                    sent = self._socket.sendmsg(left)
                except OSError as error:
                    raise RuntimeError(f"the other end accepts no data: {error}") from None
                while left and sent >= left[0].nbytes:
                    sent -= left.pop(0).nbytes
                if sent:
                    left[0] = left[0][sent:]
                if left and time.monotonic() > until_s:
                    raise RuntimeError("the other end receives a batch too slowly")
            self._beat_s = time.monotonic()

    def _tag(self, *parts: Any) -> bytes:
        """The tag over everything sent so far, with these parts."""
        for part in parts:
            self._sent.update(part)
        return self._sent.digest()

    def receive(self, within_s: float) -> list[Bytes]:
        """Receive the next batch of messages.

        within_s: seconds within which the batch must begin to arrive.

        Raises:
            RuntimeError: nothing arrived in time, or the sizes of the batch contradict each other.
        """
        if not self._held and not self._ready.poll(1e3 * within_s):
            raise RuntimeError(f"the other end has sent nothing for {within_s:.0f} s")
        until_s = time.monotonic() + MID_S
        size, count = HEAD.unpack(self._read(HEAD.size, until_s).tobytes())
        if not (0 <= count <= MOST and 8 * count <= size <= MOST_BYTES):
            raise RuntimeError(f"no batch has {count} messages in {size} bytes")
        body = self._read(size, until_s + size / SLOWEST)
        sizes = body[: 8 * count].view(np.int64).tolist()
        if min(sizes, default=0) < 0 or sum(sizes) != size - 8 * count:
            raise RuntimeError(f"the messages of a batch of {size} bytes have other sizes")
        ends = 8 * count + np.cumsum(sizes, dtype=np.int64)
        return [body[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def _read(self, size: int, until_s: float) -> Bytes:
        """Read `size` bytes with a valid tag."""
        whole: Any = np.empty(size + TAG, np.uint8)
        view, at = memoryview(whole), min(len(self._held), len(whole))
        view[:at], self._held = self._held[:at], self._held[at:]
        while at < len(view):
            if at and time.monotonic() > until_s:
                raise RuntimeError("a batch did not arrive completely in time")
            try:
                ahead = len(view) - at < AHEAD
                got = self._socket.recv_into(self._ahead if ahead else view[at:])
            except OSError as error:
                raise RuntimeError(f"the other end has stopped during a batch: {error}") from None
            if not got:
                raise RuntimeError("the other end has closed the connection")
            if ahead:
                end = min(at + got, len(view))
                view[at:end], self._held = self._ahead[: end - at], self._ahead[end - at : got]
                at = end
            else:
                at += got
        self._come.update(view[:size])
        if not hmac.compare_digest(self._come.digest(), view[size:]):
            raise RuntimeError("the data do not come from the other end: their tag is wrong")
        found: Bytes = whole[:size]
        return found


def carrier(asked: str | None) -> str:
    """Return the carrier of a run: the requested one, else Ray if it encrypts its traffic, which a
    transport does not, else TCP, the fastest (`benchmarks.distribution links`)."""
    encrypted = os.environ.get(ENCRYPTED, "0").lower() in ("1", "true")  # the values that Ray reads
    return asked or ("ray" if encrypted else "tcp")
