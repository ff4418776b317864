"""What strangers send to a port of a run."""

import numpy as np

SILENT = 200
"""Connections of strangers who say nothing."""


def _numbers(*given):
    return np.array(given, np.int64).tobytes()


BLOBS = {
    "size -1": _numbers(1, -1),
    "count 512": _numbers(512),
    "count 2^50": _numbers(1 << 50),
    "size 2^60": _numbers(1, 1 << 60),
    "sizes that wrap around": _numbers(4, *[1 << 62] * 4),
    "an empty batch": _numbers(0),
    "HTTP": b"GET / HTTP/1.1\r\nHost: pearl\r\n\r\n",
    "a random kilobyte": np.random.default_rng(0).bytes(1000),
}
"""Name → bytes."""
