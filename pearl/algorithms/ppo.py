"""PPO (Schulman et al. 2017) with generalised advantages (Schulman et al. 2016), for discrete
actions (soft-max) and continuous ones (a Gaussian whose deviations do not depend on the state).

In execution order: the networks and their loop (`graph`), the first values (`initialise`), the loss
of one minibatch (`losses`). Acting samples from the policy; evaluation takes the likeliest action,
or the mean. Continuous actions are sampled on a scale with bounds at −1 and 1, and not clipped;
only the environment gets them clipped and in its own units.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field, StrictFloat, StrictInt
from pydantic.dataclasses import dataclass

from pearl.algorithms.families.rollout import build, log_prob_and_entropy, normal, start
from pearl.algorithms.fields import Limit, Width
from pearl.algorithms.learning_rates import LearningRate
from pearl.algorithms.options import STRICT, Adam, Disagreement, RolloutOptions
from pearl.graph.task_graph import TaskGraph
from pearl_devices import Buffers
from pearl_devices.primitives import KL_MARGIN

if TYPE_CHECKING:
    from pearl.spec.system import System

FAMILY = "rollout"
ACTIONS = "both"
POLICY = "actor"

MINIBATCH = 64
"""Default rows of a minibatch (Schulman et al. 2017, table 3)."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(RolloutOptions):
    """PPO (Schulman et al. 2017). Discrete or continuous, bounded actions."""

    rollout_steps: Width = Field(default=256, description="Vector steps of one rollout.")
    learning_rate: LearningRate = Field(default=3e-4, description="Step size of Adam.")
    epochs: StrictInt = Field(
        default=10, ge=1, le=1000, description="Passes over a rollout, each in a new order."
    )
    minibatches: Width | None = Field(
        default=None,
        description="Equal parts of a rollout, one gradient step each. Default: parts of "
        f"{MINIBATCH} rows or more.",
    )
    adam: Adam = Field(
        default_factory=lambda: Adam(eps=1e-5), description="Constants of the optimiser."
    )
    clip: StrictFloat = Field(
        default=0.2, ge=0, le=100, description="Bound of the clipped ratio; 0: no clipping."
    )
    value_clip: Limit = Field(default=0.0, description="Maximum change of a value; 0: no limit.")

    target_kl: Limit = Field(
        default=0.0,
        description="Divergence from the acting policy. Above 1.5 times this value the gradient "
        "steps of a rollout end; 0: no limit.",
    )

    @property
    def parts(self) -> int:
        """Number of minibatches of a rollout."""
        rows = self.rollout_steps * self.num_envs
        most = max(rows // MINIBATCH, 1)
        return self.minibatches or next(n for n in range(most, 0, -1) if rows % n == 0)

    def disagreements(self) -> Iterator[Disagreement]:
        yield from super().disagreements()
        rows = self.rollout_steps * self.num_envs
        if self.minibatches and rows % self.minibatches:
            what = f"a divisor of rollout_steps · num_envs ({rows}) is needed"
            yield ("minibatches",), f"given {self.minibatches}; {what}"


def graph(system: System) -> TaskGraph:
    """Return the task graph of PPO on this system: one firing of learn does all epochs of a
    rollout."""
    a = system.algorithm
    return build(
        system,
        "ppo",
        losses="pearl.algorithms.ppo:losses",
        epochs=a.epochs,
        minibatches=a.parts,
        extra={"stops": 1} if a.target_kl else {},
        by_row=True,
    )


def initialise(buffers: Buffers, system: System, seed: int) -> None:
    """Fill the arrays of a fresh run."""
    a = system.algorithm
    start(buffers, system, seed, updates=a.epochs * a.parts)
    buffers["hyper.clip"][:] = a.clip
    buffers["hyper.value_clip"][:] = a.value_clip
    buffers["hyper.rmsprop"][:] = 0.0, 0.0  # Adam
    if a.target_kl:
        buffers["hyper.target_kl"][:] = a.target_kl


def losses(
    nets: Any, batch: Any, hyper: Any
) -> Generator[tuple[tuple[str, ...], tuple[Any, ...]] | None, None, None]:
    """Compute one minibatch in torch: yield the losses of actor and critic, which move together; or
    yield None to end the gradient steps if mean(r − 1 − log r) is above 1.5 times `target_kl`.

    The actor's loss is mean(−min(r · A, clip(r) · A)) − entropy · mean(H), with r the ratio of the
    action's density now to that when it was sampled (equation 7 of the paper). The critic's is
    value_weight · mean((V − R)²). With value_clip, (V − R)² is replaced by the larger of itself and
    the same with V held within value_clip of its old value.
    """
    import torch

    log_prob, entropy = log_prob_and_entropy(nets, batch)
    if getattr(hyper, "target_kl", 0.0) > 0:
        moved = (log_prob - batch.log_prob).detach()
        if float((moved.exp() - 1 - moved).mean()) > KL_MARGIN * hyper.target_kl:
            yield None
            return
    ratio = torch.exp(log_prob - batch.log_prob)
    advantage = normal(batch.advantage) if hyper.normalise else batch.advantage
    gain = ratio * advantage
    if hyper.clip > 0:
        gain = torch.minimum(gain, ratio.clamp(1 - hyper.clip, 1 + hyper.clip) * advantage)
    value = nets.critic(batch.obs)
    error = (value - batch.returns).square()
    if hyper.value_clip > 0:
        moved = (value - batch.value).clamp(-hyper.value_clip, hyper.value_clip)
        error = torch.maximum(error, (batch.value + moved - batch.returns).square())
    actor = -gain.mean() - hyper.entropy * entropy.mean()
    yield ("actor", "critic"), (actor, hyper.value_weight * error.mean())
