"""`Limits`: what the user allows a plan to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pearl.errors import SpecError

SLACK_LIMITS = ("policy_lag", "prefetch", "insertion_lag", "priority_staleness")


@dataclass(frozen=True)
class Limits:
    """Bounds on a plan; the defaults bound nothing but slack, which is 0.

    power_w: average power at most. period_s: time of one iteration at most.
    min_throughput_per_s: env steps per second at least (iterations for a graph without env_step).
    policy_lag, prefetch, insertion_lag, priority_staleness: most slack of those edges, firings.
    memory_bytes: device → bytes at most. devices: task → devices it may use. variants: task →
    variants it may use. pin: task → device. together: pairs of tasks on one device.
    env_groups: groups of environments, one a firing; part of the graph and not a bound.
    any_order: rows of whichever copy of the actors is ready are stored next (`pearl.any_order`).
    max_lanes: lanes in the whole plan at most (None: as many as the devices have), and cores that
        one call may take: with 1, the plan runs in one thread.
    replicas: task → copies at most that its environments may be shared out among (default 1).
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
    env_groups: int = 1
    any_order: bool = False
    max_lanes: int | None = None
    replicas: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "devices", "variants", "pin", "replicas"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        problems = []
        for name in ("power_w", "period_s", "min_throughput_per_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                problems.append(f"limits: {name} is {value}; it must be finite and above 0")
        counts = [(name, getattr(self, name), 0) for name in SLACK_LIMITS]
        counts += [(f"replicas of {task}", n, 1) for task, n in self.replicas.items()]
        counts.append(("env_groups", self.env_groups, 1))
        if self.max_lanes is not None:
            counts.append(("max_lanes", self.max_lanes, 1))
        for name, number, least in counts:
            if not isinstance(number, int) or number < least:
                problems.append(
                    f"limits: {name} is {number!r}; it must be a whole number of at least {least}"
                )
        for pair in self.together:
            if isinstance(pair, str) or len(pair) != 2:
                problems.append(f"limits: together has {pair!r}; each entry is a pair of tasks")
        for device, size in self.memory_bytes.items():
            if not size > 0:
                problems.append(f"limits: memory of {device} is {size}; it must be above 0")
        if problems:
            raise SpecError(*problems)
