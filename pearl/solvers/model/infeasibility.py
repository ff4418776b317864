"""Error texts for tasks that no device can run under the limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.graph.period import Expansion, Unit
from pearl.planning.costs import Mode
from pearl.planning.problem import Problem
from pearl.solvers.model.state_memory import states_of
from pearl_devices import Device, Platform, arrays_on_host, offers
from pearl_devices.base import OPT_IN_VARIANTS


def no_mode_error(unit: Unit, problem: Problem, read_bytes: float) -> InfeasibleError:
    """Return the error for a unit without a mode. read_bytes: of the channels that it reads, at
    their least capacities."""
    costs, limits = problem.costs, problem.limits
    offered = sorted({m.device for m in costs.of(*unit)})
    least: dict[str, float] = {}
    for m in costs.of(*unit):
        least[m.device] = min(m.unit_bytes + read_bytes, least.get(m.device, math.inf))
    room = {d: costs.platform.device(d).unit_memory_bytes for d in offered}
    if offered and all(least[d] > room[d] for d in offered):
        return InfeasibleError(
            "; ".join(
                f"memory of a unit of {d} is too small: {'+'.join(unit)} needs at least "
                f"{least[d]:.3g} bytes on each unit{_held(read_bytes)}, and a unit has "
                f"{room[d]:.3g} bytes: add a mode that uses more units, or needs less memory on "
                "each"
                for d in offered
            ),
            [
                {"kind": "memory", "name": d, "need": least[d], "limit": room[d], "unit": "bytes"}
                for d in offered
            ],
        )
    restrictions = [
        f"{key} {dict(value)[t] if not isinstance(value[t], str) else value[t]!r}"
        for t in unit
        for key, value in (
            ("pinned to", limits.pin),
            ("devices", limits.devices),
            ("variants", limits.variants),
        )
        if t in value
    ] + [f"{rule.limit.key} {rule.value}" for rule in limits.rules]
    reason = (
        f"the cost table has modes on {offered}, the limits require {', '.join(restrictions)}"
        if offered and restrictions
        else "no device has an estimate for it"
        if not offered
        else f"none of its modes on {offered} can be used"
    )
    return InfeasibleError(
        f"task {'+'.join(unit)!r} has no mode left: {reason}",
        [{"kind": "task", "name": "+".join(unit), "need": 1, "limit": 0, "unit": "modes"}],
    )


def no_common_device_error(
    names: Sequence[str],
    reasons: Mapping[str, str],
    options: Sequence[Sequence[Mode]],
    members: Sequence[int],
    limits: Limits,
    x: Expansion,
) -> InfeasibleError:
    ties = sorted({reasons[t] for t in names if t in reasons})
    where = "; ".join(
        f"{'+'.join(x.units[u])}: {sorted({m.device for m in options[u]})}"
        + "".join(f" (pinned to {limits.pin[t]})" for t in x.units[u] if t in limits.pin)
        for u in members
    )
    return InfeasibleError(
        f"tasks {', '.join(names)} must run on one device ({', '.join(ties)}), but no device "
        f"can run all of them: {where}",
        [
            {
                "kind": "together",
                "name": ", ".join(names),
                "need": 1,
                "limit": 0,
                "unit": "devices",
            }
        ],
    )


def memory_error(
    x: Expansion,
    members: Sequence[int],
    size: float,
    channels: float,
    capacity: Mapping[str, float],
    platform: Platform,
) -> InfeasibleError:
    """Return the error for tasks whose states and channels do not fit.

    size, channels: bytes in all, and of the channels. capacity: bytes of the devices that all of
    the tasks may use.
    """
    names = {t for u in members for t in x.units[u]}
    states = states_of(x, names)
    sizes = ", ".join(f"state {s} needs {x.graph.states[s]:.3g} bytes" for s in states)
    tasks = ", ".join(t.name for t in x.graph.tasks if t.name in names)
    lines = "; ".join(
        f"memory of {d} is too small: {sizes or 'scratch'}, with tasks {tasks} {size:.3g} bytes in "
        f"all{_held(channels)}, limit {limit:.3g} bytes" + smaller(x, names, platform.device(d))
        for d, limit in capacity.items()
    )
    return InfeasibleError(
        lines,
        [
            {"kind": "memory", "name": d, "need": size, "limit": limit, "unit": "bytes"}
            for d, limit in capacity.items()
        ],
    )


def _held(size: float) -> str:
    """Return the part that channels have in a need of memory."""
    return f" (channels into them hold {size:.3g} bytes at least)" if size else ""


def smaller(x: Expansion, names: set[str], device: Device) -> str:
    """Return the opt-in variants with which these tasks would keep arrays in the host's memory."""
    kernels = [t.kernel for t in x.graph.tasks if t.name in names]
    offered = ((k, v) for k in kernels for v, _ in offers(k, device) if v in OPT_IN_VARIANTS)
    variants = dict.fromkeys(v for k, v in offered if arrays_on_host(k, device.kind, v))
    return "".join(f"; the variant {v} (limits.variants) {OPT_IN_VARIANTS[v]}" for v in variants)
