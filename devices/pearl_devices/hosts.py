"""Platforms of several hosts: computers, each with its devices, joined by a network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import combinations

from pearl_devices.base import Device, Link, Platform

ADDED = ("latency_s", "per_message_s", "energy_j_per_byte")
"""Figures of a link that add up where a message takes two links one after the other."""


def of_hosts(name: str, hosts: Mapping[str, Platform], network: Iterable[Link]) -> Platform:
    """One platform of several hosts.

    A device is called `host/device`. The first host is home: its host device is always on, and the
    messages between two other hosts pass it. Each device of another host is one link away from that
    device: the network's, and for all but the other's own host device the link of their machine
    after it. Devices of one host stay one link apart, so that none of their messages leaves it.

    hosts: host → its machine, as a platform of its own.
    network: links whose ends are hosts, home and another.

    Raises:
        ValueError: a host has no link to home, or a link joins something else; or as `Platform`.
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
                f"between hosts pass {home!r}, the first of them, so the links between hosts are "
                f"those of {allowed}"
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
            links.append(_between(_joined(way), start, f"{host}/{device.name}"))
        for a, b in combinations([d.name for d in machine.devices], 2):
            links.append(_between(_joined(machine.route(a, b)), f"{host}/{a}", f"{host}/{b}"))
    return Platform(name, tuple(devices), tuple(links), f"{home}/{hosts[home].host}")


def alike(devices: Iterable[Device], apart: Collection[str] = ()) -> dict[str, str]:
    """Device → the first that differs from it in name and host alone, so that estimates of one are
    those of the other. Real ones, and those in `apart`, are timed each for itself."""
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


def _joined(way: Iterable[Link]) -> Link:
    """The link that is as good as these one after the other: each passes a message on once it has
    all of it. Its band is the wider one."""
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
