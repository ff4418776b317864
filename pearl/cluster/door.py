"""Mutual authentication of the two ends of a transport, over a port that anybody may connect to.

The listener sends each caller a nonce. The caller answers with its own nonce and the HMAC-SHA256 of
both under the secret. Only then does the listener prove that it knows the secret too, by another
HMAC of the same nonces. Every part of this exchange has a fixed size. The keys of the connection
come from the secret and both nonces, so data of one connection are useless in another. An attacker
who forwards all data between the two ends can cut the connection, but cannot forge messages.
"""

from __future__ import annotations

import hmac
import random
import selectors
import socket
import time
from contextlib import suppress
from secrets import token_bytes
from typing import NamedTuple

from pearl.cluster.transport import TAG, Keys, Transport

FORM_S = 60.0
"""Seconds in which both processes must find each other (assumed)."""

NONCE = 32
"""Bytes of a nonce."""

CALLERS = 64
"""Most callers at the same time; one more, and one of them is dropped, drawn at random. Whoever
connects again and again without the secret cannot choose which one."""

PAUSE_S = 0.02
"""Seconds before the next try of a caller."""

REFUSALS = 20
"""Connections closed after the caller's proof that it takes for a refusal (assumed)."""


class Rendezvous(NamedTuple):
    """The facts that both ends of a new transport know.

    address, port: where the listener accepts connections. secret: known to both ends only; never
        sent.
    """

    address: str
    port: int
    secret: bytes


class Caller:
    """A process that has connected and not yet proved that it knows the secret."""

    def __init__(self, found: socket.socket) -> None:
        self.socket, self.nonce, self.said = found, token_bytes(NONCE), b""
        found.setblocking(False)
        found.send(self.nonce)  # never blocks: the buffer of a new connection is empty

    def hear(self, secret: bytes) -> Transport | None:
        """Return the caller's transport, once it has proved that it knows the secret; None before.

        Raises:
            OSError: it is gone, or does not know the secret.
        """
        heard = self.socket.recv(NONCE + TAG - len(self.said))
        if not heard:
            raise ConnectionError("the caller is gone")
        self.said += heard
        if len(self.said) < NONCE + TAG:
            return None
        nonces = self.nonce + self.said[:NONCE]
        if not hmac.compare_digest(self.said[NONCE:], _tag(secret, "caller", nonces)):
            raise ConnectionError("the caller does not know the secret")
        self.socket.send(_tag(secret, "door", nonces))
        caller, door = (_tag(secret, f"from {end}", nonces) for end in ("caller", "door"))
        return Transport(self.socket, Keys(sent=door, coming=caller))


class TransportListener:
    """Waits for the other end of a new transport.

    at: the facts that the other end needs.
    """

    def __init__(self, address: str) -> None:
        """address: at which other processes reach this process."""
        self._listening = socket.create_server((address, 0))
        self.at = Rendezvous(address, self._listening.getsockname()[1], token_bytes(32))

    def open(self) -> Transport:
        """Return this process's end after the other end has connected; then stop listening. Callers
        are served in parallel, each for at most `FORM_S`.

        Raises:
            RuntimeError: no process that knows the secret connects in time.
        """
        until_s, callers = time.monotonic() + FORM_S, dict[int, Caller]()
        with self._listening as door, selectors.DefaultSelector() as ready:
            door.setblocking(False)
            ready.register(door, selectors.EVENT_READ)

            def leave(number: int) -> None:
                ready.unregister(number)
                callers.pop(number).socket.close()

            try:
                while (left_s := until_s - time.monotonic()) > 0:
                    for key, _ in ready.select(left_s):
                        if key.fd == door.fileno():
                            if len(callers) == CALLERS:
                                leave(random.choice([*callers]))
                            with suppress(BlockingIOError, ConnectionError):
                                caller = Caller(door.accept()[0])
                                callers[caller.socket.fileno()] = caller
                                ready.register(caller.socket, selectors.EVENT_READ)
                        elif key.fd in callers:
                            try:
                                wire = callers[key.fd].hear(self.at.secret)
                            except BlockingIOError:  # another caller now has this number
                                continue
                            except OSError:  # drop an unknown caller, and serve the others
                                leave(key.fd)
                                continue
                            if wire is not None:
                                del callers[key.fd]
                                return wire
            except OSError as error:
                raise RuntimeError(f"the listener cannot accept callers: {error}") from None
            finally:
                for caller in callers.values():
                    caller.socket.close()
        raise RuntimeError(f"nobody who knows the secret has connected within {FORM_S:.0f} s")


def join(at: Rendezvous) -> Transport:
    """Connect to a listener; return this process's end of the transport. If the connection is
    closed, try again: the listener may have dropped it among many others.

    Raises:
        RuntimeError: no connection, no answer in time, or the listener does not know the secret.
    """
    until_s, tries, refusals = time.monotonic() + FORM_S, 0, 0
    while True:
        tries += 1
        try:
            return _try_to_join(at, until_s)
        except OSError as error:
            refusals += isinstance(error, _ClosedAfterProofError)
            final = isinstance(error, (ConnectionRefusedError, TimeoutError))  # nobody is there
            final = final or refusals >= REFUSALS
            if final or time.monotonic() + PAUSE_S > until_s:
                often = f" ({tries} tries)" if tries > 1 else ""
                raise RuntimeError(
                    f"the listener at {at.address}:{at.port} is not the other end: {error}{often}"
                ) from None
        time.sleep(PAUSE_S)


class _ClosedAfterProofError(ConnectionError):
    """The listener has closed the connection after the caller's proof."""


def _try_to_join(at: Rendezvous, until_s: float) -> Transport:
    """Connect once, before the time `until_s`.

    Raises:
        OSError: no connection or no answer.
        RuntimeError: the listener does not know the secret.
    """
    left_s = max(until_s - time.monotonic(), PAUSE_S)
    found = socket.create_connection((at.address, at.port), left_s)
    try:
        nonces = _exactly(found, NONCE, until_s) + token_bytes(NONCE)
        found.sendall(nonces[NONCE:] + _tag(at.secret, "caller", nonces))
        try:
            told = _exactly(found, TAG, until_s)
        except ConnectionError as error:
            raise _ClosedAfterProofError(*error.args) from None
        if not hmac.compare_digest(told, _tag(at.secret, "door", nonces)):
            raise RuntimeError(
                f"the listener at {at.address}:{at.port} is not the other end: it does not know "
                "the secret of the two ends"
            )
    except (OSError, RuntimeError):
        found.close()
        raise
    caller, door = (_tag(at.secret, f"from {end}", nonces) for end in ("caller", "door"))
    return Transport(found, Keys(sent=caller, coming=door))


def _exactly(found: socket.socket, size: int, until_s: float) -> bytes:
    """Read `size` bytes before the time `until_s`.

    Raises:
        OSError: they do not arrive in time.
    """
    whole = b""
    while len(whole) < size:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no answer within {FORM_S:.0f} s")
        found.settimeout(left_s)
        heard = found.recv(size - len(whole))
        if not heard:
            raise ConnectionError("the connection is closed")
        whole += heard
    return whole


def _tag(secret: bytes, about: str, nonces: bytes) -> bytes:
    return hmac.digest(secret, about.encode() + b"\0" + nonces, "sha256")
