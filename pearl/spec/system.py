"""`System`: a resolved spec; `EnvSpec`: its environment; `StaticSpec`: a spec that was checked
without its environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pearl.graph.limits import Limits
from pearl.spec.models import Objective, Train
from pearl_devices import Platform
from pearl_devices.primitives.envs.border import ObservationPart


@dataclass(frozen=True)
class EnvSpec:
    """An environment and the sizes of its spaces.

    id: gymnasium id or `module:callable`.
    args: keyword arguments of the environment.
    obs: size of the flattened observation.
    shape: axes of the observation before flattening.
    stack: number of frames of an observation; 0 if it is no stack.
    parts: of the observation before flattening, in the order of the flat one; one of `shape` if the
        spec states the spaces.
    states: number of discrete observations; 0 if observations are not discrete. Flattened, discrete
        observations are one-hot.
    pixels: (first, end) of the components of the flattened observation that are scaled from 0 … 255
        to 0 … 1.
    units: if all parts of observations are uint8, how many are 1.0 to a network: 255 for images
        that are scaled, else 1; 0 for other observations.
    note: in words, how observations change before a network reads them.
    actions: number of discrete actions; 0 for other actions.
    act: components of a continuous or factored action, else 0.
    act_low, act_high: bounds of each component of a continuous action; infinite without a bound.
    choices: number of choices of each component of a factored action.
    start: the first number of a discrete action, or of each component, as the environment counts;
        () if all are 0.
    max_episode_steps: env steps after which an episode is cut; None: never.
    threshold: return from which gymnasium counts it as solved (`reward_threshold`); None without
        such a return, or if the spec states the spaces.
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
    units: int = 0
    note: str = ""
    threshold: float | None = None
    parts: tuple[ObservationPart, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        object.__setattr__(self, "shape", self.shape or (self.obs,))
        object.__setattr__(self, "parts", self.parts or (ObservationPart((), self.shape),))


@dataclass(frozen=True)
class StaticSpec:
    """A spec that was read and checked without importing any code that it names.

    path: its file, None for a mapping.
    sha256: of the canonical JSON of `raw`.
    algorithm: the options of its algorithm, the `Options` of its module (`pearl.algorithms`).
    raw: the spec as plain data with every default and the platform; `load(raw)` gives this system
        again.
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
    """A spec, read and checked. env: its environment, from the spec or gymnasium."""

    env: EnvSpec

    def with_steps(self, steps: int) -> System:
        """Return the same system with this many `train.steps`, which schedules follow; `raw` is
        unchanged.
        """
        train = copy(self.train)  # `replace` would read its quantities again, with their units
        object.__setattr__(train, "steps", steps)
        return replace(self, train=train)


def no_learning_warning(spec: StaticSpec, steps: int | None) -> str | None:
    """Return the warning that a run takes no gradient step, because it ends before learning starts;
    None if it takes some.

    steps: env steps of the run; None: the spec's `train.steps`.
    """
    starts = getattr(spec.algorithm, "learning_starts", 0)
    total = spec.train.steps if steps is None else steps
    if not starts or starts < total:
        return None
    return (
        f"algorithm.learning_starts is {starts} and the run has {total} env steps, so it takes no "
        "gradient step and learns nothing: give more steps, or a smaller learning_starts"
    )
