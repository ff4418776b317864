"""Interchangeable devices: an exchange changes the value of no plan."""

from __future__ import annotations

from collections.abc import Sequence

from pearl.solvers.model.search_space import SearchSpace
from pearl_devices import Device


def find_orbits(space: SearchSpace, kept: Sequence[Sequence[int]]) -> list[list[str]]:
    """Return the sets of two or more interchangeable devices.

    Such devices have the same limits and power, the same links to every other device, and for every
    unit the same modes. The host is in no set, nor a device that a pair term names.

    kept: the options of each unit that count.
    """
    p = space
    platform = p.costs.platform
    named = {key[0] for pair in p.costs.pair_extra_s for _, key in pair}
    offers: dict[str, list[tuple[float, ...]]] = {d.name: [] for d in platform.devices}
    for u, options in enumerate(kept):
        for o in options:
            m = p.options[u][o]
            e = m.estimate
            offers[m.device].append(
                (u, e.latency_s, e.occupancy_s, e.energy_j, m.width, m.unit_bytes)
            )
    links = {frozenset((k.a, k.b)): k for k in platform.links}

    def cable(a: str, b: str) -> object:
        k = links.get(frozenset((a, b)))
        if k is None:
            return None
        return k.latency_s, k.bytes_per_s, k.per_message_s, k.energy_j_per_byte, k.paid_by

    def itself(d: Device) -> object:
        limits = p.lanes[d.name], d.width, p.capacity_bytes[d.name]
        return (
            limits,
            p.unit_capacity_bytes[d.name],
            d.idle_power_w,
            d.waiting_power_w,
            d.when_unused,
            sorted(offers[d.name]),
        )

    orbits: list[list[Device]] = []
    for d in platform.devices:
        if d.name == platform.host or d.name in named:
            continue
        for orbit in orbits:
            first = orbit[0]
            others = [o.name for o in platform.devices if o not in orbit and o is not d]
            inner = {cable(a.name, b.name) for a in [*orbit, d] for b in [*orbit, d] if a is not b}
            if (
                itself(d) == itself(first)
                and len(inner) == 1
                and all(cable(d.name, o) == cable(first.name, o) for o in others)
            ):
                orbit.append(d)
                break
        else:
            orbits.append([d])
    return [[d.name for d in orbit] for orbit in orbits if len(orbit) > 1]
