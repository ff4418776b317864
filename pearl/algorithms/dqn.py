"""DQN (Mnih et al. 2015), optionally double (van Hasselt et al. 2016) and duelling (Wang et al.
2016), with n-step returns and uniform or prioritised replay (Schaul et al. 2016).

In execution order: the networks and their sizes (`graph`), the first values (`initialise`), one
gradient step (`losses`). Acting is epsilon-greedy with a linear schedule in env steps.
"""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pydantic import Field, StrictBool, StrictInt
from pydantic.dataclasses import dataclass

from pearl.algorithms.families.replay import build
from pearl.algorithms.fields import Hidden, Limit, Ratio
from pearl.algorithms.initial_values import constants, gradient_steps, sizes, start_network
from pearl.algorithms.learning_rates import LearningRate, write
from pearl.algorithms.options import STRICT, EpsilonGreedy, ReplayOptions, Target
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers

if TYPE_CHECKING:
    from pearl.spec.system import System

FAMILY = "replay"
ACTIONS = "discrete"
POLICY = "q"

HELD = 16
"""Env steps during which one environment keeps the same policy, so that exploration keeps its
direction (rl-baselines3-zoo uses as many for MountainCar)."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(ReplayOptions):
    """DQN (Mnih et al. 2015), double by default (van Hasselt et al. 2016). Discrete actions."""

    hidden: Hidden = Field(default=(256, 256), description="Widths of the hidden layers.")
    batch_size: StrictInt = Field(
        default=128, ge=1, le=2**20, description="Transitions of one gradient step."
    )
    replay_ratio: Ratio | None = Field(  # type: ignore[assignment]
        default=None,
        description="Gradient steps per env step: 1, 0.25 or '1/4'. Default: 1/2 with one "
        "environment, otherwise 1.",
    )
    learning_rate: LearningRate = Field(default=1e-3, description="Step size of Adam.")
    huber: Limit = Field(
        default=1.0, description="Error from which the Huber loss is linear; 0: squared loss."
    )
    max_grad_norm: Limit = Field(
        default=10.0, description="Maximum norm of the gradients; 0: no limit."
    )
    target: Target = Field(
        default_factory=lambda: Target(every=300),
        description="How the target network follows. Give one of tau and every.",
    )
    double: StrictBool = Field(
        default=True, description="Choose the next action with the online network (double DQN)."
    )
    duelling: StrictBool = Field(
        default=False,
        description="Learn the value of a state and the advantages of actions (duelling DQN).",
    )
    exploration: EpsilonGreedy = Field(
        default_factory=EpsilonGreedy, description="Share of random actions."
    )

    def __post_init__(self) -> None:
        """Hold the policy between updates if there is one environment and the spec has no ratio."""
        if self.replay_ratio is not None:
            return
        alone = self.num_envs == 1
        object.__setattr__(self, "replay_ratio", Fraction(1, 2) if alone else Fraction(1))
        if alone and self.train_every is None and self.replay.kind == "uniform":
            object.__setattr__(self, "train_every", HELD)


def layers(system: System) -> tuple[int, ...]:
    """Return the widths of the Q network: observation, hidden layers, one value per action; a
    duelling network has the value of the state first."""
    outputs = system.env.actions + system.algorithm.duelling
    return (system.env.obs, *system.algorithm.hidden, outputs)


def graph(system: System) -> TaskGraph:
    """Return the task graph of DQN on this system."""
    a = system.algorithm
    return build(
        "dqn",
        sizes(system),
        networks={"q": layers(system)},
        policy=POLICY,
        losses="pearl.algorithms.dqn:losses",
        head={"duelling": 1} if a.duelling else {},
        extra={"double": int(a.double)},
    )


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run: network, its copies, and every constant of the algorithm."""
    a = system.algorithm
    start_network(buffers, system, "q", layers(system), seed, policy=True)
    constants(buffers, system)
    write(buffers, "q", a.learning_rate, gradient_steps(system))
    e = a.exploration
    buffers["explore"][:] = e.initial, e.final, e.steps, a.learning_starts


def losses(nets: Any, batch: Any, hyper: Any) -> Generator[tuple[str, Any], None, Any]:
    """Take one gradient step in torch: yield ("q", loss); return |TD error|, shape (B,).

    target = reward + discount · Q_target(next_obs, a*), where a* maximises Q_target, or with
    `hyper.double` the online network. batch.discount is 0 where the episode terminated, so
    termination does not bootstrap and truncation does. batch.weight has the importance weights.
    """
    import torch
    from torch.nn import functional as F

    with torch.no_grad():
        chooser = nets.q if hyper.double else nets.target.q
        best = chooser(batch.next_obs).argmax(dim=1, keepdim=True)
        value = nets.target.q(batch.next_obs).gather(1, best).squeeze(1)
        target = batch.reward + batch.discount * value
    q = nets.q(batch.obs).gather(1, batch.action.unsqueeze(1)).squeeze(1)
    td = q - target
    if hyper.huber > 0:
        each = F.huber_loss(q, target, reduction="none", delta=hyper.huber)
    else:
        each = 0.5 * td.square()
    yield "q", (batch.weight * each).mean()
    return td.detach().abs()
