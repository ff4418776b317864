"""Tabular SARSA (Rummery and Niranjan 1994): as Q-learning, for the policy that acts.

In execution order: choose a' for the observation s', move Q(s, a) of the step before towards reward
+ discount · Q(s', a'), take a'. Termination does not bootstrap. If an episode is truncated, another
a' is sampled for its last observation, because the chosen one belongs to the next episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl.algorithms.families.tabular import POLICY, build, initialise
from pearl.graph.task_graph import TaskGraph

if TYPE_CHECKING:
    from pearl.spec.system import System

__all__ = ["ACTIONS", "FAMILY", "POLICY", "graph", "initialise"]

FAMILY = "tabular"
ACTIONS = "discrete"


def graph(system: System) -> TaskGraph:
    """Return the task graph of SARSA on this system."""
    return build("sarsa", system, needs_next_action=True)
