"""Strangers on the network: whatever they send, before the proof or amid a connection, a run goes
on or ends with a named cause before its deadline. By TCP here; by calls of Ray in
`test_real_cluster`."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.cluster import door as module
from pearl.cluster.door import CALLERS, FORM_S, NONCE, TransportListener, join
from pearl.cluster.transport import HEAD, TAG
from tests.cluster.strangers import BLOBS, SILENT

HERE = "127.0.0.1"
WORDS = np.frombuffer(b"sixteen bytes...", np.uint8)
FRAME = HEAD.size + TAG + 8 + WORDS.size + TAG
"""Bytes of a batch with these words alone."""
FORGED = HEAD.pack(8 + WORDS.size, 1) + bytes(TAG)
FORGED += np.array([WORDS.size]).tobytes() + WORDS.tobytes() + bytes(TAG)
"""Such a batch by who does not know the secret."""


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as made:
        yield made


def talk(near, far):
    """The two ends understand each other."""
    for one, other in ((near, far), (far, near)):
        one.send([WORDS])
        assert [m.tobytes() for m in other.receive(5.0)] == [WORDS.tobytes()]


def meet(near, door):
    """The true caller comes, and the two ends understand each other. near: the door's, to be."""
    far = join(door.at)
    talk(near.result(), far)
    near.result().close()
    far.close()


def refused(end):
    """The next batch is none of the other end."""
    with pytest.raises(RuntimeError, match="their tag is wrong"):
        end.receive(5.0)


def exactly(found, size):
    whole = b""
    while len(whole) < size:
        heard = found.recv(size - len(whole))
        assert heard
        whole += heard
    return whole


def stranger(door):
    return socket.create_connection(door.at[:2], 5.0)


class Relay:
    """Who sits between the two ends and passes on as much as a test has it pass on."""

    def __init__(self, pool):
        door = TransportListener(HERE)
        with socket.create_server((HERE, 0)) as listening:
            self.near = pool.submit(door.open)
            self.far = pool.submit(join, door.at._replace(port=listening.getsockname()[1]))
            self.caller, _ = listening.accept()
        self.opened, self.door = door, stranger(door)

    def prove(self):
        """Pass on both proofs; both ends."""
        self.caller.sendall(exactly(self.door, NONCE))
        self.door.sendall(exactly(self.caller, NONCE + TAG))
        self.caller.sendall(exactly(self.door, TAG))
        return self.near.result(), self.far.result()

    def close(self):
        self.caller.close()
        self.door.close()


@pytest.fixture
def relay(pool):
    with closing(Relay(pool)) as made:
        yield made


