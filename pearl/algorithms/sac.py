"""SAC (Haarnoja et al. 2018b): a stochastic actor that is rewarded for entropy, two critics, and a
temperature that holds the entropy at its target.

In execution order: sizes (`graph`), first values (`initialise`), one gradient step (`losses`).
Acting draws from the policy; evaluation takes tanh of the mean. The density of the policy is that
of actions scaled to −1 … 1, whatever the bounds, and so is the target entropy.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from pydantic import Field, StrictFloat
from pydantic.dataclasses import dataclass

from pearl.algorithms.families.replay import build
from pearl.algorithms.fields import Share
from pearl.algorithms.initial_values import constants, gradient_steps, sizes, start_network
from pearl.algorithms.learning_rates import LearningRate, RateSchedule, write
from pearl.algorithms.options import STRICT, ContinuousOptions
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers
from pearl_devices.primitives import LOG_STD

if TYPE_CHECKING:
    from pearl.spec.system import System

FAMILY = "replay"
ACTIONS = "continuous"
POLICY = "actor"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(ContinuousOptions):
    """SAC (Haarnoja et al. 2018b), automatic temperature. Continuous, bounded actions."""

    actor_learning_rate: LearningRate = Field(
        default=3e-4, description="Step size of the actor's Adam."
    )
    critic_learning_rate: LearningRate = Field(
        default=1e-3, description="Step size of the critics' Adam."
    )
    temperature_learning_rate: Share | RateSchedule = Field(
        default=1e-3, description="Step size of the temperature's Adam; 0 keeps it."
    )
    temperature: StrictFloat = Field(
        default=1.0, gt=0, le=1e6, description="Temperature at the start: the weight of entropy."
    )
    target_entropy: StrictFloat | None = Field(
        default=None,
        ge=-1e6,
        le=1e6,
        description="Target of the entropy, for actions scaled to -1 … 1. Default: minus the "
        "number of components of an action.",
    )


def layers(system: System) -> dict[str, tuple[int, ...]]:
    """Return the widths of the actor (observation → means, then logarithms of the standard
    deviations), of both critics (observation and action → value), and of alpha, the logarithm of
    the temperature: a network without inputs, whose only parameter is its bias."""
    obs, act, a = system.env.obs, system.env.act, system.algorithm
    critic = (obs + act, *a.widths("critic"), 1)
    return {
        "actor": (obs, *a.widths("actor"), 2 * act),
        "critic1": critic,
        "critic2": critic,
        "alpha": (0, 1),
    }


def graph(system: System) -> TaskGraph:
    """Return the task graph of SAC on this system."""
    return build(
        "sac",
        sizes(system),
        networks=layers(system),
        policy=POLICY,
        losses="pearl.algorithms.sac:losses",
    )


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run."""
    a = system.algorithm
    widths = layers(system)
    for name in ("actor", "critic1", "critic2"):
        start_network(buffers, system, name, widths[name], seed, policy=name == POLICY)
        rate = a.actor_learning_rate if name == POLICY else a.critic_learning_rate
        write(buffers, name, rate, gradient_steps(system))
    buffers["learner.alpha"][:] = math.log(a.temperature)
    write(buffers, "alpha", a.temperature_learning_rate, gradient_steps(system))
    entropy = -float(system.env.act) if a.target_entropy is None else a.target_entropy
    buffers["hyper.target_entropy"][:] = entropy
    constants(buffers, system)
    buffers["explore"][:] = 0.0, 0.0, 0.0, a.learning_starts


def sample(nets: Any, obs: Any, noise: Any, hyper: Any) -> tuple[Any, Any]:
    """Return actions (B, A) between the bounds, and the logarithms of their density (B,).

    With u = mean + deviation · noise: log N(u) − log(1 − tanh²(u)), summed over the components,
    where log(1 − tanh²(u)) = 2 (log 2 − u − softplus(−2u)) (appendix C of the paper).
    """
    import torch
    from torch.nn import functional as F

    mean, log_std = nets.actor(obs).chunk(2, dim=1)
    log_std = log_std.clamp(*LOG_STD)
    u = mean + log_std.exp() * noise
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    density = density - 2 * (math.log(2) - u - F.softplus(-2 * u))
    half = 0.5 * (hyper.act_high - hyper.act_low)
    return hyper.act_low + half + half * torch.tanh(u), density.sum(1)


def losses(nets: Any, batch: Any, hyper: Any) -> Generator[tuple[str, Any], None, Any]:
    """Take one gradient step in torch: yield ("critic1", loss), ("critic2", loss), ("actor", loss)
    with the updated critics, ("alpha", loss); return the mean |TD error| of both critics, shape
    (B,).

    target = reward + discount · (min(Q1_target, Q2_target)(next_obs, a') − temperature · log π(a'))
    with a' sampled from the policy. The whole step uses the temperature exp(alpha) before it.
    alpha's loss is −alpha · (log π + target entropy), as in the authors' code.
    """
    import torch
    from torch.nn import functional as F

    size = (len(batch.reward), len(hyper.act_low))
    with torch.no_grad():
        temperature = nets.alpha().exp()
        ahead, density = sample(nets, batch.next_obs, hyper.noise.normal(*size), hyper)
        first = nets.target.critic1(batch.next_obs, ahead)
        second = nets.target.critic2(batch.next_obs, ahead)
        value = torch.minimum(first, second) - temperature * density
        target = batch.reward + batch.discount * value
    errors = []
    for name, critic in (("critic1", nets.critic1), ("critic2", nets.critic2)):
        q = critic(batch.obs, batch.action)
        errors.append((q - target).detach().abs())
        if hyper.huber > 0:
            each = F.huber_loss(q, target, reduction="none", delta=hyper.huber)
        else:
            each = 0.5 * (q - target).square()
        yield name, (batch.weight * each).mean()
    own, density = sample(nets, batch.obs, hyper.noise.normal(*size), hyper)
    least = torch.minimum(nets.critic1(batch.obs, own), nets.critic2(batch.obs, own))
    yield "actor", (temperature * density - least).mean()
    yield "alpha", -nets.alpha().squeeze() * (density.detach().mean() + hyper.target_entropy)
    return 0.5 * (errors[0] + errors[1])
