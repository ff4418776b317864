"""Split messages into chunks, so that Ray sends them with the call.

Ray sends an argument or result of up to 100 KiB with the call itself. A larger one goes into the
object store of one node, and the other node fetches it: some milliseconds, whatever its size. One
call can have several small arguments, up to 10 MiB together, so PEARL splits a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

PIECE = 96_000
"""Bytes of a chunk: below the 100 KiB of Ray, which count the header of the argument too."""

WHOLE = 1 << 23
"""Bytes above which a message is not split: one call has up to 10 MiB. Up to this size the object
store is slower (one way 1 MB 7.1 ms instead of 2.6 in chunks, 4 MiB 9 instead of 7, 8 MB 17 instead
of 11: two raylets, two busy cores, 2026-11-23)."""

MOST = -(-WHOLE // PIECE)
"""Limit of the chunks of a message."""


def chunk_count(size_bytes: int) -> int:
    """Compute the number of chunks of a message."""
    return max(1, -(-size_bytes // PIECE)) if size_bytes <= WHOLE else 1


def split_message(message: Bytes, most: int = MOST) -> list[Bytes]:
    """Split a message into at most `most` chunks; the last chunk then has all remaining bytes."""
    count = min(chunk_count(message.size), most)
    ends = [0, *(PIECE * n for n in range(1, count)), message.size]
    return [message[a:b] for a, b in pairwise(ends)]


def join_chunks(parts: Sequence[Bytes]) -> Bytes:
    """Join chunks in order."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def split_by_sizes(message: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Split joined messages by their sizes in bytes."""
    return [message[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
