"""Devices, links and platforms: their limits, what they compute, and what a platform refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_devices import Device, Link, Platform
from pearl_devices.cache_folder import doubts
from pearl_devices.platform_json import from_json, to_json

CPU, GPU, NPU = (Device(name) for name in ("cpu", "gpu", "npu"))


def joined(*names: tuple[str, str], **more: Any) -> Platform:
    """A platform of the three devices with these links."""
    return Platform("p", (CPU, GPU, NPU), tuple(Link(a, b, 1.0, 1.0) for a, b in names), **more)


STAR = (("cpu", "gpu"), ("cpu", "npu"))


@pytest.mark.parametrize(("make", "said"), [
    (lambda: Platform("p", ()), "platform 'p' has no device; it needs at least one"),
    (lambda: Platform("p", (CPU, GPU, CPU)), "device names repeat: ['cpu', 'gpu', 'cpu']"),
    (lambda: joined(host="tpu"), "host 'tpu' is no device of it; it has ['cpu', 'gpu', 'npu']"),
    (lambda: joined(("cpu", "tpu")), "link cpu-tpu names 'tpu'; it has"),
    (lambda: joined(("tpu", "cpu")), "link tpu-cpu names 'tpu'; it has"),
    (lambda: joined(*STAR, ("gpu", "cpu")), "two links join gpu and cpu; one is allowed"),
    (lambda: joined(("cpu", "gpu")), "no link joins cpu and npu; every device needs a link to"),
    (
        lambda: Platform("p", (Device("a"), Device("b-c"), Device("a-b"), Device("c")), (
            Link("a", "b-c", 1.0, 1.0), Link("a-b", "c", 1.0, 1.0))),
        "the link of 'a' and 'b-c' and that of 'a-b' and 'c' are both called 'a-b-c'; a plan",
    ),
    (
        lambda: Platform("p", (Device("a"), Device("b.3"), Device("a-b")), (
            Link("a", "b.3", 1.0, 1.0), Link("a", "a-b", 1.0, 1.0))),
        "the link of 'a' and 'b.3' is called 'a-b.3', like a lane of device 'a-b'; a plan",
    ),
    (lambda: joined(*STAR).device("tpu"), "has no device 'tpu'; it has ['cpu', 'gpu', 'npu']"),
    (lambda: Link("a", "a", 1.0, 1.0), "link a-a: both ends are 'a'; a link joins two devices"),
    (lambda: Link("a", "b", 1.0, 1.0, paid_by="all"), "paid_by is 'all'; it must be 'link',"),
    (lambda: Link("a", "b", 1.0, 0.0), "bytes_per_s is 0.0; it must be finite and above 0"),
    (lambda: Link("a", "b", 1.0, 1.0, -1.0), "per_message_s is -1.0; it must be finite and"),
    (lambda: Link("a", "b", 1.0, 1.0, 0.0, -1.0), "energy_j_per_byte is -1.0; it must be"),
    (lambda: Link("a", "b", 1.0, 1.0, band=(1.0,)), "band is (1.0,); it must be two numbers"),
    (lambda: Link("a", "b", 1.0, 1.0, band=("a", 1)), "band is ('a', 1); it must be two num"),
    (lambda: Link("a", "b", 1.0, 1.0, band=(0, 1)), "band is (0, 1); its low end must be abo"),
    (lambda: Link("a", "b", 1.0, 1.0, band=(1, 0.9)), "band is (1, 0.9); its low end must be"),
    (lambda: Device("d", width=0), "width is 0; it must be a whole number above 0"),
    (lambda: Device("d", max_lanes=0), "max_lanes is 0; it must be a whole number above 0"),
    (lambda: Device("d", peak_flops_per_s=0), "peak_flops_per_s is 0; it must be finite and a"),
    (lambda: Device("d", memory_bytes_per_s=0), "memory_bytes_per_s is 0; it must be finite"),
    (lambda: Device("d", memory_bytes=0), "memory_bytes is 0; it must be finite and above 0"),
    (lambda: Device("d", unit_memory_bytes=0), "unit_memory_bytes is 0; it must be finite an"),
    (lambda: Device("d", overhead_s=-1), "overhead_s is -1; it must be finite and at least 0"),
    (lambda: Device("d", figures={"x": -1}), "figure x is -1; it must be finite and at least"),
    (lambda: Device("d", idle_power_w=2.0, active_power_w=1.0), "busy cannot draw less than i"),
    (lambda: Device("d", context_power_w=2, active_power_w=1), "busy cannot draw less than w"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises((ValueError, KeyError)) as error:
        make()
    assert said in str(error.value)


def test_what_is_at_a_limit_is_taken() -> None:
    least = Device(
        "d", width=1, max_lanes=1, peak_flops_per_s=1e-30, memory_bytes=1e-30, figures={"x": 0},
        idle_power_w=3.0, active_power_w=3.0, context_power_w=3.0,
    )  # fmt: skip
    assert least.waiting_power_w == 3.0
    assert Link("a", "b", 0.0, 1e-30, band=(1, 1)).band == (1, 1)
    assert Link("a", "b", 0.0, 1.0, band=(0.1, 9)).band == (0.1, 9)
    # "b" is no number of a lane, and no device is called "a-c"
    for name in ("a-b.c", "a-c.0"):
        a, b = name.split("-")
        devices = (Device(a), Device(b), Device("a-b"))
        links = (Link(a, b, 1.0, 1.0), Link(a, "a-b", 1.0, 1.0))
        assert Platform("p", devices, links).device("a-b") is devices[2]


def test_a_message_crosses_a_direct_link_or_two_by_the_host() -> None:
    platform = joined(*STAR, host="cpu")
    to_gpu, to_npu = platform.links
    assert platform.route("gpu", "gpu") == ()
    assert platform.route("gpu", "cpu") == platform.route("cpu", "gpu") == (to_gpu,)
    assert platform.route("gpu", "npu") == (to_gpu, to_npu)
    assert joined(*STAR).host == "cpu"
    direct = joined(*STAR, ("npu", "gpu"))
    assert direct.route("gpu", "npu") == (direct.links[2],)
    assert joined(("gpu", "cpu"), ("gpu", "npu"), host="gpu").host == "gpu"


def test_a_device_with_the_hosts_memory_needs_no_link() -> None:
    shared = replace(GPU, unified_memory=True, overhead_s=2e-6)
    cpu = replace(CPU, unified_memory=True)
    found = Platform("p", (cpu, shared, NPU), (Link("cpu", "npu", 1.0, 1.0),))
    told = "unified memory: the time in which gpu starts a kernel"
    sources = {"latency_s": told, "bytes_per_s": "unified memory: nothing is copied"}
    handed = Link("cpu", "gpu", 2e-6, 1e30, sources=sources, band=(0.5, 3.0))
    assert found.links == (Link("cpu", "npu", 1.0, 1.0), handed)
    linked = Platform("p", (cpu, shared), (Link("cpu", "gpu", 1.0, 1.0),))
    assert len(linked.links) == 1


def test_idle_watts_depend_on_what_a_plan_uses() -> None:
    watts = {"idle_power_w": 2.0, "context_power_w": 5.0, "active_power_w": 9.0}
    cpu, gpu = replace(CPU, **watts), replace(GPU, **watts)
    npu = replace(NPU, **watts, when_unused="off")
    platform = replace(joined(*STAR), devices=(cpu, gpu, npu))
    assert platform.idle_w() == {"cpu": 5.0, "gpu": 2.0, "npu": 0.0}
    assert platform.idle_w(["npu", "gpu"]) == {"cpu": 5.0, "gpu": 5.0, "npu": 5.0}
    assert Device("d", idle_power_w=2.0, active_power_w=9.0).waiting_power_w == 2.0


def test_a_platform_survives_json() -> None:
    gpu = replace(GPU, figures={"x": 1.0}, sources={"x": "s"}, memory_bytes=5.0)
    platform = replace(joined(*STAR, host="cpu"), devices=(CPU, gpu, NPU))
    plain = to_json(platform)
    assert "memory_bytes" not in plain["devices"][0]
    assert plain["devices"][1]["figures"] == {"x": 1.0}
    assert from_json(plain) == platform


@pytest.mark.parametrize(("mode", "owner", "said"), [
    (0o040755, 0, ""),
    (0o040700, 7, ""),
    (0o040770, 7, "others may write it (`chmod 700` ends that)"),
    (0o040702, 0, "others may write it (`chmod 700` ends that)"),
    (0o040700, 8, "it belongs to user 8"),
    (0o100700, 7, "it is no folder"),
    (0o120777, 7, "it is no folder"),
])  # fmt: skip
def test_a_folder_that_others_can_write_is_doubted(
    mode: int, owner: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    folder: Any = SimpleNamespace(lstat=lambda: SimpleNamespace(st_mode=mode, st_uid=owner))
    assert doubts(folder) == said
