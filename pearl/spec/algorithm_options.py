"""The options of each algorithm, as frozen dataclasses checked by pydantic.

A new algorithm is a subclass of `Acting`, `Deep` or `Algorithm`, and a line in `MODELS` and
`DISCRETE`; one of the user's own, named by its module, has the options of `Own`.
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

CALLABLE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
"""`module:callable`."""

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


def _callable(given: object) -> str:
    if not isinstance(given, str) or not CALLABLE.fullmatch(given):
        raise ValueError("module:callable, such as my_package.networks:cnn")
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
Callable = Annotated[
    str, PlainValidator(_callable), WithJsonSchema({"type": "string", "pattern": CALLABLE.pattern})
]
Module = Annotated[
    str, PlainValidator(_module), WithJsonSchema({"type": "string", "pattern": MODULE.pattern})
]
Width = Annotated[StrictInt, Field(ge=1, le=65536)]
Hidden = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
Shape = Annotated[tuple[Width, ...], Field(min_length=1, max_length=8)]
Rate = Annotated[StrictFloat, Field(gt=0, le=1)]
Share = Annotated[StrictFloat, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spaces:
    """Sizes of the environment's spaces, so that gymnasium need not be asked."""

    obs: StrictInt = Field(
        default=0, ge=0, le=10**7, description="Size of the flattened observation."
    )
    shape: Shape | None = Field(
        default=None, description="Its axes, for a network of your own; by default one."
    )
    states: StrictInt = Field(
        default=0,
        ge=0,
        le=2**24,
        description="Instead of obs: how many discrete observations there are.",
    )
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
class Normalise:
    """Running mean and variance of what the environments give, as in gymnasium's wrappers."""

    observations: StrictBool = Field(
        default=False, description="Observations: less their mean, by their standard deviation."
    )
    rewards: StrictBool = Field(
        default=False,
        description="Rewards: by the standard deviation of the discounted return.",
    )
    clip: StrictFloat = Field(
        default=10.0, ge=0, le=1e6, description="Where either is clipped; 0 is off."
    )
    epsilon: StrictFloat = Field(default=1e-8, gt=0, le=1, description="Added to every variance.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Acting:
    """What every algorithm takes."""

    name: StrictStr = Field(description="An algorithm (`pearl list algorithms`), or a module.")
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
    discount: Share = Field(default=0.99, description="Discount factor of one env step.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Deep(Acting):
    """What every algorithm with neural networks takes."""

    hidden: Hidden = Field(
        default=(64, 64), description="Widths of the hidden layers of every network."
    )
    normalise: Normalise = Field(
        default_factory=Normalise, description="Running normalisation of observations and rewards."
    )
    max_grad_norm: StrictFloat = Field(
        default=0.0, ge=0, le=1e6, description="Norm that gradients are clipped to; 0 is off."
    )
    adam: Adam = Field(default_factory=Adam, description="Constants of the optimiser.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Algorithm(Deep):
    """What every algorithm with a replay takes."""

    network: Callable | None = Field(
        default=None,
        description="`module:callable` that builds each network in torch, instead of hidden.",
    )
    batch_size: StrictInt = Field(
        default=64, ge=1, le=2**20, description="Transitions of one gradient step."
    )
    replay_ratio: Ratio = Field(
        default=Fraction(1),
        description="Gradient steps per env step: 1, 0.25 or '1/4'.",
    )
    replay: Replay = Field(default_factory=Replay, description="The replay buffer.")
    frame_stack: StrictInt = Field(
        default=0,
        ge=0,
        le=256,
        description="Frames of uint8 that an observation is a stack of; each is then stored once. "
        "0: observations are stored as the environment gives them.",
    )
    n_step: StrictInt = Field(
        default=1, ge=1, le=1000, description="Rewards summed before the value is bootstrapped."
    )
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
    learning_starts: StrictInt = Field(
        default=1000,
        ge=1,
        le=10**12,
        description="Env steps of random action before the first gradient step.",
    )


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
class Tabular(Acting):
    """What the tabular algorithms take. Discrete observations and actions."""

    learning_rate: Rate = Field(default=0.1, description="Step size of an entry's first update.")
    learning_rate_power: Share = Field(
        default=0.0,
        description="The n-th update of an entry takes learning_rate / n^power; 0 is constant.",
    )
    initial_value: StrictFloat = Field(
        default=0.0, ge=-1e9, le=1e9, description="What the table holds at first."
    )
    exploration: EpsilonGreedy = Field(
        default_factory=EpsilonGreedy, description="Share of random actions."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QLearning(Tabular):
    """Tabular Q-learning (Watkins 1989)."""

    name: Literal["q_learning"] = Field(default="q_learning", description="The algorithm.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sarsa(Tabular):
    """Tabular SARSA (Rummery and Niranjan 1994)."""

    name: Literal["sarsa"] = Field(default="sarsa", description="The algorithm.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OnPolicy(Deep):
    """What the algorithms that learn from rollouts take."""

    num_envs: StrictInt = Field(
        default=8, ge=1, le=65536, description="Environments stepped together, as one batch."
    )
    rollout_steps: StrictInt = Field(
        default=128, ge=1, le=65536, description="Vector steps of one rollout."
    )
    activation: Literal["tanh", "relu"] = Field(
        default="tanh", description="Of the hidden layers: tanh or relu."
    )
    gae_lambda: Share = Field(
        default=0.95, description="Decay of the advantages' trace; 1 is the plain return."
    )
    entropy: StrictFloat = Field(
        default=0.0, ge=0, le=1e3, description="Weight of the policy's entropy in the loss."
    )
    value_weight: StrictFloat = Field(
        default=0.5, ge=0, le=1e3, description="Weight of the squared value error in the loss."
    )
    normalise_advantages: StrictBool = Field(
        default=True, description="Advantages of a minibatch get mean 0 and deviation 1."
    )
    max_grad_norm: StrictFloat = Field(
        default=0.5,
        ge=0,
        le=1e6,
        description="Norm that the gradients of both networks are clipped to; 0 is off.",
    )
    anneal: StrictBool = Field(
        default=False, description="Let the step size fall in a line to 0 over train.steps."
    )
    log_std: StrictFloat = Field(
        default=0.0,
        ge=-20,
        le=2,
        description="Continuous actions: logarithm of the first standard deviation, as a share of "
        "half the range.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ppo(OnPolicy):
    """PPO (Schulman et al. 2017). Discrete or continuous, bounded actions."""

    name: Literal["ppo"] = Field(default="ppo", description="The algorithm.")
    learning_rate: Rate = Field(default=2.5e-4, description="Step size of Adam.")
    epochs: StrictInt = Field(
        default=4, ge=1, le=1000, description="Passes over a rollout, each in a new order."
    )
    minibatches: StrictInt = Field(
        default=4, ge=1, le=65536, description="Equal parts of a rollout, a gradient step each."
    )
    clip: StrictFloat = Field(
        default=0.2, ge=0, le=100, description="Where the ratio is clipped; 0 is off."
    )
    value_clip: StrictFloat = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="How far a value may move from what it was; 0 is off.",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RmsProp:
    """Constants of RMSprop, as Mnih et al. 2016 have it: the constant is inside the root."""

    decay: StrictFloat = Field(default=0.99, gt=0, lt=1, description="Decay of the squared mean.")
    eps: StrictFloat = Field(default=1e-5, gt=0, le=1, description="Added to the squared mean.")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class A2c(OnPolicy):
    """A2C (Mnih et al. 2016). Discrete or continuous, bounded actions."""

    name: Literal["a2c"] = Field(default="a2c", description="The algorithm.")
    rollout_steps: StrictInt = Field(
        default=5, ge=1, le=65536, description="Vector steps of one rollout."
    )
    gae_lambda: Share = Field(
        default=1.0, description="Decay of the advantages' trace; 1 is the plain return."
    )
    normalise_advantages: StrictBool = Field(
        default=False, description="Advantages of a rollout get mean 0 and deviation 1."
    )
    learning_rate: Rate = Field(default=7e-4, description="Step size of the optimiser.")
    optimiser: Literal["rmsprop", "adam"] = Field(
        default="rmsprop", description="rmsprop, as in the paper, or adam."
    )
    rmsprop: RmsProp = Field(default_factory=RmsProp, description="Constants of RMSprop.")


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


MODELS: Mapping[str, type[Acting]] = {
    "dqn": Dqn,
    "ddpg": Ddpg,
    "td3": Td3,
    "sac": Sac,
    "ppo": Ppo,
    "a2c": A2c,
    "q_learning": QLearning,
    "sarsa": Sarsa,
}
"""Algorithm → the model of its options; the keys of `pearl.algorithms.ALGORITHMS`."""

TABULAR = ("q_learning", "sarsa")
"""Algorithms that keep a table, so that they need discrete observations."""

DISCRETE = {
    "dqn": True,
    "ddpg": False,
    "td3": False,
    "sac": False,
    "q_learning": True,
    "sarsa": True,
}
"""Algorithm → whether its actions are discrete. One that is absent takes either."""


def tag(given: object) -> str:
    """Which model an algorithm's options have: a key of MODELS, or `own` for a module."""
    name = given.get("name") if isinstance(given, Mapping) else getattr(given, "name", None)
    return str(name) if name in MODELS else "own"
