"""`spaces:` of a spec: the spaces of an environment."""

from __future__ import annotations

from pydantic import Field, StrictInt
from pydantic.dataclasses import dataclass

from pearl.algorithms.fields import STRICT, Bounds, Choices, Shape


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spaces:
    """Sizes of the environment's spaces, so that PEARL need not ask gymnasium."""

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
    states_start: StrictInt = Field(
        default=0, ge=-(2**31), lt=2**31, description="Number of the first discrete observation."
    )
    actions: StrictInt = Field(default=0, ge=0, le=10**6, description="How many discrete actions.")
    act: StrictInt = Field(default=0, ge=0, le=10**6, description="Size of a continuous action.")
    low: Bounds | None = Field(
        default=None,
        description="Lower bounds of a continuous action: one number, or one each; or none.",
    )
    high: Bounds | None = Field(default=None, description="Upper bounds, one or one per component.")
    choices: Choices | None = Field(
        default=None,
        description="Instead of actions: of an action of several discrete components, how many "
        "choices each has.",
    )
    start: StrictInt = Field(
        default=0, ge=-(2**31), lt=2**31, description="Number of the first discrete action."
    )
    max_episode_steps: StrictInt | None = Field(
        default=None, ge=1, description="Env steps after which an episode is cut; none by default."
    )
