"""The options of each algorithm, as frozen dataclasses checked by pydantic.

A new algorithm is a subclass of `Algorithm` and a line in `MODELS` and `DISCRETE`; one of the
user's own, named by its module, has the options of `Own`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)
from pydantic.dataclasses import dataclass

MODULE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
"""The path of a module inside a package."""

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


def _ratio(given: object) -> Fraction:
    """A replay ratio: a whole number, a number, or text such as '1/4'."""
    allowed = (
        "a number above 0 such as 1, 0.25 or '1/4', with numerator and denominator at most 1000"
    )
    if isinstance(given, bool) or not isinstance(given, str | int | float | Fraction):
        raise ValueError(allowed)
    try:
        # str() of a float first: 0.1 means 1/10, not the nearest binary fraction.
        ratio = Fraction(str(given)) if len(str(given)) <= 40 else None
    except (ValueError, ZeroDivisionError):
        ratio = None
    if ratio is None or not (0 < ratio <= 1000 and max(ratio.as_integer_ratio()) <= 1000):
        raise ValueError(allowed)
    return ratio


def _argument(given: object) -> str | int | float | bool:
    if not isinstance(given, str | int | float | bool):
        raise ValueError("text, a number, or true or false")
    return given


def _module(given: object) -> str:
    if not isinstance(given, str) or not MODULE.fullmatch(given):
        raise ValueError("the path of a module, with a dot, such as my_package.my_algorithm")
    return given


def _bounds(given: object) -> tuple[float, ...]:
    numbers = given if isinstance(given, list | tuple) else [given]
    whole = [float(n) for n in numbers if isinstance(n, int | float) and not isinstance(n, bool)]
    if not numbers or len(whole) < len(numbers):
        raise ValueError("a number, or a list of one number per action component")
    return tuple(whole)


Ratio = Annotated[
    Fraction,
    PlainValidator(_ratio),
    PlainSerializer(lambda r: r.numerator if r.denominator == 1 else str(r)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": "^[0-9.]+(/[0-9]+)?$"},
            ]
        }
    ),
]
Argument = Annotated[
    Any,
    PlainValidator(_argument),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Bounds = Annotated[
    tuple[float, ...],
    PlainValidator(_bounds),
    PlainSerializer(list),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}),
]
Module = Annotated[
    str, PlainValidator(_module), WithJsonSchema({"type": "string", "pattern": MODULE.pattern})
]
Width = Annotated[StrictInt, Field(ge=1, le=65536)]
Hidden = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
Rate = Annotated[StrictFloat, Field(gt=0, le=1)]
Share = Annotated[StrictFloat, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spaces:
    """Sizes of the environment's spaces, so that gymnasium need not be asked."""

    obs: StrictInt = Field(ge=1, le=10**7, description="Size of the flattened observation.")
    actions: StrictInt = Field(default=0, ge=0, le=10**6, description="How many discrete actions.")
    act: StrictInt = Field(default=0, ge=0, le=10**6, description="Size of a continuous action.")
    low: Bounds | None = Field(
        default=None, description="Lower bounds of a continuous action: one number, or one each."
    )
    high: Bounds | None = Field(default=None, description="Upper bounds, likewise.")
    max_episode_steps: StrictInt | None = Field(
        default=None, ge=1, description="Env steps after which an episode is cut; none by default."
    )


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
        default=0.6,
        ge=0,
        le=4,
        description="Exponent of priorities, 0 = uniform (prioritised).",
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
    """How target networks follow: exactly one of `tau` and `every`."""

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
    steps: StrictInt = Field(
        default=10_000, ge=1, le=10**12, description="Env steps from the first to the last."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GaussianNoise:
    """Noise added to every action before it is clipped to the bounds."""

    noise: StrictFloat = Field(
        default=0.1, ge=0, le=10, description="Standard deviation, as a share of half the range."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Algorithm:
    """What every algorithm with a replay takes."""

    name: StrictStr = Field(description="The algorithm: dqn, ddpg, td3, sac, or a module.")
    env: StrictStr = Field(
        min_length=1,
        max_length=200,
        description="The environment: a gymnasium id, or `module:callable` that returns one.",
    )
    env_args: dict[str, Argument] = Field(
        default_factory=dict, description="Keyword arguments of the environment."
    )
    spaces: Spaces | None = Field(
        default=None, description="Sizes of its spaces; without them gymnasium is asked."
    )
    num_envs: StrictInt = Field(
        default=1, ge=1, le=65536, description="Environments stepped together, as one batch."
    )
    hidden: Hidden = Field(
        default=(64, 64), description="Widths of the hidden layers of every network."
    )
    batch_size: StrictInt = Field(
        default=64, ge=1, le=2**20, description="Transitions of one gradient step."
    )
    replay_ratio: Ratio = Field(
        default=Fraction(1),
        description="Gradient steps per env step: 1, 0.25 or '1/4'.",
    )
    replay: Replay = Field(default_factory=Replay, description="The replay buffer.")
    n_step: StrictInt = Field(
        default=1, ge=1, le=1000, description="Rewards summed before the value is bootstrapped."
    )
    discount: Share = Field(default=0.99, description="Discount factor of one env step.")
    target: Target = Field(
        default_factory=lambda: Target(tau=0.005),
        description="How target networks follow: exactly one of tau and every.",
    )
    huber: StrictFloat = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Where the Huber loss turns linear; 0 is the squared loss.",
    )
    max_grad_norm: StrictFloat = Field(
        default=0.0, ge=0, le=1e6, description="Norm that gradients are clipped to; 0 is off."
    )
    learning_starts: StrictInt = Field(
        default=1000,
        ge=1,
        le=10**12,
        description="Env steps of random action before the first gradient step.",
    )
    adam: Adam = Field(default_factory=Adam, description="Constants of the optimiser.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Dqn(Algorithm):
    """DQN (Mnih et al. 2015), double by default (van Hasselt et al. 2016). Discrete actions."""

    name: Literal["dqn"] = Field(default="dqn", description="The algorithm.")
    learning_rate: Rate = Field(default=2.5e-4, description="Step size of Adam.")
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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ddpg(Algorithm):
    """DDPG (Lillicrap et al. 2016). Continuous, bounded actions."""

    name: Literal["ddpg"] = Field(default="ddpg", description="The algorithm.")
    actor_learning_rate: Rate = Field(default=1e-3, description="Step size of the actor's Adam.")
    critic_learning_rate: Rate = Field(default=1e-3, description="Step size of the critic's Adam.")
    exploration: GaussianNoise = Field(
        default_factory=GaussianNoise, description="Noise of the actions."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Smoothing:
    """Noise added to the target policy's action."""

    noise: StrictFloat = Field(
        default=0.2, ge=0, le=10, description="Standard deviation, as a share of half the range."
    )
    limit: StrictFloat = Field(
        default=0.5, ge=0, le=10, description="Where the noise is clipped, as a share likewise."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Td3(Algorithm):
    """TD3 (Fujimoto, van Hoof, Meger 2018). Continuous, bounded actions."""

    name: Literal["td3"] = Field(default="td3", description="The algorithm.")
    actor_learning_rate: Rate = Field(default=1e-3, description="Step size of the actor's Adam.")
    critic_learning_rate: Rate = Field(default=1e-3, description="Step size of the critics' Adam.")
    policy_delay: StrictInt = Field(
        default=2, ge=1, le=1000, description="Gradient steps to one of the actor and the targets."
    )
    smoothing: Smoothing = Field(
        default_factory=Smoothing, description="Noise of the target policy's actions."
    )
    exploration: GaussianNoise = Field(
        default_factory=GaussianNoise, description="Noise of the actions."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sac(Algorithm):
    """SAC (Haarnoja et al. 2018b), automatic temperature. Continuous, bounded actions."""

    name: Literal["sac"] = Field(default="sac", description="The algorithm.")
    actor_learning_rate: Rate = Field(default=3e-4, description="Step size of the actor's Adam.")
    critic_learning_rate: Rate = Field(default=1e-3, description="Step size of the critics' Adam.")
    temperature_learning_rate: StrictFloat = Field(
        default=1e-3, ge=0, le=1, description="Step size of the temperature's Adam; 0 keeps it."
    )
    temperature: StrictFloat = Field(
        default=1.0, gt=0, le=1e6, description="Temperature at the start: the weight of entropy."
    )
    target_entropy: StrictFloat | None = Field(
        default=None,
        ge=-1e6,
        le=1e6,
        description="Entropy the temperature holds, of actions scaled to -1 … 1; by default minus "
        "the number of the action's components.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OwnExploration(EpsilonGreedy):
    """How an algorithm of the user's own explores."""

    noise: StrictFloat = Field(
        default=0.1,
        ge=0,
        le=10,
        description="Continuous actions: standard deviation, as a share of half the range.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Own(Algorithm):
    """An algorithm of the user's own (docs/own_algorithm.md). Whatever actions it can take."""

    name: Module = Field(description="Its module, such as my_package.my_algorithm.")
    learning_rate: Rate = Field(default=1e-3, description="Step size of every network's Adam.")
    exploration: OwnExploration = Field(
        default_factory=OwnExploration, description="Share of random actions, or noise."
    )
    options: dict[str, Argument] = Field(
        default_factory=dict, description="Keyword arguments of its losses."
    )


MODELS: Mapping[str, type[Algorithm]] = {"dqn": Dqn, "ddpg": Ddpg, "td3": Td3, "sac": Sac}
"""Algorithm → the model of its options; the keys of `pearl.algorithms.ALGORITHMS`."""

DISCRETE = {"dqn": True, "ddpg": False, "td3": False, "sac": False}
"""Algorithm → whether its actions are discrete. One that is absent takes either."""


def tag(given: object) -> str:
    """Which model an algorithm's options have: a key of MODELS, or `own` for a module."""
    name = given.get("name") if isinstance(given, Mapping) else getattr(given, "name", None)
    return str(name) if name in MODELS else "own"
