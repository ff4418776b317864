"""Algorithms: one readable file each. A new one is a file and a line here.

An algorithm module has `graph(system) -> TaskGraph`, `initialise(buffers, system, seed)` and
`losses(nets, batch, hyper)`, the torch loss as a generator (see `pearl.algorithms.dqn`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from pearl.graph import TaskGraph
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.system import System

ALGORITHMS = {"dqn": "pearl.algorithms.dqn", "ddpg": "pearl.algorithms.ddpg"}
"""Name in a spec → module."""


class Algorithm(Protocol):
    """What an algorithm module offers.

    POLICY: the network that acts. LEARNING: tasks that pass their tokens without work before
    `learning_starts`.
    """

    POLICY: str
    LEARNING: tuple[str, ...]

    def graph(self, system: System) -> TaskGraph: ...
    def initialise(self, buffers: Buffers, system: System, seed: int) -> None: ...
    def losses(self, nets: Any, batch: Any, hyper: Any) -> Any: ...


def algorithm(name: str) -> Algorithm:
    """The module of an algorithm; an unknown name is a KeyError naming all."""
    if name not in ALGORITHMS:
        raise KeyError(f"no algorithm {name!r}; there are {sorted(ALGORITHMS)}")
    return cast(Algorithm, import_module(ALGORITHMS[name]))
