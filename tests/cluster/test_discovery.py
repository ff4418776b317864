"""The running cluster as a platform: its nodes are hosts, each with its devices and its times."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pearl.cluster import discovery, links, timing
from pearl.cluster.connection import Node
from pearl.errors import SpecError
from pearl.planner.planner import plan
from pearl.spec.reading import load
from pearl_devices import Device, Link, platform_json
from pearl_estimators.host.calibration import versions
from tests.ray_cluster import Cluster

NODE = Node("b", "2" * 8, "10.0.0.2", 3, 1, 1e9)
CPU = Device("cpu", "cpu", width=4, max_lanes=4, real=True, peak_flops_per_s=4e9)
GPUS = tuple(replace(CPU, name=f"gpu{i}", kind="gpu", width_unit="sm") for i in range(2))


def answer(**changed: str) -> dict[str, Any]:
    """What a node says, of which these versions are others."""
    cables = [Link("cpu", gpu.name, 1e-5, 1e10) for gpu in GPUS]
    return {
        "devices": [platform_json.plain(d) for d in (CPU, *GPUS)],
        "links": [platform_json.plain(k) for k in cables],
        "versions": {**versions(), **changed},
    }


def test_a_node_has_the_cores_and_gpus_that_ray_hands_out_there() -> None:
    found = discovery._machine(NODE, answer())
    cpu, gpu = found.devices
    assert (cpu.width, cpu.max_lanes, cpu.peak_flops_per_s, cpu.real) == (3, 3, 3e9, True)
    assert cpu.sources["width"] == "3 of 4 cores, as Ray allocates on this node"
    assert (gpu.name, gpu.real) == ("gpu0", False)
    assert [k.name for k in found.links] == ["cpu-gpu0"]
    assert discovery._machine(replace(NODE, cores=8, gpus=0), answer()).devices == (CPU,)


def test_a_node_of_other_versions_is_named_with_the_remedy() -> None:
    with pytest.raises(SpecError) as caught:
        discovery._machine(NODE, answer(numpy="1.0.0"))
    (problem,) = caught.value.problems
    assert problem.startswith("node b (10.0.0.2) has numpy 1.0.0, this machine ")
    assert "install the same version on both" in problem


def test_without_a_cluster_a_spec_is_refused_at_its_platform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing() -> None:
        raise SpecError("no Ray cluster runs on this machine; start one")

    monkeypatch.setattr(discovery.connection, "connect", nothing)
    with pytest.raises(SpecError) as caught:
        load("dqn_cartpole", set={"platform": "ray"})
    (problem,) = caught.value.problems
    assert "given 'ray'; no Ray cluster runs on this machine" in problem


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_cluster_is_planned_for_by_its_own_times_and_links(
    two_nodes: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(links, "path", lambda: tmp_path / "links.json")
    monkeypatch.setattr(timing, "EACH_S", 0.02)
    found = {each.carrier: each for each in links.measure(sizes=(64, 4096, 65_536))}
    assert list(found) == ["tcp", "ray"]
    for each in found.values():
        assert (each.home, each.other) == ("a", "b")
        assert [t.size_bytes for t in each.timings] == [64, 4096, 65_536]
        assert 0 < each.latency_s < 1
        assert 0 < each.per_message_s < 1
    by_ray = load("dqn_cartpole", set={"platform": "ray", "train.carrier": "ray"}).platform
    (link,) = by_ray.route("a/cpu", "b/cpu")
    assert link.latency_s == found["ray"].link.latency_s
    system = load("dqn_cartpole", set={"platform": "ray"})
    assert system.raw["platform"] == "ray"
    platform = system.platform
    assert [(d.name, d.host, d.real) for d in platform.devices] == [
        ("a/cpu", "a", True),
        ("b/cpu", "b", True),
    ]
    assert platform.device("b/cpu").width == 1
    (link,) = platform.route("a/cpu", "b/cpu")
    assert link.latency_s == found["tcp"].link.latency_s
    assert link.sources["latency_s"].startswith("measured ")
    planned = plan(system)
    assert {t.device for t in planned.tasks} == {"a/cpu"}
    assert "a alone" in planned.note
    assert planned.problem is not None
    sources = [m.estimate.source for m in planned.problem.costs.modes if m.device == "b/cpu"]
    assert all(text.startswith(("calibrated on b ", "sum of its ")) for text in sources)
