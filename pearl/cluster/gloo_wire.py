"""A wire of gloo, through torch.distributed.

A batch is sent in one piece of `FIRST` bytes, for which the other side always has room ready, so
that it goes out at once, and a second one with all that is left.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pearl.cluster.pieces import Bytes
from pearl.cluster.wire import FORM_S, SENT_S, Meeting, Wire

FIRST = 16_384
"""Bytes of a first piece (assumed: above it the second one's wait for room is a small part)."""

MOST = FIRST // 8 - 1
"""Messages of a batch, whose number and sizes are in the first piece."""

WINDOW = 16
"""Batches under way at once; the next one waits until the first of them is gone (assumed)."""

ROOMS = 2
"""First pieces for which there is room ahead."""


@contextmanager
def _plainly() -> Iterator[None]:
    """gloo says where in its code, then what, then advice; of this only the second."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        raise RuntimeError(text.partition("] ")[2].partition(". ")[0] or text) from None


class GlooWire(Wire):
    def _open(self, address: str, at: Meeting, listening: int | None) -> None:
        within, rank = timedelta(seconds=FORM_S), self._rank
        of: Any = dist  # whose stubs have not all of it
        own = {"wait_for_workers": False, "master_listen_fd": listening}
        keys, group = (
            of.TCPStore(at.address, at.port, 2, rank == 0, within, **own),
            of.ProcessGroupGloo,
        )
        options = group._Options()
        options._devices = [group.create_device(hostname=address)]
        options._timeout = within
        self._group, self._other = group(keys, rank, 2, options), 1 - rank
        self._lock = threading.Lock()
        self._under_way: deque[tuple[Any, Any]] = deque()
        rooms = [torch.empty(FIRST, dtype=torch.uint8) for _ in range(ROOMS)]
        self._coming = deque((self._group.recv([room], self._other, 0), room) for room in rooms)
        self._prove(at.secret, FORM_S)

    def send(self, messages: Sequence[Bytes]) -> None:
        with _plainly():
            for first in range(0, max(1, len(messages)), MOST):
                self._send(messages[first : first + MOST])

    def receive(self, within_s: float) -> list[Bytes]:
        with _plainly():
            return self._receive(within_s)

    def close(self) -> None:
        self._under_way.clear()

    def _send(self, messages: Sequence[Bytes]) -> None:
        sizes = np.array([len(messages), *(m.size for m in messages)], np.int64)
        blob = np.concatenate([sizes.view(np.uint8), *messages])
        pieces = [torch.from_numpy(blob[:FIRST]), torch.from_numpy(blob[FIRST:])]
        if blob.size < FIRST:
            pieces[0] = torch.zeros(FIRST, dtype=torch.uint8)
            pieces[0][: blob.size] = torch.from_numpy(blob)
        with self._lock:
            for tag, piece in enumerate(pieces):
                if piece.numel():
                    work = self._group.send([piece], self._other, tag)
                    self._under_way.append((work, piece))
            while len(self._under_way) > 2 * WINDOW:
                self._under_way.popleft()[0].wait(timedelta(seconds=SENT_S))
            self._beat_s = time.monotonic()

    def _receive(self, within_s: float) -> list[Bytes]:
        work, room = self._coming.popleft()
        work.wait(timedelta(seconds=within_s))
        first = room.numpy().copy()
        self._coming.append((self._group.recv([room], self._other, 0), room))
        count = int(first[:8].view(np.int64)[0])
        head = 8 * (1 + count)
        sizes = first[8:head].view(np.int64)
        total = head + int(sizes.sum())
        if total > FIRST:
            whole = np.empty(total, np.uint8)
            whole[:FIRST] = first
            rest = self._group.recv([torch.from_numpy(whole[FIRST:])], self._other, 1)
            rest.wait(timedelta(seconds=within_s))
            first = whole
        ends = head + np.cumsum(sizes)
        return [first[end - size : end] for size, end in zip(sizes, ends, strict=True)]