class TestByTcp:
    @pytest.mark.parametrize("words", [*BLOBS.values(), b"\0"], ids=[*BLOBS, "one byte"])
    def test_bytes_that_are_no_proof_do_not_keep_the_other_end_out(self, pool, words):
        """Size −1, an oversized count, sizes that wrap around, HTTP, an empty batch, one byte."""
        door = TransportListener(HERE)
        with stranger(door) as other:
            near = pool.submit(door.open)
            other.sendall(words)
            meet(near, door)

    @pytest.mark.parametrize("blob", BLOBS)
    def test_bytes_that_are_no_proof_end_a_caller_with_a_named_cause(self, pool, blob):
        door = TransportListener(HERE)
        door._listening.close()
        with socket.create_server((HERE, 0)) as listening:
            far = pool.submit(join, door.at._replace(port=listening.getsockname()[1]))
            found, _ = listening.accept()
            with found:
                with suppress(OSError):  # the caller may have left
                    found.sendall(BLOBS[blob] * 8)
                    found.shutdown(socket.SHUT_WR)
                with pytest.raises(RuntimeError, match="is not the other end"):
                    far.result()

    @pytest.mark.parametrize("words", [*BLOBS.values(), FORGED], ids=[*BLOBS, "a forged batch"])
    @pytest.mark.parametrize("towards", ["door", "caller"])
    def test_bytes_that_are_no_batch_end_a_connection_with_a_named_cause(
        self, relay, words, towards
    ):
        """Nor can a relay that has passed on the proofs say anything itself."""
        near, far = relay.prove()
        end, way = {"door": (near, relay.door), "caller": (far, relay.caller)}[towards]
        way.sendall(words + bytes(FRAME))
        refused(end)

    def test_a_byte_now_and_then_does_not_keep_a_door_open(self, monkeypatch):
        """With a clock that goes on by 4 s whenever it is read, and then a byte comes."""
        door, seen = TransportListener(HERE), []

        def monotonic():
            with suppress(OSError):
                slow.sendall(b"\0")
            seen.append(4.0 * len(seen))
            return seen[-1]

        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
        with (
            stranger(door) as slow,
            pytest.raises(RuntimeError, match="nobody who knows the secret has connected within"),
        ):
            door.open()
        assert seen[-1] == FORM_S

    def test_a_byte_now_and_then_does_not_keep_a_caller(self, pool, monkeypatch):
        """With a clock that goes on by 4 s whenever it is read, and then a byte comes."""
        seen = []

        def monotonic():
            for each in found:
                each.sendall(b"\0")
            seen.append(4.0 * len(seen))
            return seen[-1]

        found = []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
        with socket.create_server((HERE, 0)) as listening:
            there = pool.submit(listening.accept)
            at = module.Rendezvous(HERE, listening.getsockname()[1], bytes(32))
            connect = socket.create_connection

            def connected(*given):
                made = connect(*given)
                found.append(there.result()[0])
                return made

            monkeypatch.setattr(module.socket, "create_connection", connected)
            with pytest.raises(RuntimeError, match="no answer within 60 s"):
                join(at)
        assert seen[-1] == FORM_S
        found[0].close()

    def test_silent_connections_do_not_keep_the_other_end_out(self, pool):
        assert SILENT > CALLERS
        door = TransportListener(HERE)
        near = pool.submit(door.open)
        silent = [stranger(door) for _ in range(SILENT)]
        meet(near, door)
        for each in silent:
            each.close()

    def test_a_caller_that_is_dropped_tries_again(self, pool):
        """As often as the listener drops it, among many others, before it has shown its proof."""
        door = TransportListener(HERE)
        with socket.create_server((HERE, 0)) as listening:
            far = pool.submit(join, door.at._replace(port=listening.getsockname()[1]))
            for _ in range(5):
                listening.accept()[0].close()
            caller, _ = listening.accept()
            near, other = pool.submit(door.open), stranger(door)
            with caller, other:
                caller.sendall(exactly(other, NONCE))
                other.sendall(exactly(caller, NONCE + TAG))
                caller.sendall(exactly(other, TAG))
                far.result().close()
                near.result().close()

    def test_of_too_many_callers_any_may_be_dropped(self, pool, monkeypatch):
        """Otherwise many connections could choose that the true one is dropped."""
        dropped, door = [], TransportListener(HERE)

        def choice(callers):
            dropped.append([*callers])
            return callers[-1]

        monkeypatch.setattr(module.random, "choice", choice)
        near = pool.submit(door.open)
        silent = [stranger(door) for _ in range(CALLERS + 3)]
        meet(near, door)
        assert {len(each) for each in dropped} == {CALLERS}
        assert len(dropped) >= 3
        for each in silent:
            each.close()

    def test_who_does_not_know_the_secret_is_refused(self, pool):
        door = TransportListener(HERE)
        near = pool.submit(door.open)
        with pytest.raises(RuntimeError, match="is not the other end: the connection is closed"):
            join(door.at._replace(secret=bytes(32)))
        meet(near, door)

    def test_a_door_that_does_not_know_the_secret_is_refused(self, pool):
        door = TransportListener(HERE)
        with socket.create_server((HERE, 0)) as listening:
            far = pool.submit(join, door.at._replace(port=listening.getsockname()[1]))
            found, _ = listening.accept()
            with found:
                found.sendall(bytes(NONCE))
                exactly(found, NONCE + TAG)
                found.sendall(bytes(TAG))
                with pytest.raises(RuntimeError, match="does not know the secret"):
                    far.result()
        door._listening.close()

    def test_a_door_says_nothing_but_a_nonce_before_a_caller_has_shown_that_it_knows(self, pool):
        door, nonces = TransportListener(HERE), set()
        near = pool.submit(door.open)
        for _ in range(2):
            with stranger(door) as other:
                nonces.add(exactly(other, NONCE))
                other.sendall(bytes(NONCE + TAG))
                assert other.recv(1) == b""
        assert len(nonces) == 2
        meet(near, door)

    def test_what_an_end_has_sent_is_no_proof_when_it_comes_back(self, relay):
        """Reflection: the caller gets its own proof, and the door's nonce is the caller's."""
        nonce = exactly(relay.door, NONCE)
        relay.caller.sendall(nonce)
        proof = exactly(relay.caller, NONCE + TAG)
        relay.caller.sendall(proof[NONCE:])
        with pytest.raises(RuntimeError, match="does not know the secret"):
            relay.far.result()
        relay.door.sendall(nonce + proof[NONCE:])
        assert relay.door.recv(1) == b""
        meet(relay.near, relay.opened)

    def test_a_proof_of_another_connection_is_none(self, pool):
        """The proof is not that of the nonces of this connection."""
        door = TransportListener(HERE)
        near = pool.submit(door.open)
        with stranger(door) as first, stranger(door) as second:
            nonces = exactly(first, NONCE) + bytes(NONCE)
            exactly(second, NONCE)
            proof = module._tag(door.at.secret, "caller", nonces)
            second.sendall(bytes(NONCE) + proof)
            assert second.recv(1) == b""
            first.sendall(bytes(NONCE) + proof)
            assert exactly(first, TAG) == module._tag(door.at.secret, "door", nonces)
        near.result().close()

    def test_a_batch_that_comes_twice_is_refused(self, relay):
        near, far = relay.prove()
        far.send([WORDS])
        relay.door.sendall(2 * exactly(relay.caller, FRAME))
        assert near.receive(5.0)[0].tobytes() == WORDS.tobytes()
        refused(near)

    def test_a_batch_that_is_left_out_is_noticed(self, relay):
        near, far = relay.prove()
        for _ in range(2):
            far.send([WORDS])
        relay.door.sendall(exactly(relay.caller, 2 * FRAME)[FRAME:])
        refused(near)

    def test_a_batch_that_comes_back_to_who_sent_it_is_refused(self, relay):
        _near, far = relay.prove()
        far.send([WORDS])
        relay.caller.sendall(exactly(relay.caller, FRAME))
        refused(far)

    @pytest.mark.parametrize("at", [0, HEAD.size, HEAD.size + TAG, FRAME - TAG - 1, FRAME - 1])
    def test_a_batch_with_an_altered_bit_is_refused(self, relay, at):
        near, far = relay.prove()
        far.send([WORDS])
        frame = bytearray(exactly(relay.caller, FRAME))
        frame[at] ^= 1
        relay.door.sendall(frame)
        refused(near)
