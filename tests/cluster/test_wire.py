"""Messages over wires come as they were sent, to who knows the secret, and an end that is gone is
noticed."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pearl.cluster import tcp_wire
from pearl.cluster import wire as module
from pearl.cluster.gloo_wire import FIRST, MOST
from pearl.cluster.wire import CARRIERS, ENCRYPTED, Door, carrier, end
from tests.processes import HANG_S
from tests.ray_cluster import listening

HERE = "127.0.0.1"


def both(carrier, known=None):
    """Both ends of a wire, of which the far one knows another secret, if any."""
    door = Door(HERE)
    with ThreadPoolExecutor() as pool:
        far = pool.submit(end, carrier, HERE, door.at._replace(secret=known or door.at.secret))
        return door.open(carrier), far.result()


@pytest.fixture(params=[c for c in CARRIERS if c != "ray"])
def wires(request):
    """Both ends, here."""

    def made(known=None):
        return both(request.param, known)

    made.carrier = request.param
    return made


def message(size):
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def received(wire, count):
    found = []
    while len(found) < count:
        found += wire.receive(HANG_S)
    return found


def test_messages_of_any_size_and_number_come_as_they_were_sent(wires):
    near, far = wires()
    edge = FIRST - 16
    batches = [[message(n)] for n in (0, 1, edge - 1, edge, edge + 1, 3 * FIRST, 1 << 21)]
    batches += [[message(n) for n in (5, FIRST, 0, 77)], [message(9)] * (MOST + 3)]
    sent = [m for batch in batches for m in batch]
    for one, other in ((near, far), (far, near)):
        one.send([])
        thread = threading.Thread(target=lambda o=one: [o.send(b) for b in batches])
        thread.start()
        assert other.receive(HANG_S) == []
        found = received(other, len(sent))
        thread.join()
        assert all(np.array_equal(a, b) for a, b in zip(sent, found, strict=True))


def test_it_listens_at_the_given_address_alone(wires):
    before = set(listening([os.getpid()]))
    ends = wires()
    found = {at for _, at in set(listening([os.getpid()])) - before}
    assert bool(found) == (wires.carrier == "gloo")  # a TCP wire listens until both ends are there
    assert all(at.startswith(f"{HERE}:") for at in found), found
    assert all(ends)


def test_who_does_not_know_the_secret_is_refused(wires, monkeypatch):
    monkeypatch.setattr(tcp_wire, "FORM_S", 1.0)
    words = "does not know the secret|nobody who knows the secret"
    with pytest.raises(RuntimeError, match=words):
        wires(b"another")


def test_an_end_that_is_gone_or_silent_is_noticed(wires):
    near, far = wires()
    with pytest.raises(RuntimeError):
        near.receive(0.2)
    near, far = wires()
    far.close()
    del far
    with pytest.raises(RuntimeError):
        near.receive(HANG_S)


def test_a_wire_is_quiet_where_nothing_was_sent_for_a_while(wires, monkeypatch):
    near, _far = wires()
    assert not near.quiet
    monkeypatch.setattr(module, "BEAT_S", 0.0)
    assert near.quiet


def test_a_stranger_is_left_and_the_one_who_knows_the_secret_heard():
    """Of a TCP wire, whose first caller may be anybody."""
    door = Door(HERE)
    stranger = socket.create_connection(door.at[:2])
    stranger.sendall(np.array([1, 1 << 60], np.int64).tobytes())  # no proof, and much to take
    socket.create_connection(door.at[:2]).close()
    with ThreadPoolExecutor() as pool:
        far = pool.submit(end, "tcp", HERE, door.at)
        near = door.open("tcp")
        near.send([message(7)])
        assert np.array_equal(received(far.result(), 1)[0], message(7))
    stranger.close()


def test_what_is_no_batch_ends_a_wire():
    near, far = both("tcp")
    far._socket.sendall(np.array([1 << 40], np.int64).tobytes())
    with pytest.raises(RuntimeError, match="no batch"):
        near.receive(HANG_S)


@pytest.mark.parametrize(
    ("value", "chosen"), [(None, "tcp"), ("0", "tcp"), ("1", "ray"), ("True", "ray")]
)
def test_messages_go_by_ray_where_it_encrypts_them(value, chosen, monkeypatch):
    monkeypatch.delenv(ENCRYPTED, raising=False)
    if value is not None:
        monkeypatch.setenv(ENCRYPTED, value)
    assert carrier(None) == chosen
    assert [carrier(asked) for asked in CARRIERS] == list(CARRIERS)
