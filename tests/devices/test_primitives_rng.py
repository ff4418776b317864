"""Counter-based random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from pearl_devices.primitives.math.rng import bits, key, normal, stream_base, uniform

MASK = (1 << 64) - 1


def reference_mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def reference_bits(key: int, firing: int, index: int) -> int:
    golden = 0x9E3779B97F4A7C15
    base = reference_mix((key + reference_mix((firing + 1) * golden & MASK)) & MASK)
    return reference_mix((base + (index + 1) * golden) & MASK)


@njit(fastmath=True)
def draw(key, firing, out_bits, out_uniform, out_normal):  # type: ignore[no-untyped-def]
    base = stream_base(key, firing)
    for i in range(out_bits.size):
        out_bits[i] = bits(base, i)
        out_uniform[i] = uniform(base, i)
        out_normal[i] = normal(base, i)


def drawn(seed: int, firing: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    words, shares, normals = np.zeros(count, np.uint64), np.zeros(count), np.zeros(count)
    draw(np.uint64(key(seed, "task")), np.uint64(firing), words, shares, normals)
    return words, shares, normals


def test_keys_are_stable_over_versions_and_differ_by_seed_and_task() -> None:
    assert key(0, "env_step") == 0x4FC23DEB5B6CE9C3
    assert len({key(seed, task) for seed in range(50) for task in ("a", "b")}) == 100
    assert all(0 <= key(seed, "a") <= MASK for seed in range(50))


@pytest.mark.parametrize("firing", [0, 1, 2**40])
def test_bits_equal_integer_arithmetic_modulo_2_to_64_even_under_fastmath(firing: int) -> None:
    words, shares, _ = drawn(1, firing, 100)
    expected = [reference_bits(key(1, "task"), firing, i) for i in range(100)]
    assert [int(word) for word in words] == expected
    assert np.array_equal(shares, [(word >> 11) * 2.0**-53 for word in expected])


def test_neighbouring_firings_and_indices_share_no_number() -> None:
    words = np.concatenate([drawn(0, firing, 200)[0] for firing in range(200)])
    assert np.unique(words).size == words.size


def test_uniforms_and_normals_have_the_right_moments() -> None:
    _, shares, normals = drawn(2, 7, 200_000)
    assert shares.min() >= 0.0
    assert shares.max() < 1.0
    counts = np.histogram(shares, bins=20, range=(0, 1))[0]
    assert np.sum((counts - 10_000) ** 2 / 10_000) < 43.8  # chi-square, 19 degrees, p = 0.001
    assert abs(normals.mean()) < 4 / np.sqrt(normals.size)
    assert abs(normals.std() - 1) < 0.01
    assert abs(np.mean(normals[1:] * normals[:-1])) < 4 / np.sqrt(normals.size)
