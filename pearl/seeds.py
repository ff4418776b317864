"""Seeds: whole numbers below 2^63."""

from __future__ import annotations

import operator
from typing import Any

from pearl.errors import SpecError

SEEDS = 2**63
"""Number of seeds, which start from 0."""


def checked_seed(seed: Any) -> int:
    """Return `seed` as an int.

    Raises:
        SpecError: the value is no whole number from 0 to 2^63 - 1.
    """
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < SEEDS:
        raise SpecError(f"seed is {seed!r}; it is a whole number from 0 to 2^63 - 1")
    return number
