"""Counter-based random numbers: a pure function of (key, firing, index), so any order of tasks
draws the same numbers.

The finaliser is that of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014). A stream is one firing of one task: `base = stream_base(key, firing)`,
then `uniform(base, 0)`, `uniform(base, 1)`, … From Python, pass `base` as `numpy.uint64(base)`:
numba returns a plain int, which it would read as a signed one.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from pearl_devices.primitives.native import fast

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)
S27, S30, S31, S11, S40 = (np.uint64(shift) for shift in (27, 30, 31, 11, 40))
TWO_53 = 2.0**-53
TWO_24 = np.float32(2.0**-24)
TWO_PI = 2.0 * math.pi


def key(seed: int, task: str) -> int:
    """Return the key of `task`'s stream under `seed`, 0 … 2^64 − 1; the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{task}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@fast
def mix(z):
    z = (z ^ (z >> S30)) * FIRST
    z = (z ^ (z >> S27)) * SECOND
    return z ^ (z >> S31)


@fast
def stream_base(key, firing):
    """Return the uint64 base of the numbers that one firing draws."""
    return mix(np.uint64(key) + mix((np.uint64(firing) + np.uint64(1)) * GOLDEN))


@fast
def bits(base, index):
    """Return 64 random bits."""
    return mix(base + (np.uint64(index) + np.uint64(1)) * GOLDEN)


@fast
def uniform(base, index):
    """float64 in [0, 1) with 53 random bits."""
    return np.float64(bits(base, index) >> S11) * TWO_53


@fast
def normal(base, index):
    """Standard normal float64, from the uniforms 2·index and 2·index + 1 (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(base, 2 * index)))
    return radius * math.cos(TWO_PI * uniform(base, 2 * index + 1))


@fast
def uniforms(base, start, out):
    """out (flat float32) ← the uniforms start, start + 1, …, rounded down."""
    for j in range(out.size):
        out[j] = np.float32(bits(base, start + j) >> S40) * TWO_24


@fast
def normals(base, start, out):
    """out (flat float32) ← standard normals number start, start + 1, …; start is even.

    Numbers 2i and 2i + 1 come from one pair of uniforms (Box and Muller 1958). `normal` uses only
    the first of each pair, so it gives other numbers.
    """
    for j in range(0, out.size, 2):
        radius = math.sqrt(-2.0 * math.log(1.0 - uniform(base, start + j)))
        angle = TWO_PI * uniform(base, start + j + 1)
        out[j] = radius * math.cos(angle)
        if j + 1 < out.size:
            out[j + 1] = radius * math.sin(angle)
