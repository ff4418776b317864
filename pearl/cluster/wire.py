"""`Wire`: one end of a connection between two processes, over which batches of messages go.

TCP and gloo carry messages over wires; without one the calls of Ray do.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from importlib import import_module
from secrets import token_bytes
from typing import NamedTuple

import numpy as np

from pearl.cluster.pieces import Bytes

WIRES = {
    "tcp": "pearl.cluster.tcp_wire:TcpWire",
    "gloo": "pearl.cluster.gloo_wire:GlooWire",
}
"""What carries messages over a wire → the class of its ends."""

CARRIERS = (*WIRES, "ray")
"""What carries messages between hosts."""

ENCRYPTED = "RAY_USE_TLS"
"""Ray's variable with which all that its nodes tell each other is encrypted."""

FORM_S = 60.0
"""Seconds in which both processes find each other (assumed)."""

BEAT_S = 1.0
"""Seconds after which a process that has nothing to send sends an empty batch."""

SENT_S = 120.0
"""Seconds in which the other process makes room for a batch (assumed)."""


class Meeting(NamedTuple):
    """What both ends of a new wire know.

    address, port: at which the first one listens. secret: that nobody else knows; neither end sends
        it.
    """

    address: str
    port: int
    secret: bytes


class Wire(ABC):
    """One end. `send` and `receive` may be called at the same time.

    Raises:
        RuntimeError: the other end is gone, has not answered in time, or does not know the secret;
            the methods likewise.
    """

    def __init__(self, address: str, at: Meeting, listening: int | None = None) -> None:
        """address: at which this process can be reached; it listens there, if at all. listening: of
        the end that listens, the number of its socket, which is closed in the end."""
        self._beat_s, self._rank = time.monotonic(), int(listening is None)
        self._open(address, at, listening)

    @abstractmethod
    def _open(self, address: str, at: Meeting, listening: int | None) -> None:
        """Find the other end, and have it show that it knows the secret."""

    @abstractmethod
    def send(self, messages: Sequence[Bytes]) -> None:
        """Send messages; with none, a sign of life."""

    @abstractmethod
    def receive(self, within_s: float) -> list[Bytes]:
        """The next batch."""

    @abstractmethod
    def close(self) -> None:
        """Let the connection go. Nothing is sent or received any more."""

    @property
    def quiet(self) -> bool:
        """Whether nothing was sent for `BEAT_S`."""
        return time.monotonic() - self._beat_s > BEAT_S

    def _prove(self, secret: bytes, within_s: float) -> None:
        """Show the other end that this one knows the secret, and have it show the same."""
        mine, its = (_proof(secret, rank) for rank in (self._rank, 1 - self._rank))
        self.send([mine])
        shown = self.receive(within_s)
        if len(shown) != 1 or not compare_digest(shown[0].tobytes(), its.tobytes()):
            raise RuntimeError("who answers does not know the secret of the two ends")


def _proof(secret: bytes, rank: int) -> Bytes:
    """What an end that knows the secret shows to the other, each another thing."""
    return np.frombuffer(sha256(secret + bytes([rank])).digest(), np.uint8)


def carrier(asked: str | None) -> str:
    """The carrier of a run: what is asked for, else Ray where it encrypts what crosses, which no
    wire does, else TCP, the fastest (`benchmarks.carriers`)."""
    encrypted = os.environ.get(ENCRYPTED, "0").lower() in ("1", "true")  # as Ray reads it
    return asked or ("ray" if encrypted else "tcp")


def end(carrier: str, address: str, at: Meeting, listening: int | None = None) -> Wire:
    """An end of a wire as `Wire` has it. Its module is imported on use: torch is large."""
    module, _, name = WIRES[carrier].partition(":")
    made: Wire = getattr(import_module(module), name)(address, at, listening)
    return made


class Door:
    """Where a process waits for the other end of a new wire.

    at: what the other end has to be told.
    """

    def __init__(self, address: str) -> None:
        """address: at which this process can be reached."""
        self._listening = socket.create_server((address, 0))
        self.at = Meeting(address, self._listening.getsockname()[1], token_bytes(32))

    def open(self, carrier: str) -> Wire:
        """This process's end, once the other one is there; the door is closed.

        Raises:
            RuntimeError: the two do not find each other.
        """
        return end(carrier, self.at.address, self.at, self._listening.detach())
