"""`Limits`: the plans that the user allows. Each limit is an entry of the table `LIMITS`.

A further limit is one file with `LIMIT`, and the file's name in `FILES` (CONTRIBUTING).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

from pearl.errors import SpecError
from pearl.graph.limits.record import Call, Limit, LimitProgram
from pearl.graph.limits.shipped import SHIPPED
from pearl_devices.validation import explain_misfit, is_names, is_number, is_whole, quote

__all__ = [
    "ADDED",
    "LIMITS",
    "SLACK_LIMITS",
    "Call",
    "Limit",
    "LimitProgram",
    "Limits",
    "Rule",
    "open_to_added",
    "time_limit_faults",
]

FILES: tuple[str, ...] = (
    # one name a line
)
"""Files of this folder with one more limit each, `LIMIT`."""

ADDED: tuple[Limit, ...] = tuple(import_module(f"{__name__}.{name}").LIMIT for name in FILES)
"""The limits of these files: whole numbers about the places of calls, and None by default."""

LIMITS = {limit.key: limit for limit in (*SHIPPED, *ADDED)}
"""Key in a spec → the limit."""

SLACK_LIMITS = ("policy_lag", "prefetch", "insertion_lag", "priority_staleness")

T = TypeVar("T")


def open_to_added(cls: type[T]) -> type[T]:
    """Give a class, before it becomes a dataclass, a field for each limit of `ADDED`."""
    for limit in ADDED:
        cls.__annotations__[limit.field] = int | None
        setattr(cls, limit.field, None)
    return cls


class Rule(NamedTuple):
    """A limit of `ADDED` with its value."""

    limit: Limit
    value: int

    def holds(self, calls: Sequence[Call]) -> bool:
        assert self.limit.holds is not None
        return self.limit.holds(self.value, calls)


@dataclass(frozen=True)
@open_to_added
class Limits:
    """Bounds on a plan. By default nothing is bounded except slack, which is 0.

    Attributes:
        power_w: largest average power.
        period_s: longest time of one iteration.
        min_throughput_per_s: least env steps per second (iterations for a graph that steps no
            environment).
        policy_lag: most param syncs by which actors lag.
        prefetch: most batches drawn ahead of the gradient step.
        insertion_lag: most vector steps that wait for insertion.
        priority_staleness: most gradient steps whose priorities a draw has not seen.
        memory_bytes: device → most bytes.
        devices: task → devices it may use.
        variants: task → variants it may use.
        pin: task → device.
        together: pairs of tasks on one device.
        apart: pairs of tasks that never share a lane, on one device or on two.
        env_groups: groups of environments, one per firing; part of the graph, not a bound.
        learners: learners with averaged gradients; part of the graph, not a bound.
        averaging: sweeps between two averages of tables (`algorithm.offline`), the tokens on the
            edge from average to learn; part of the graph, not a bound.
        reduction: how their gradients are averaged, star or shards; part of the graph. None: the
            one with the smaller predicted time.
        any_order: copies of the actors store rows in the order in which they are ready
            (`pearl.planner.async_plan`).
        max_lanes: most lanes of the whole plan (None: as many as the devices have), and most cores
            of one call; with 1, the plan runs in one thread.
        replicas: task → most copies that share its environments (default 1).
    """

    power_w: float | None = None
    period_s: float | None = None
    min_throughput_per_s: float | None = None
    policy_lag: int = 0
    prefetch: int = 0
    insertion_lag: int = 0
    priority_staleness: int = 0
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pin: Mapping[str, str] = field(default_factory=dict)
    together: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()
    env_groups: int = 1
    learners: int = 1
    averaging: int = 1
    reduction: Literal["star", "shards"] | None = None
    any_order: bool = False
    max_lanes: int | None = None
    replicas: Mapping[str, int] = field(default_factory=dict)

    @property
    def named_tasks(self) -> frozenset[str]:
        """The tasks that a limit names."""
        pairs = (task for pair in (*self.together, *self.apart) for task in pair)
        return frozenset((*self.devices, *self.variants, *self.pin, *self.replicas, *pairs))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The limits of `ADDED` that are set."""
        given = ((limit, getattr(self, limit.field)) for limit in ADDED)
        return tuple(Rule(limit, value) for limit, value in given if value is not None)

    def without_slack(self) -> Limits:
        """The same limits with no slack beyond that of the graph."""
        return replace(self, **dict.fromkeys(SLACK_LIMITS, 0))  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        problems = []
        for name in ("memory_bytes", "devices", "variants", "pin", "replicas"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                raise SpecError(f"limits: {name} is {quote(value)}; a mapping is needed")
            object.__setattr__(self, name, MappingProxyType(dict(value)))
        for name in ("devices", "variants"):
            problems += [
                f"limits: {name} of {task} are {quote(value)}; a tuple of names is needed"
                for task, value in getattr(self, name).items()
                if not is_names(value)
            ]
        problems += [
            f"limits: pin of {task} is {quote(value)}; the name of a device is needed"
            for task, value in self.pin.items()
            if not isinstance(value, str)
        ]
        for name in ("power_w", "period_s", "min_throughput_per_s"):
            value = getattr(self, name)
            if value is not None and (wrong := explain_misfit(value, above=True)):
                problems.append(f"limits: {name} {wrong}")
        counts = [(name, getattr(self, name), 0) for name in SLACK_LIMITS]
        counts += [(f"replicas of {task}", n, 1) for task, n in self.replicas.items()]
        counts += [("env_groups", self.env_groups, 1), ("learners", self.learners, 1)]
        counts += [("averaging", self.averaging, 1)]
        if self.max_lanes is not None:
            counts.append(("max_lanes", self.max_lanes, 1))
        counts += [(rule.limit.key, rule.value, rule.limit.least) for rule in self.rules]
        for name, number, least in counts:
            if not is_whole(number) or number < least:
                problems.append(
                    f"limits: {name} is {quote(number)}; it must be a whole number of at least "
                    f"{least}"
                )
        for name in ("together", "apart"):
            pairs = getattr(self, name)
            if not isinstance(pairs, list | tuple):
                raise SpecError(
                    f"limits: {name} is {quote(pairs)}; a tuple of pairs of tasks is needed"
                )
            for pair in pairs:
                if not is_names(pair) or len(pair) != 2:
                    problems.append(
                        f"limits: {name} has {quote(pair)}; each entry is a pair of tasks"
                    )
                elif name == "apart" and pair[0] == pair[1]:
                    problems.append(
                        f"limits: apart has {quote(pair)}; a task cannot be apart from itself"
                    )
        for device, size in self.memory_bytes.items():
            if size != math.inf and (wrong := explain_misfit(size, above=True)):
                problems.append(f"limits: memory of {device} {wrong}")
        if self.reduction not in (None, "star", "shards"):
            problems.append(
                f"limits: reduction is {quote(self.reduction)}; it is star, shards or None"
            )
        if not isinstance(self.any_order, bool):
            problems.append(f"limits: any_order is {quote(self.any_order)}; it is True or False")
        if problems:
            raise SpecError(*problems)


def time_limit_faults(time_limit_s: object) -> list[str]:
    """Return the fault of a time limit as a line; empty if there is none."""
    if time_limit_s == math.inf or (is_number(time_limit_s) and time_limit_s > 0):
        return []
    return [f"time_limit_s is {quote(time_limit_s)}; it must be seconds above 0"]
