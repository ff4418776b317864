"""A2C (Mnih et al. 2016, the synchronous form): one gradient step of actor and critic on every
short rollout. For discrete and continuous actions, as PPO acts (`pearl.algorithms.ppo`).

In execution order: the networks and their loop (`graph`), the first values (`initialise`), the loss
of a rollout (`losses`). The native variant is PPO's with one epoch of one minibatch, where its
ratio is 1 and its gradient that of `losses` (Huang et al. 2022).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from pearl.algorithms.families.rollout import LEARNING, build, log_prob_and_entropy, normal, start
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.spec.system import System

__all__ = ["LEARNING", "POLICY", "graph", "initialise", "losses"]

POLICY = "actor"


def graph(system: System) -> TaskGraph:
    """The task graph of A2C on this system."""
    return build(system, "a2c", losses="pearl.algorithms.a2c:losses", epochs=1, minibatches=1)


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run."""
    a = system.algorithm
    start(buffers, system, seed, updates=1)
    buffers["hyper.clip"][:] = 0.0
    buffers["hyper.value_clip"][:] = 0.0
    rmsprop = a.optimiser == "rmsprop"
    buffers["hyper.rmsprop"][:] = (a.rmsprop.decay, a.rmsprop.eps) if rmsprop else (0.0, 0.0)


def losses(
    nets: Any, batch: Any, hyper: Any
) -> Generator[tuple[tuple[str, ...], tuple[Any, ...]], None, None]:
    """One rollout in torch: yields the losses of the actor and of the critic, which move together.

    mean(−A · log π(a)) − entropy · mean(H), and value_weight · mean((V − R)²).
    """
    log_prob, entropy = log_prob_and_entropy(nets, batch)
    advantage = normal(batch.advantage) if hyper.normalise else batch.advantage
    error = (nets.critic(batch.obs) - batch.returns).square()
    actor = -(advantage * log_prob).mean() - hyper.entropy * entropy.mean()
    yield ("actor", "critic"), (actor, hyper.value_weight * error.mean())
