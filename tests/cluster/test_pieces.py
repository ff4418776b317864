"""Messages in pieces: nothing is lost, and each piece is one that Ray carries in its call."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from pearl.cluster.chunks import (
    MOST,
    PIECE,
    WHOLE,
    chunk_count,
    join_chunks,
    split_by_sizes,
    split_message,
)
from pearl.cluster.messages import TEXT, pack
from pearl.cluster.ray_lane_client import RayLaneClient, _RayLaneServer

INLINE = 100 * 1024
"""Bytes of an argument or result that Ray carries in its call (max_direct_call_object_size)."""


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 5 * PIECE - 7, WHOLE, WHOLE + 1])
def test_a_message_is_its_pieces(size):
    message = np.arange(size, dtype=np.uint64).view(np.uint8)[:size]
    parts = split_message(message)
    assert np.array_equal(join_chunks(parts), message)
    assert len(parts) == chunk_count(size) <= MOST
    assert max(p.size for p in parts) <= INLINE - 4096 or size > WHOLE
    few = split_message(message, 2)
    assert len(few) <= 2
    assert np.array_equal(join_chunks(few), message)


class _Calls:
    """An actor of Ray whose calls are made at once, in this process. stored: arguments and results
    that Ray would put into its object store."""

    def __init__(self, actor):
        self.actor, self.stored = actor, 0
        kinds = ("GetTimeout", "RayTask", "RayActor", "RaySystem", "ObjectLost")
        self.exceptions = SimpleNamespace(**{f"{kind}Error": TimeoutError for kind in kinds})

    def __getattr__(self, name):
        return _Call(self, getattr(self.actor, name))

    def get(self, reference, timeout):
        return reference

    def wait(self, references, timeout):
        return references, []


class _Call:
    def __init__(self, ray, call, returns=1):
        self.ray, self.call, self.returns = ray, call, returns

    def options(self, concurrency_group, num_returns=1):
        return _Call(self.ray, self.call, num_returns)

    def remote(self, *given):
        found = self.call(*given)
        several = list(found) if self.returns > 1 else [found]
        assert len(several) == self.returns
        flat = [a for each in (*given, *several) for a in (each if type(each) is tuple else [each])]
        self.ray.stored += sum(isinstance(a, np.ndarray) and a.nbytes > INLINE for a in flat)
        return several if self.returns > 1 else found


class _Echo(_RayLaneServer):
    def __init__(self):
        self.held = []

    def push(self, messages):
        self.held += messages

    def pull(self, timeout_s):
        found, self.held = self.held, []
        return found


def test_messages_cross_as_they_were_and_the_store_is_asked_once_at_most():
    post = RayLaneClient.__new__(RayLaneClient)
    ray = post._ray = post._actor = _Calls(_Echo())
    post._pushed, post._pulls, post._pieces, post.where = deque(), deque(), 1, "n"
    r = np.random.default_rng(0)
    for sizes in ([10], [300_000, 1], [300_000, 5], [300_000, 7], [20, 30], [], [20, 30], [4]):
        sent = [pack([TEXT], [r.integers(0, 255, n, np.uint8)]) for n in sizes]
        stored = ray.stored
        post.push(sent)
        post._pulls.clear()  # one call at a time, so that what comes is what was sent
        found = post.pull(0.0)
        post._pulls.clear()
        assert len(found) == len(sent) or not sent
        assert all(np.array_equal(a, b) for a, b in zip(found, sent, strict=bool(sent)))
        assert ray.stored - stored <= (sizes == [300_000, 1])  # until so many pieces are known


def test_what_was_joined_comes_apart():
    parts = [np.full(n, n, np.uint8) for n in (3, 0, 5)]
    again = split_by_sizes(join_chunks(parts), [3, 0, 5])
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
