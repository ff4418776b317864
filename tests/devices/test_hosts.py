"""Platforms of several hosts: which devices they have, and what a message between two costs."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl.testing.graphs import devices
from pearl_devices import Link, Platform
from pearl_devices.hosts import join_hosts


def machine(*names: str, latency_s: float = 0.5, bytes_per_s: float = 4.0) -> Platform:
    """Devices around the first."""
    cables = tuple(Link(names[0], n, latency_s, bytes_per_s, 0.25, 0.125) for n in names[1:])
    return Platform("machine", devices(*names), cables)


def figures(link: Link) -> tuple[float, ...]:
    return link.latency_s, link.bytes_per_s, link.per_message_s, link.energy_j_per_byte


def seconds(platform: Platform, a: str, b: str, size: float = 8.0) -> float:
    """From the sending of a message to its arrival."""
    return math.fsum(k.latency_s + size / k.bytes_per_s for k in platform.route(a, b))


def test_a_message_to_another_host_takes_the_network_and_then_the_link_of_its_machine() -> None:
    two = replace(machine("gpu", "cpu"), host="cpu")  # its host device is not its first
    network = [Link("two", "one", 1.0, 4.0, 0.0625, 0.25, {"latency_s": "seen"})]
    platform = join_hosts("p", {"one": machine("cpu", "gpu"), "two": two}, network)
    (near,) = platform.route("one/cpu", "two/cpu")
    assert figures(near) == (1.0, 4.0, 0.0625, 0.25)
    assert near.sources == {"latency_s": "seen"}
    (far,) = platform.route("one/cpu", "two/gpu")
    assert figures(far) == (1.5, 2.0, 0.3125, 0.375)
    assert [figures(k) for k in platform.route("one/gpu", "two/gpu")] == [
        (0.5, 4.0, 0.25, 0.125),
        (1.5, 2.0, 0.3125, 0.375),
    ]


def test_what_a_lane_pays_for_on_the_machine_a_link_pays_for_over_the_network() -> None:
    two = machine("cpu", "gpu", "npu")
    two = replace(two, links=tuple(replace(k, paid_by="lane", band=(0.5, 2.0)) for k in two.links))
    cable = Link("one", "two", 1.0, 4.0, band=(0.75, 3.0))
    platform = join_hosts("p", {"one": machine("cpu"), "two": two}, [cable])
    (far,), (near,) = (platform.route(a, "two/gpu") for a in ("one/cpu", "two/cpu"))
    assert (far.band, near.band) == ((0.5, 3.0), (0.5, 2.0))
    assert [k.paid_by for k in platform.route("one/cpu", "two/gpu")] == ["link"]
    assert [k.paid_by for k in platform.route("two/cpu", "two/gpu")] == ["lane"]
    assert [k.paid_by for k in platform.route("two/gpu", "two/npu")] == ["lane"]


@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(1.0, 1e9)), min_size=4, max_size=4),
)
def test_a_way_costs_its_links_one_after_the_other(
    sizes: list[int], costs: list[tuple[float, float]]
) -> None:
    names = ("cpu", "gpu", "npu")
    hosts = {
        f"h{i}": machine(*names[:n], latency_s=costs[i][0], bytes_per_s=costs[i][1])
        for i, n in enumerate(sizes)
    }
    network = {f"h{i}": Link("h0", f"h{i}", *costs[-i]) for i in range(1, len(sizes))}
    platform = join_hosts("p", hosts, network.values())

    def inside(host: str, a: str, b: str) -> float:
        return seconds(hosts[host], a, b)

    def over(host: str) -> float:
        if host == "h0":
            return 0.0
        return network[host].latency_s + 8.0 / network[host].bytes_per_s

    for one, two in permutations(platform.devices, 2):
        a, b = one.name.partition("/")[2], two.name.partition("/")[2]
        if one.host == two.host:
            expected = inside(one.host, a, b)
        else:
            network_s = over(one.host) + over(two.host)
            expected = inside(one.host, a, "cpu") + network_s + inside(two.host, "cpu", b)
        assert seconds(platform, one.name, two.name) == pytest.approx(expected)
