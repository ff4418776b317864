"""A2C (Mnih et al. 2016, the synchronous form): one gradient step of actor and critic per short
rollout, for discrete and continuous actions; it acts as PPO does (`pearl.algorithms.ppo`).

In execution order: the networks and their loop (`graph`), the first values (`initialise`), the loss
of a rollout (`losses`). The native variant is PPO's with one epoch of one minibatch, where its
ratio is 1 and its gradient that of `losses` (Huang et al. 2022).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, StrictBool, StrictFloat
from pydantic.dataclasses import dataclass

from pearl.algorithms.families.rollout import build, log_prob_and_entropy, normal, start
from pearl.algorithms.fields import Share, Width
from pearl.algorithms.learning_rates import LearningRate
from pearl.algorithms.options import STRICT, RolloutOptions
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.spec.system import System

FAMILY = "rollout"
ACTIONS = "both"
POLICY = "actor"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RmsProp:
    """Constants of RMSprop, as Mnih et al. 2016 have it: the constant is inside the root."""

    decay: StrictFloat = Field(default=0.99, gt=0, lt=1, description="Decay of the squared mean.")
    eps: StrictFloat = Field(default=1e-5, gt=0, le=1, description="Added to the squared mean.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(RolloutOptions):
    """A2C (Mnih et al. 2016). Discrete or continuous, bounded actions."""

    rollout_steps: Width = Field(default=5, description="Vector steps of one rollout.")
    gae_lambda: Share = Field(
        default=1.0, description="Decay of the advantages' trace; 1 is the plain return."
    )
    normalise_advantages: StrictBool = Field(
        default=False, description="Advantages of a rollout get mean 0 and deviation 1."
    )
    learning_rate: LearningRate = Field(default=7e-4, description="Step size of the optimiser.")
    optimiser: Literal["rmsprop", "adam"] = Field(
        default="rmsprop", description="rmsprop, as in the paper, or adam."
    )
    rmsprop: RmsProp = Field(default_factory=RmsProp, description="Constants of RMSprop.")


def graph(system: System) -> TaskGraph:
    """Return the task graph of A2C on this system."""
    return build(system, "a2c", losses="pearl.algorithms.a2c:losses", by_row=True)


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
    """Compute one rollout's losses in torch: yield the losses of actor and critic together.

    mean(−A · log π(a)) − entropy · mean(H), and value_weight · mean((V − R)²).
    """
    log_prob, entropy = log_prob_and_entropy(nets, batch)
    advantage = normal(batch.advantage) if hyper.normalise else batch.advantage
    error = (nets.critic(batch.obs) - batch.returns).square()
    actor = -(advantage * log_prob).mean() - hyper.entropy * entropy.mean()
    yield ("actor", "critic"), (actor, hyper.value_weight * error.mean())
