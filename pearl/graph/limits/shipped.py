"""The limits that `Limits` has as fields of its own. Their rows are in the solvers' programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pearl.graph.limits.record import Call, Limit


def _pinned(value: Mapping[str, str], calls: Sequence[Call]) -> bool:
    return all(value.get(t, c.device) == c.device for c in calls for t in c.tasks)


def _on_devices(value: Mapping[str, Sequence[str]], calls: Sequence[Call]) -> bool:
    return all(c.device in value.get(t, (c.device,)) for c in calls for t in c.tasks)


def _as_variants(value: Mapping[str, Sequence[str]], calls: Sequence[Call]) -> bool:
    return all(c.variant in value.get(t, (c.variant,)) for c in calls for t in c.tasks)


def _together(value: Sequence[tuple[str, str]], calls: Sequence[Call]) -> bool:
    on = {t: c.device for c in calls for t in c.tasks}
    return all(on[a] == on[b] for a, b in value if a in on and b in on)


def _apart(value: Sequence[tuple[str, str]], calls: Sequence[Call]) -> bool:
    on = {t: (c.device, c.lane) for c in calls for t in c.tasks}
    return all(on[a] != on[b] for a, b in value if a in on and b in on)


def _few_lanes(value: int, calls: Sequence[Call]) -> bool:
    return len({(c.device, c.lane) for c in calls}) <= value


SHIPPED = (
    Limit("together", "devices", "puts {name} on one device (together)", _together),
    Limit("apart", "lanes", "keeps {name} on separate lanes (apart)", _apart),
    Limit("variants", "", "has {name} allowed only as {value}", _as_variants),
    Limit("devices", "", "has {name} allowed only on {value}", _on_devices),
    Limit("pin", "", "has {name} pinned to {value}", _pinned),
    Limit(
        "max_lanes", "lanes", "has at most {value} lane{s} (max_lanes)", _few_lanes, kind="lanes"
    ),
    Limit("memory", "bytes", "fits into memory", field="memory_bytes"),
    Limit(
        "power",
        "W",
        "stays within the power limit of {value:.6g} W",
        field="power_w",
        single=False,
    ),
    Limit("period", "s", "meets period {value:.6g} s", field="period_s", single=False),
    Limit(
        "min_throughput",
        "/s",
        "meets min_throughput {value:.6g}",
        field="min_throughput_per_s",
        single=False,
    ),
)
"""In the order in which the search for a conflict leaves limits out: those that a user can change
most easily come last and stay in the conflict."""
