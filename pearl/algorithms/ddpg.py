"""DDPG (Lillicrap et al. 2016): a deterministic actor and a critic, each with an averaged target.

In execution order: sizes (`graph`), first values (`initialise`), one gradient step (`losses`).
Acting adds Gaussian noise to the action and clips it to the bounds.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from pearl.algorithms.families.replay import build
from pearl.algorithms.initial_values import constants, gradient_steps, sizes, start_network
from pearl.algorithms.learning_rates import LearningRate, write
from pearl.algorithms.options import STRICT, ContinuousOptions, GaussianNoise
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.spec.system import System

FAMILY = "replay"
ACTIONS = "continuous"
POLICY = "actor"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(ContinuousOptions):
    """DDPG (Lillicrap et al. 2016). Continuous, bounded actions."""

    actor_learning_rate: LearningRate = Field(
        default=1e-3, description="Step size of the actor's Adam."
    )
    critic_learning_rate: LearningRate = Field(
        default=1e-3, description="Step size of the critic's Adam."
    )
    exploration: GaussianNoise = Field(
        default_factory=GaussianNoise, description="Noise of the actions."
    )


def layers(system: System) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Widths of the actor (observation → action) and of the critic (both → value)."""
    obs, act, a = system.env.obs, system.env.act, system.algorithm
    return (obs, *a.widths("actor"), act), (obs + act, *a.widths("critic"), 1)


def graph(system: System) -> TaskGraph:
    """Return the task graph of DDPG on this system."""
    actor, critic = layers(system)
    return build(
        "ddpg",
        sizes(system),
        networks={"actor": actor, "critic": critic},
        policy=POLICY,
        losses="pearl.algorithms.ddpg:losses",
    )


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run. The last layers start near 0 (section 7 of the paper)."""
    a = system.algorithm
    actor, critic = layers(system)
    start_network(buffers, system, "actor", actor, seed, policy=True, final_scale=3e-3)
    start_network(buffers, system, "critic", critic, seed, final_scale=3e-3)
    constants(buffers, system)
    write(buffers, "actor", a.actor_learning_rate, gradient_steps(system))
    write(buffers, "critic", a.critic_learning_rate, gradient_steps(system))
    buffers["explore"][:] = a.exploration.noise, 0.0, 0.0, a.learning_starts


def losses(nets: Any, batch: Any, hyper: Any) -> Generator[tuple[str, Any], None, Any]:
    """Take one gradient step in torch: yield ("critic", loss), then ("actor", loss) with the
    updated critic; return |TD error|, shape (B,).

    critic target = reward + discount · Q_target(next_obs, actor_target(next_obs)).
    """
    import torch
    from torch.nn import functional as F

    with torch.no_grad():
        ahead = nets.target.actor(batch.next_obs)
        value = nets.target.critic(torch.cat((batch.next_obs, ahead), dim=1))
        target = batch.reward + batch.discount * value
    q = nets.critic(torch.cat((batch.obs, batch.action), dim=1))
    td = q - target
    if hyper.huber > 0:
        each = F.huber_loss(q, target, reduction="none", delta=hyper.huber)
    else:
        each = 0.5 * td.square()
    yield "critic", (batch.weight * each).mean()
    own = nets.actor(batch.obs)
    yield "actor", -nets.critic(torch.cat((batch.obs, own), dim=1)).mean()
    return td.detach().abs()
