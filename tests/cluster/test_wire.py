"""Messages over wires come as they were sent, and an end that is gone or slow is noticed."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.cluster import transport as module
from pearl.cluster.door import TransportListener, join
from pearl.cluster.transport import AHEAD, CARRIERS, ENCRYPTED, HEAD, MOST, TAG, carrier
from tests.processes import HANG_S
from tests.ray_cluster import listening

HERE = "127.0.0.1"


@contextmanager
def both():
    """Both ends of a wire: the door's and the caller's."""
    door = TransportListener(HERE)
    with ThreadPoolExecutor() as pool:
        far = pool.submit(join, door.at)
        ends = door.open(), far.result()
    try:
        yield ends
    finally:
        for each in ends:
            each.close()


@pytest.fixture
def wires():
    with both() as ends:
        yield ends


def message(size):
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def received(wire, count):
    found = []
    while len(found) < count:
        found += wire.receive(HANG_S)
    return found


def test_messages_of_any_size_and_number_come_as_they_were_sent(wires):
    near, far = wires
    edge = AHEAD - HEAD.size - 2 * TAG - 8  # the size of the one message of a batch of AHEAD bytes
    batches = [[message(n)] for n in (0, 1, edge - 1, edge, edge + 1, 3 * AHEAD, 1 << 21)]
    batches += [[message(n) for n in (5, AHEAD, 0, 77)], [message(9)] * (MOST + 3)]
    sent = [m for batch in batches for m in batch]
    for one, other in ((near, far), (far, near)):
        one.send([])
        thread = threading.Thread(target=lambda o=one: [o.send(b) for b in batches])
        thread.start()
        assert other.receive(HANG_S) == []
        found = received(other, len(sent))
        thread.join()
        assert all(np.array_equal(a, b) for a, b in zip(sent, found, strict=True))


def test_nothing_listens_once_both_ends_are_there():
    before = set(listening([os.getpid()]))
    door = TransportListener(HERE)
    with ThreadPoolExecutor() as pool:
        own = set(listening([os.getpid()])) - before
        assert own == {(os.getpid(), f"{HERE}:{door.at.port}")}
        far = pool.submit(join, door.at)
        ends = door.open(), far.result()
    assert set(listening([os.getpid()])) <= before
    assert all(ends)


def test_an_end_that_is_silent_is_noticed(wires):
    with pytest.raises(RuntimeError, match="has sent nothing for 0 s"):
        wires[0].receive(0.0)


def test_a_batch_that_comes_too_slowly_is_left(wires, monkeypatch):
    """With a clock that goes on by 20 s whenever it is read, and then one more byte comes."""
    near, far = wires
    now_s = iter(range(0, 1000, 20))

    def monotonic():
        far._socket.sendall(b"\0")
        return next(now_s)

    far._socket.sendall(b"\0")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    with pytest.raises(RuntimeError, match="did not arrive completely in time"):
        near.receive(HANG_S)


def test_an_end_that_makes_no_room_is_noticed(monkeypatch):
    monkeypatch.setattr(module, "SENT_S", 1.0)
    with both() as (near, _far), pytest.raises(RuntimeError, match="accepts no data"):
        near.send([np.zeros(1 << 25, np.uint8)])


def test_a_batch_that_is_too_large_is_not_sent(wires, monkeypatch):
    near, far = wires
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    with pytest.raises(RuntimeError, match="a batch of 101 bytes; at most 100 are allowed"):
        near.send([message(93)])
    near.send([message(92)])
    assert far.receive(5.0)[0].size == 92


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ((8, 1), [-1]),
        ((16, 2), [1 << 63 - 1, -(1 << 63 - 1)]),
        ((8, 1), [1]),
        ((0, 1), []),
        ((-1, 0), []),
        ((0, -1), []),
        ((0, MOST + 1), []),
        ((module.MOST_BYTES + 1, 0), []),
    ],
)
def test_sizes_that_cannot_be_are_refused_even_with_the_right_tags(wires, head, body):
    near, far = wires
    head, body = HEAD.pack(*head), np.array(body, np.int64)
    far._socket.sendall(head + far._tag(head) + body.tobytes() + far._tag(body))
    with pytest.raises(RuntimeError, match=r"no batch has|have other sizes"):
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
