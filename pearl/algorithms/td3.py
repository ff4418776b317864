"""TD3 (Fujimoto, van Hoof, Meger 2018): DDPG with two critics, noise on the target action, and an
actor that moves less often than the critics.

In execution order: sizes (`graph`), first values (`initialise`), one gradient step (`losses`).
Acting adds Gaussian noise to the action and clips it to the bounds, as in DDPG.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from pydantic import Field, StrictInt
from pydantic.dataclasses import dataclass

from pearl.algorithms.families.replay import build
from pearl.algorithms.fields import OfHalfRange
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
class Smoothing:
    """Noise added to the target policy's action."""

    noise: OfHalfRange = Field(
        default=0.2, description="Standard deviation, as a share of half the range."
    )
    limit: OfHalfRange = Field(
        default=0.5, description="Bound of the noise, as a share of half the range."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(ContinuousOptions):
    """TD3 (Fujimoto, van Hoof, Meger 2018). Continuous, bounded actions."""

    actor_learning_rate: LearningRate = Field(
        default=1e-3, description="Step size of the actor's Adam."
    )
    critic_learning_rate: LearningRate = Field(
        default=1e-3, description="Step size of the critics' Adam."
    )
    policy_delay: StrictInt = Field(
        default=2, ge=1, le=1000, description="Critic steps per step of actor and targets."
    )
    smoothing: Smoothing = Field(
        default_factory=Smoothing, description="Noise of the target policy's actions."
    )
    exploration: GaussianNoise = Field(
        default_factory=GaussianNoise, description="Noise of the actions."
    )


def layers(system: System) -> dict[str, tuple[int, ...]]:
    """Return the widths of the actor (observation → action) and of both critics (both → value)."""
    obs, act, a = system.env.obs, system.env.act, system.algorithm
    critic = (obs + act, *a.widths("critic"), 1)
    return {"actor": (obs, *a.widths("actor"), act), "critic1": critic, "critic2": critic}


def graph(system: System) -> TaskGraph:
    """Return the task graph of TD3 on this system. An update firing of k gradient steps moves the
    actor and the targets in every policy_delay-th step, counted from the start of learning."""
    return build(
        "td3",
        sizes(system),
        networks=layers(system),
        policy=POLICY,
        losses="pearl.algorithms.td3:losses",
        acting="ddpg",
        extra={"policy_delay": system.algorithm.policy_delay},
    )


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run."""
    a = system.algorithm
    for name, widths in layers(system).items():
        start_network(buffers, system, name, widths, seed, policy=name == POLICY)
        rate = a.actor_learning_rate if name == POLICY else a.critic_learning_rate
        steps = gradient_steps(system) / (a.policy_delay if name == POLICY else 1)
        write(buffers, name, rate, steps)
    constants(buffers, system)
    buffers["hyper.smoothing"][:] = a.smoothing.noise, a.smoothing.limit
    buffers["explore"][:] = a.exploration.noise, 0.0, 0.0, a.learning_starts


def losses(nets: Any, batch: Any, hyper: Any) -> Generator[tuple[str, Any], None, Any]:
    """Take one gradient step in torch: yield ("critic1", loss), ("critic2", loss), and in every
    policy_delay-th step ("actor", loss) with the updated first critic; return the mean |TD error|
    of both critics, shape (B,).

    target = reward + discount · min(Q1_target, Q2_target)(next_obs, a'), a' the target actor's
    action plus clipped noise, inside the bounds (equations 10 and 14 of the paper).
    """
    import torch
    from torch.nn import functional as F

    with torch.no_grad():
        deviation, limit = hyper.smoothing
        ahead = nets.target.actor(batch.next_obs)
        offset = (deviation * hyper.noise.normal(*ahead.shape)).clamp(-limit, limit)
        ahead = ahead + 0.5 * (hyper.act_high - hyper.act_low) * offset
        ahead = ahead.clamp(hyper.act_low, hyper.act_high)
        first = nets.target.critic1(batch.next_obs, ahead)
        second = nets.target.critic2(batch.next_obs, ahead)
        target = batch.reward + batch.discount * torch.minimum(first, second)
    errors = []
    for name, critic in (("critic1", nets.critic1), ("critic2", nets.critic2)):
        q = critic(batch.obs, batch.action)
        errors.append((q - target).detach().abs())
        if hyper.huber > 0:
            each = F.huber_loss(q, target, reduction="none", delta=hyper.huber)
        else:
            each = 0.5 * (q - target).square()
        yield name, (batch.weight * each).mean()
    if hyper.step % hyper.policy_delay == 0:
        yield "actor", -nets.critic1(batch.obs, nets.actor(batch.obs)).mean()
    return 0.5 * (errors[0] + errors[1])
