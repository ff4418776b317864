"""Algorithms: one readable file each. A new one is a file and a line here.

An algorithm module has `graph(system) -> TaskGraph`, `initialise(buffers, system, seed)` and
`losses(nets, batch, hyper)`, the torch loss as a generator (see `pearl.algorithms.dqn`); a tabular
one has no losses. One of the user's own is named in a spec by its module path
(`docs/own_algorithm.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers
from pearl_devices.named import imported

if TYPE_CHECKING:
    from pearl.spec.system import System

ALGORITHMS = {
    name: f"pearl.algorithms.{name}"
    for name in ("dqn", "ddpg", "td3", "sac", "ppo", "a2c", "q_learning", "sarsa")
}
"""Name in a spec → module."""

NEEDED = ("POLICY", "LEARNING", "graph", "initialise", "losses")
"""What an algorithm module of the user's own must have."""


class Algorithm(Protocol):
    """What an algorithm module offers.

    POLICY: the network that acts. LEARNING: tasks that pass their tokens without work before
    `learning_starts`.
    """

    POLICY: str
    LEARNING: tuple[str, ...]

    def graph(self, system: System) -> TaskGraph: ...
    def initialise(self, buffers: Buffers, system: System, seed: int) -> None: ...


def algorithm(name: str) -> Algorithm:
    """The module of an algorithm: by its name here, or by a module path, which has a dot.

    An unknown name, a module that cannot be imported and one that lacks something are a KeyError
    saying so.
    """
    if name not in ALGORITHMS and "." not in name:
        raise KeyError(
            f"no algorithm {name!r}; there are {sorted(ALGORITHMS)}, or one of your own by its "
            "module path, such as my_package.my_algorithm"
        )
    try:
        module = imported(ALGORITHMS.get(name, name))
    except ValueError as error:
        raise KeyError(
            f"algorithm {name!r} is no module that can be imported ({error}); it must be on "
            "Python's path"
        ) from error
    needed = () if name in ALGORITHMS else NEEDED
    missing = [each for each in needed if not hasattr(module, each)]
    if missing:
        raise KeyError(
            f"module {name!r} is no algorithm: it has no {', '.join(missing)}; see "
            "docs/own_algorithm.md"
        )
    return cast(Algorithm, module)
