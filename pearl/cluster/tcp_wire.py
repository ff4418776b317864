"""A wire over a TCP connection: the batch's number of messages, their sizes, then the messages."""

from __future__ import annotations

import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from pearl.cluster.pieces import Bytes
from pearl.cluster.wire import FORM_S, SENT_S, Meeting, Wire

MOST = 512
"""Messages of a batch, all of which one call of the system takes."""

PROOF_S = 5.0
"""Seconds within which who connects shows that it knows the secret, or is left (assumed)."""

PROOF_BYTES = 64
"""What a batch holds at most until the other end has shown that it knows the secret."""

MID_S = 30.0
"""Seconds without a byte amid a batch after which the other end counts as gone (assumed)."""


class TcpWire(Wire):
    def _open(self, address: str, at: Meeting, listening: int | None) -> None:
        self._lock = threading.Lock()
        if listening is None:
            try:
                self._use(socket.create_connection((at.address, at.port), FORM_S))
            except OSError as error:
                raise RuntimeError(f"no connection to {at.address}:{at.port}: {error}") from None
            self._prove(at.secret, FORM_S)
            self._trust()
            return
        until_s = time.monotonic() + FORM_S
        with socket.socket(fileno=listening) as door:
            while True:
                door.settimeout(max(0.0, until_s - time.monotonic()))
                try:
                    found, _ = door.accept()
                except OSError as error:
                    raise RuntimeError(f"nobody who knows the secret connects: {error}") from None
                self._use(found)
                with suppress(RuntimeError):  # a stranger is left, and the next one heard
                    self._prove(at.secret, PROOF_S)
                    self._trust()
                    return
                found.close()

    def _use(self, found: socket.socket) -> None:
        self._socket, self._most_bytes = found, PROOF_BYTES
        self._ready = select.poll()
        self._ready.register(found, select.POLLIN)
        found.settimeout(None)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._limit(socket.SO_RCVTIMEO, PROOF_S)
        self._limit(socket.SO_SNDTIMEO, SENT_S)

    def _trust(self) -> None:
        self._most_bytes = sys.maxsize
        self._limit(socket.SO_RCVTIMEO, MID_S)

    def _limit(self, way: int, limit_s: float) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(limit_s), 0))

    def close(self) -> None:
        self._socket.close()

    def send(self, messages: Sequence[Bytes]) -> None:
        for first in range(0, max(1, len(messages)), MOST):
            self._send(messages[first : first + MOST])

    def _send(self, messages: Sequence[Bytes]) -> None:
        head = np.array([len(messages), *(m.size for m in messages)], np.int64)
        parts: list[Any] = [head, *messages]
        left = [memoryview(part).cast("B") for part in parts if part.size]
        with self._lock:
            while left:
                try:
                    sent = self._socket.sendmsg(left)
                except OSError as error:
                    raise RuntimeError(f"the other end takes nothing: {error}") from None
                while left and sent >= left[0].nbytes:
                    sent -= left.pop(0).nbytes
                if sent:
                    left[0] = left[0][sent:]
            self._beat_s = time.monotonic()

    def receive(self, within_s: float) -> list[Bytes]:
        if not self._ready.poll(1e3 * within_s):
            raise RuntimeError(f"the other end has sent nothing for {within_s:.0f} s")
        (count,) = self._read(8).view(np.int64)
        if not 0 <= count <= MOST:
            raise RuntimeError("what comes is no batch of messages")
        sizes = self._read(8 * int(count)).view(np.int64)
        if sizes.sum() > self._most_bytes:
            raise RuntimeError("a batch comes before the proof that the secret is known")
        whole, ends = self._read(int(sizes.sum())), np.cumsum(sizes)
        return [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def _read(self, size: int) -> Bytes:
        found: Any = np.empty(size, np.uint8)
        view, at = memoryview(found), 0
        while at < size:
            try:
                got = self._socket.recv_into(view[at:])
            except OSError as error:
                raise RuntimeError(f"the other end has stopped amid a batch: {error}") from None
            if not got:
                raise RuntimeError("the other end has closed the connection")
            at += got
        whole: Bytes = found
        return whole
