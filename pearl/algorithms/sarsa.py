"""Tabular SARSA (Rummery and Niranjan 1994): as Q-learning, for the policy that acts.

In execution order: choose a' for the observation s', move Q(s, a) of the step before towards
reward + discount · Q(s', a'), take a'. Termination does not bootstrap; where an episode is
truncated a' is drawn for its last observation, since the one chosen belongs to the next episode.
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
    """The task graph of SARSA on this system."""
    return build("sarsa", system, needs_next_action=True)
