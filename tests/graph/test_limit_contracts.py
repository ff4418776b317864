"""Every limit of a file of its own passes the contract; PEARL ships none (`tests/recipes`)."""

from __future__ import annotations

from pearl.graph.limits import ADDED
from pearl.testing import LimitContract

for limit in ADDED:
    title = "Test" + "".join(map(str.capitalize, limit.key.split("_")))
    globals()[title] = type(title, (LimitContract,), {"key": limit.key})
