"""The generators that all code of a process shares: `random`, and numpy's without a Generator.

Environments should draw from their `np_random`, which `reset(seed=…)` seeds. Many draw from these
instead, so they are seeded too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_generators(seed: int) -> None:
    """Seed both generators of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def generators_from(seed: int) -> Iterator[None]:
    """Within this context, both generators start from `seed`; after it, they go on as before."""
    before, arrays = random.getstate(), np.random.get_state()
    seed_generators(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(arrays)
