"""Options that algorithms share, as frozen dataclasses checked by pydantic.

The `Options` of an algorithm subclass those of its family (`ReplayOptions`, `RolloutOptions`,
`tabular_options.TabularOptions`), or `Acting` if it builds its own graph:

    @dataclass(frozen=True, kw_only=True, config=STRICT)
    class Options(RolloutOptions):
        clip: StrictFloat = Field(default=0.2, ge=0, le=100, description="Where … is clipped.")

Every field except `name` and `env` has a default. This module has the shared groups of options
(`Adam`, `EpsilonGreedy`, …); `pearl.algorithms.fields` has types with their bounds (`Rate`,
`Share`, …).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

from pearl.algorithms import fields
from pearl.algorithms.fields import (
    Argument,
    Callable,
    EnvSteps,
    Hidden,
    Limit,
    OfHalfRange,
    Rate,
    Ratio,
    Share,
    Weight,
    Width,
)
from pearl.algorithms.learning_rates import LearningRate, RateSchedule
from pearl.algorithms.returns import Returns, returns_misfits
from pearl.algorithms.spaces import Spaces

STRICT = fields.STRICT

Disagreement = tuple[tuple[str, ...], str]
"""The keys of an option, and the sentence that names the other option it contradicts."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Widths:
    """Widths of the hidden layers of an actor and of its critics."""

    actor: Hidden = Field(description="Of the actor.")
    critic: Hidden = Field(description="Of every critic.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Replay:
    """The replay buffer."""

    kind: Literal["uniform", "prioritised"] = Field(
        default="uniform",
        description="How batches are drawn: uniform, or prioritised (Schaul et al. 2016).",
    )
    capacity: StrictInt = Field(
        default=100_000, ge=1, le=2**31, description="Transitions kept; the oldest are replaced."
    )
    fanout: StrictInt = Field(
        default=16, ge=2, le=64, description="Children of a node of the sum tree (prioritised)."
    )
    alpha: StrictFloat = Field(
        default=0.6, ge=0, le=4, description="Exponent of priorities, 0 = uniform (prioritised)."
    )
    beta: Share = Field(
        default=0.4, description="Importance exponent at the start of learning (prioritised)."
    )
    beta_final: Share = Field(
        default=1.0, description="Importance exponent at the end of training (prioritised)."
    )
    epsilon: StrictFloat = Field(
        default=1e-6, gt=0, le=1e3, description="Added to every |TD error| (prioritised)."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Target:
    """The update of target networks: exactly one of `tau` and `every`."""

    tau: Rate | None = Field(
        default=None, description="Share of the network mixed in at every gradient step."
    )
    every: StrictInt | None = Field(
        default=None, ge=1, le=10**9, description="Gradient steps between full copies."
    )

    def __post_init__(self) -> None:
        if (self.tau is None) == (self.every is None):
            raise ValueError("exactly one of tau and every")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Adam:
    """Constants of Adam (Kingma and Ba 2015)."""

    beta1: StrictFloat = Field(default=0.9, ge=0, lt=1, description="Decay of the mean.")
    beta2: StrictFloat = Field(default=0.999, ge=0, lt=1, description="Decay of the squared mean.")
    eps: StrictFloat = Field(default=1e-8, gt=0, le=1, description="Added to the denominator.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EpsilonGreedy:
    """Share of random actions: falls in a straight line, then stays."""

    initial: Share = Field(default=1.0, description="At the first env step.")
    final: Share = Field(default=0.05, description="From env step `steps` on.")
    steps: EnvSteps = Field(default=10_000, description="Env steps from the first to the last.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GaussianNoise:
    """Noise added to every action before it is clipped to the bounds."""

    noise: OfHalfRange = Field(
        default=0.1, description="Standard deviation, as a share of half the range."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Normalise:
    """Running mean and variance of observations and rewards, as in gymnasium's wrappers."""

    observations: StrictBool = Field(
        default=False, description="Subtract the mean and divide by the deviation."
    )
    rewards: StrictBool = Field(
        default=False,
        description="Divide rewards by the standard deviation of the discounted return.",
    )
    clip: Limit = Field(default=10.0, description="Normalised values are clipped here; 0: never.")
    epsilon: StrictFloat = Field(default=1e-8, gt=0, le=1, description="Added to every variance.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Acting:
    """Options of every algorithm."""

    name: StrictStr = Field(description="The algorithm.")
    env: StrictStr = Field(
        min_length=1,
        max_length=200,
        description="The environment: a gymnasium id, or `module:callable` that returns one.",
    )
    env_args: dict[str, Argument] = Field(
        default_factory=dict, description="Keyword arguments of the environment."
    )
    spaces: Spaces | None = Field(
        default=None, description="Spaces of the environment. Default: ask gymnasium."
    )
    num_envs: Width = Field(default=1, description="Environments stepped together, as one batch.")
    discount: Share = Field(default=0.99, description="Discount factor of one env step.")

    def disagreements(self) -> Iterator[Disagreement]:
        """Yield options that contradict each other, though each is allowed by itself."""
        return iter(())


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Deep(Acting):
    """Options of every algorithm with neural networks."""

    hidden: Hidden | Widths = Field(
        default=(64, 64),
        description="Widths of the hidden layers of every network, or {actor: […], critic: […]}.",
    )
    network: Callable | None = Field(
        default=None,
        description="`module:callable` that builds each network in torch, instead of hidden.",
    )
    frame_stack: StrictInt = Field(
        default=0,
        ge=0,
        le=256,
        description="Number of uint8 frames in an observation; a replay stores each frame once. "
        "0: observations are stored as the environment gives them.",
    )
    normalise: Normalise = Field(
        default_factory=Normalise, description="Running normalisation of observations and rewards."
    )
    max_grad_norm: Limit = Field(
        default=0.0, description="Maximum norm of the gradients; 0: no limit."
    )
    adam: Adam = Field(default_factory=Adam, description="Constants of the optimiser.")

    @property
    def rates(self) -> dict[str, LearningRate]:
        """The learning rates, by their keys."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if "learning_rate" in f.name
        }

    @property
    def scheduled(self) -> bool:
        """Return whether a learning rate has a schedule."""
        return any(isinstance(rate, RateSchedule) for rate in self.rates.values())

    def widths(self, network: Literal["actor", "critic"]) -> tuple[int, ...]:
        """Widths of the hidden layers of an actor or a critic."""
        hidden = self.hidden
        found: tuple[int, ...] = getattr(hidden, network) if isinstance(hidden, Widths) else hidden
        return found

    def disagreements(self) -> Iterator[Disagreement]:
        if self.frame_stack and self.normalise.observations:
            what = f"given {self.frame_stack}; frames are stored unchanged: leave"
            what += " normalise.observations off, and let the network scale them"
            yield ("frame_stack",), what
        for key, rate in self.rates.items():
            if isinstance(rate, RateSchedule) and rate.final > rate.initial:
                what = f"given {rate.final}; at most initial ({rate.initial}) is allowed"
                yield (key, "final"), what


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ReplayOptions(Deep):
    """Options of every algorithm with a replay."""

    @property
    def together(self) -> int:
        """Least vector steps between gradient steps."""
        return self.train_every or 1

    batch_size: StrictInt = Field(
        default=64, ge=1, le=2**20, description="Transitions of one gradient step."
    )
    replay_ratio: Ratio = Field(
        default=Fraction(1), description="Gradient steps per env step: 1, 0.25 or '1/4'."
    )
    train_every: Annotated[StrictInt, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="Minimum vector steps between gradient steps, which are then taken together; "
        "the policy stays the same in between (uniform replay). Default: 1; 16 for dqn with one "
        "environment and without replay_ratio.",
    )
    replay: Replay = Field(default_factory=Replay, description="The replay buffer.")
    n_step: StrictInt = Field(
        default=1, ge=1, le=1000, description="Rewards summed before the value is bootstrapped."
    )
    target: Target = Field(
        default_factory=lambda: Target(tau=0.005),
        description="How target networks follow. Give one of tau and every.",
    )
    huber: Limit = Field(
        default=0.0, description="Error from which the Huber loss is linear; 0: squared loss."
    )
    learning_starts: EnvSteps = Field(
        default=1000, description="Env steps with random actions before the first gradient step."
    )

    def disagreements(self) -> Iterator[Disagreement]:
        yield from super().disagreements()
        if self.together > 1 and self.replay.kind == "prioritised":
            what = f"given {self.together}; prioritised replay takes gradient steps one"
            yield ("train_every",), f"{what} by one: 1 is allowed"
        capacity, whole = self.replay.capacity, self.num_envs * self.n_step
        if capacity < self.batch_size:
            what = f"given {capacity}; at least batch_size ({self.batch_size}) is needed"
            yield ("replay", "capacity"), what
        if capacity < whole:
            what = f"given {capacity}; at least num_envs · n_step ({whole}) is needed, or no"
            yield ("replay", "capacity"), f"{what} transition is complete"
        if self.learning_starts < self.batch_size:
            what = f"at least batch_size ({self.batch_size}) is needed"
            yield ("learning_starts",), f"given {self.learning_starts}; {what}"
        if self.replay.beta_final < self.replay.beta:
            what = f"at least beta ({self.replay.beta}) is needed"
            yield ("replay", "beta_final"), f"given {self.replay.beta_final}; {what}"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ContinuousOptions(ReplayOptions):
    """Options of algorithms with a replay and continuous actions."""

    hidden: Hidden | Widths = Field(
        default=(256, 256),
        description="Widths of the hidden layers of every network, or {actor: […], critic: […]}.",
    )
    batch_size: StrictInt = Field(
        default=256, ge=1, le=2**20, description="Transitions of one gradient step."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RolloutOptions(Deep):
    """Options of the algorithms that learn from rollouts."""

    num_envs: Width = Field(default=8, description="Environments stepped together, as one batch.")
    rollout_steps: Width = Field(default=128, description="Vector steps of one rollout.")
    activation: Literal["tanh", "relu"] = Field(
        default="tanh", description="Activation of the hidden layers: tanh or relu."
    )
    returns: Returns = Field(
        default="gae",
        description="gae, monte_carlo (sums to the end of the rollout), or {n_step: n}.",
    )
    gae_lambda: Share = Field(
        default=0.95, description="Decay of the advantages' trace; 1 is the plain return."
    )
    entropy: Weight = Field(default=0.0, description="Weight of the policy's entropy in the loss.")
    value_weight: Weight = Field(
        default=0.5, description="Weight of the squared value error in the loss."
    )
    normalise_advantages: StrictBool = Field(
        default=True, description="Advantages of a minibatch get mean 0 and deviation 1."
    )
    max_grad_norm: Limit = Field(
        default=0.5,
        description="Maximum common norm of the gradients of both networks; 0: no limit.",
    )
    anneal: StrictBool = Field(
        default=False, description="Step size falls linearly to 0 over train.steps."
    )
    log_std: StrictFloat = Field(
        default=0.0,
        ge=-20,
        le=2,
        description="Continuous actions: logarithm of the first standard deviation, as a share of "
        "half the range, or in the action's own units if a bound is missing.",
    )

    def disagreements(self) -> Iterator[Disagreement]:
        yield from super().disagreements()
        yield from returns_misfits(self)
        if self.anneal and self.scheduled:
            what = "given true; learning_rate has another schedule: remove one of them"
            yield ("anneal",), what


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OwnExploration(EpsilonGreedy):
    """Exploration of a user-defined algorithm."""

    noise: OfHalfRange = Field(
        default=0.1,
        description="Continuous actions: standard deviation, as a share of half the range.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Own(ReplayOptions):
    """A user-defined algorithm with a replay (docs/own_algorithm.md), for all kinds of actions."""

    hidden: Hidden = Field(
        default=(64, 64), description="Widths of the hidden layers of every network."
    )
    learning_rate: LearningRate = Field(
        default=1e-3, description="Step size of every network's Adam."
    )
    exploration: OwnExploration = Field(
        default_factory=OwnExploration, description="Share of random actions, or noise."
    )
    options: dict[str, Argument] = Field(
        default_factory=dict, description="Keyword arguments of its losses."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OwnRollout(RolloutOptions):
    """A user-defined algorithm that learns from rollouts (docs/own_algorithm.md)."""

    learning_rate: LearningRate = Field(
        default=1e-3, description="Step size of every network's Adam."
    )
    epochs: StrictInt = Field(default=1, ge=1, le=1000, description="Passes over a rollout.")
    options: dict[str, Argument] = Field(
        default_factory=dict, description="Keyword arguments of its losses."
    )
