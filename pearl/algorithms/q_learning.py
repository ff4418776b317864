"""Tabular Q-learning (Watkins 1989): a value for each state and action, learned from every step.

In execution order: act epsilon-greedily, step the environments, move
Q(s, a) towards reward + discount · max Q(s', ·). Termination does not bootstrap, truncation does.
The n-th update of an entry takes the step size learning_rate / n^learning_rate_power.
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
    """Return the task graph of Q-learning on this system."""
    return build("q_learning", system)
