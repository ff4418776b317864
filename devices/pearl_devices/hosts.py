"""Platforms of several hosts: computers with their devices, joined by a network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import combinations

from pearl_devices.base import Device, Link, Platform

ADDED = ("latency_s", "per_message_s", "energy_j_per_byte")
"""Figures that add up when a message takes two links one after the other."""


def join_hosts(name: str, hosts: Mapping[str, Platform], network: Iterable[Link]) -> Platform:
    """Return one platform of several hosts.

    A device is called `host/device`. The first host is home: its host device is always on, and
    messages between two other hosts pass through it. A device of another host has one link to that
    device: the network link, joined with the link inside its machine if it is not the host device
    there. Devices of one host keep direct links, so their messages stay in that host.

    hosts: host → its machine, as a platform.
    network: links whose ends are hosts: home and another host.

    Raises:
        ValueError: a host has no link to home, a link has other ends, or `Platform` refuses.
    """
    home, *others = hosts
    cables: dict[str, Link] = {}
    for link in network:
        ends = {link.a, link.b}
        other = next((host for host in others if ends == {home, host}), None)
        if other is None:
            allowed = ", ".join(f"[{home}, {host}]" for host in others) or "none"
            raise ValueError(
                f"platform {name!r}: link {link.name} joins {link.a!r} and {link.b!r}; messages "
                f"between hosts pass the first host, {home!r}, so the allowed links between hosts "
                f"are those of {allowed}"
            )
        if other in cables:
            raise ValueError(
                f"platform {name!r}: two links join hosts {home!r} and {other!r}; one is allowed"
            )
        cables[other] = link
    if lacking := [host for host in others if host not in cables]:
        raise ValueError(
            f"platform {name!r}: no link joins host {home!r} and host {lacking[0]!r}; every host "
            f"needs one to {home!r}, the first: a link between {home!r} and {lacking[0]!r} with "
            "latency, per_message and bandwidth, or leave the host out"
        )
    devices: list[Device] = []
    links: list[Link] = []
    for host, machine in hosts.items():
        devices += (replace(d, name=f"{host}/{d.name}", host=host) for d in machine.devices)
        if host == home:
            links += (_between(k, f"{host}/{k.a}", f"{host}/{k.b}") for k in machine.links)
            continue
        hub, start = machine.host, f"{home}/{hosts[home].host}"
        for device in machine.devices:
            way = [cables[host], *machine.route(hub, device.name)]
            links.append(_between(_join_links(way), start, f"{host}/{device.name}"))
        for a, b in combinations([d.name for d in machine.devices], 2):
            links.append(_between(_join_links(machine.route(a, b)), f"{host}/{a}", f"{host}/{b}"))
    return Platform(name, tuple(devices), tuple(links), f"{home}/{hosts[home].host}")


def find_equivalents(devices: Iterable[Device], apart: Collection[str] = ()) -> dict[str, str]:
    """Device → the first device that differs only in name and host, so that both have the same
    estimates. Real devices and those in `apart` are timed separately."""
    found: dict[str, str] = {}
    kinds: list[Device] = []
    for d in devices:
        own = d.real or d.name in apart
        first = next((k for k in kinds if replace(k, name=d.name, host=d.host) == d), None)
        found[d.name] = d.name if own or first is None else first.name
        if not own and first is None:
            kinds.append(d)
    return found


def _between(link: Link, a: str, b: str) -> Link:
    return replace(link, a=a, b=b)


def _join_links(way: Iterable[Link]) -> Link:
    """One link that equals these links in a row: each passes on a message when it has all of it.
    The band is the widest one."""
    first, *rest = way
    for link in rest:
        named = sorted({*first.sources, *link.sources})
        given = {name: (first.sources.get(name), link.sources.get(name)) for name in named}
        first = replace(
            first,
            **{name: getattr(first, name) + getattr(link, name) for name in ADDED},
            bytes_per_s=1 / (1 / first.bytes_per_s + 1 / link.bytes_per_s),
            sources={n: "; then ".join(filter(None, texts)) for n, texts in given.items()},
            paid_by="link" if "link" in (first.paid_by, link.paid_by) else first.paid_by,
            band=(min(first.band[0], link.band[0]), max(first.band[1], link.band[1])),
        )
    return first
