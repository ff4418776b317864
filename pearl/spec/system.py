"""`System`: what a spec says, resolved; and `EnvSpec`, what is known of its environment.
`StaticSpec` is what a spec says without its environment having been asked."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pearl.graph.limits import Limits
from pearl.spec.models import Objective, Train
from pearl_devices import Platform


@dataclass(frozen=True)
class EnvSpec:
    """An environment and the sizes of its spaces.

    id: gymnasium id or `module:callable`. args: its keyword arguments. obs: size of the flattened
    observation; shape: its axes, before; stack: how many frames it is made of, 0 if it is whole.
    states: how many discrete observations there are, 0 if they are not discrete (flattened, they
    are one-hot). pixels: (first, end) of the components of the flattened observation that are
    scaled from 0 … 255 to 0 … 1. note: what is done to observations before a network sees them, in
    words.
    actions: how many discrete actions, 0 if there are others. act: components of a continuous or
    factored action, else 0; act_low, act_high: bounds of a continuous one, one number a component,
    infinite where there are none; choices: how many choices each component of a factored one has.
    start: the first number of a discrete action, or of each component, as the environment counts
    them; () where all are 0.
    max_episode_steps: env steps after which an episode is cut; None: never.
    threshold: return from which gymnasium counts it as solved (`reward_threshold`); None: it says
    none, or the spec states the spaces.
    """

    id: str
    args: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    obs: int = 1
    shape: tuple[int, ...] = ()
    states: int = 0
    actions: int = 0
    act: int = 0
    act_low: tuple[float, ...] = ()
    act_high: tuple[float, ...] = ()
    max_episode_steps: int | None = None
    stack: int = 0
    choices: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    pixels: tuple[tuple[int, int], ...] = ()
    note: str = ""
    threshold: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        object.__setattr__(self, "shape", self.shape or (self.obs,))


@dataclass(frozen=True)
class StaticSpec:
    """A spec, read and checked as far as that goes without importing anything that it names.

    path: its file, None for a mapping. sha256: of the canonical JSON of `raw`. algorithm: the
    options of its algorithm, the `Options` of its module (`pearl.algorithms`).
    raw: the spec as plain data with every default and the platform written out; `load(raw)` gives
    this system again.
    """

    name: str
    path: str | None
    sha256: str
    algorithm: Any
    platform: Platform
    objective: Objective
    limits: Limits
    train: Train
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class System(StaticSpec):
    """A spec, read and checked. env: its environment, as the spec or gymnasium has it."""

    env: EnvSpec

    def with_steps(self, steps: int) -> System:
        """Return the same system with this many `train.steps`, which schedules follow; `raw`
        stays.
        """
        train = copy(self.train)  # `replace` would read its quantities again, with their units
        object.__setattr__(train, "steps", steps)
        return replace(self, train=train)
