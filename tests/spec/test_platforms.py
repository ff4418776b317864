"""Platform files: sourced numbers with units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pearl.errors import SpecError
from pearl.planner.planner import plan
from pearl.spec.catalogue import catalogue
from pearl.spec.checks import read_shipped
from pearl.spec.platform_entries import YOURS
from pearl.spec.platform_files import read_platform, unfold
from pearl.spec.reading import load
from pearl.spec.yaml_reader import parse
from pearl_devices import BACKENDS, Platform, backend, discover

PLATFORMS = read_shipped("pearl_configs.platforms")
BASE = "algorithm: {name: dqn, env: E-v0, spaces: {obs: 4, actions: 2}}\n"
DQN: dict[str, Any] = yaml.safe_load(BASE)["algorithm"]
DEVICE = {"kind": "cpu", "source": "datasheet", "width": 2, "peak": "1 TFLOP/s",
          "memory_bandwidth": "10 GB/s", "overhead": "1 us", "idle_power": "1 W",
          "active_power": "10 W"}  # fmt: skip


def read(name: str) -> Platform:
    platform, _, problems = read_platform(parse(PLATFORMS[name].encode(), name).data)
    assert problems == []
    assert platform is not None
    return platform


def problems_of(spec: dict[str, object]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(spec)
    return list(caught.value.problems)


@pytest.mark.parametrize("name", sorted(PLATFORMS))
def test_every_number_of_a_shipped_platform_has_a_source(name: str) -> None:
    platform = read(name)
    for device in platform.devices:
        numbers = {"width", "max_lanes", "memory_bytes", "peak_flops_per_s", "memory_bytes_per_s",
                   "overhead_s", "idle_power_w", "active_power_w", *device.figures}  # fmt: skip
        assert {n for n in numbers if device.sources.get(n, YOURS) == YOURS} == set()
    for link in platform.links:
        numbers = {"latency_s", "bytes_per_s", "per_message_s", "energy_j_per_byte"}
        assert {n for n in numbers if link.sources.get(n, YOURS) == YOURS} == set()


def test_the_docs_count_what_the_catalogue_assumes() -> None:
    devices = [read_platform({"devices": {"d": dict(d)}})[0] for d in catalogue().values()]
    sources = [s for found in devices if found for s in found.devices[0].sources.values()]
    assumed = sum("assumed" in source for source in sources)
    text = " ".join((Path(__file__).parents[2] / "docs/own_device.md").read_text().split())
    assert f"Of the {len(sources)} numbers there {len(sources) - assumed} name a page" in text
    assert f"{assumed} are assumed in part or whole" in text


@pytest.mark.parametrize("name", sorted(PLATFORMS))
def test_a_shipped_platform_names_itself_is_not_here_and_reads_back_equal(name: str) -> None:
    platform, entry, _ = read_platform(parse(PLATFORMS[name].encode(), name).data)
    assert entry is not None
    assert platform is not None
    assert (platform.name, any(device.real for device in platform.devices)) == (name, False)
    again, _, problems = read_platform(unfold(entry, name))
    assert problems == []
    assert again == platform


@pytest.mark.parametrize("kind", BACKENDS)
def test_unit_and_simulation_of_a_device_are_those_of_its_kind(kind: str) -> None:
    known = (entry for entry in catalogue().values() if entry["kind"] == kind)
    figures = next((entry["figures"] for entry in known if "figures" in entry), {})
    described = {"devices": {"a": {**DEVICE, "kind": kind, "figures": figures}}}
    platform, _, problems = read_platform(described)
    assert platform is not None, problems
    (device,) = platform.devices
    found = backend(kind)
    assert (device.width_unit, device.simulated) == (found.WIDTH_UNIT, found.SIMULATED)


OWN_FPGA = {**DEVICE, "kind": "fpga", "width": 1000}


def test_a_design_is_chosen_where_the_device_is_declared() -> None:
    links = [{"between": ["cpu", "fpga"], "latency": "1 us", "bandwidth": "1 GB/s"}]
    for name, design in (("agilex_agf014", ""), ("agilex_agf014_released", "released")):
        given = {"devices": {"cpu": DEVICE, "fpga": name}, "links": links}
        platform, entry, problems = read_platform(given)
        assert problems == []
        assert platform is not None
        assert entry is not None
        assert platform.device("fpga").design == design
        again, _, _ = read_platform(unfold(entry, "again"))
        assert again is not None
        assert again.device("fpga") == platform.device("fpga")
    ours, theirs = (catalogue()[n] for n in ("agilex_agf014", "agilex_agf014_released"))
    assert {**ours, "design": "released"} == theirs  # the same board


def test_a_board_of_another_maker_is_planned_for() -> None:
    figures = {"clock_hz": "300 MHz", "ram_blocks": 2000, "ram_block_bits": "36864 bit",
               "ram_word_bits": "72 bit", "float32_cycles": 4}  # fmt: skip
    board = {**OWN_FPGA, "figures": figures}
    link = {"between": ["cpu", "board"], "source": "s", "latency": "1 us", "bandwidth": "9 GB/s"}
    found = plan(load({"algorithm": DQN,
                       "platform": {"devices": {"cpu": DEVICE, "board": board}, "links": [link]},
                       "limits": {"pin": {"learn": "board"}}}),
                 method="heft")  # fmt: skip
    assert found.task("learn").device == "board"
    assert found.task("learn").rung == "closed_form"


def test_a_device_with_unified_memory_needs_no_link_and_copies_nothing() -> None:
    devices = {"cpu": "apple_m2", "gpu": "apple_m2_gpu"}
    limits = {"pin": {"learn": "gpu"}}
    spec = {"algorithm": DQN, "platform": {"devices": devices}, "limits": limits}
    found = plan(load(spec), method="heft")
    assert found.task("learn").device == "gpu"
    (link,) = load(spec).platform.links
    gpu = load(spec).platform.device("gpu")
    assert (link.latency_s, link.per_message_s, link.energy_j_per_byte) == (gpu.overhead_s, 0, 0)
    assert all(k.load < 1e-9 for k in found.lanes if k.lane == link.name)
    (problem,) = problems_of({**spec, "platform": {"devices": {**devices, "gpu": "rtx_4090"}}})
    assert "no link joins cpu and gpu" in problem


def test_a_null_device_without_a_time_is_a_sentence_in_a_plan() -> None:
    system = load({"algorithm": DQN,
                   "platform": {"devices": {"cpu": {**DEVICE, "kind": "null"}}}})  # fmt: skip
    with pytest.raises(SpecError, match=r"platform inline: device 'cpu' of kind null gives no ti"):
        plan(system)


def test_a_platform_file_is_found_beside_the_spec_and_names_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text(yaml.safe_dump({"devices": {"cpu": DEVICE}}))
    spec = tmp_path / "spec.yaml"
    spec.write_text(BASE + "platform: box.yaml\n")
    system = load(spec)
    assert system.platform.name == "box"
    assert system.platform.devices[0].peak_flops_per_s == 1e12
    (tmp_path / "box.yaml").write_text("devices:\n  cpu:\n    kind: cqu\n")
    with pytest.raises(SpecError) as caught:
        load(spec)
    assert caught.value.problems[0] == (
        f"{tmp_path / 'box.yaml'}:2: devices.cpu.width: missing; "
        "needed: cores of a CPU, SMs of a GPU, processing elements"
    )
    wrong = f"{tmp_path / 'box.yaml'}:3: devices.cpu.kind: given 'cqu' (did you mean cpu?)"
    assert wrong in str(caught.value)


def test_here_is_the_cpu_of_this_machine() -> None:
    given = {"devices": {"board": "t4", "host": "here"}, "host": "host",
             "links": [{"between": ["host", "board"], "source": "s", "latency": "1 us",
                        "bandwidth": "1 GB/s"}]}  # fmt: skip
    platform, _, problems = read_platform(given)
    assert not problems
    assert platform is not None
    assert [d.real for d in platform.devices] == [False, True]
    assert platform.device("host") == replace(discover.cpu(), name="host")


CABLE = {"source": "seen", "latency": "1 ms", "per_message": "500 us",
         "bandwidth": "100 MB/s"}  # fmt: skip
LOCAL = {"source": "s", "latency": "1 us", "bandwidth": "1 GB/s"}


def two_hosts() -> dict[str, Any]:
    return {"hosts": {"desk": {"devices": {"cpu": "here"}},
                      "node2": {"devices": {"cpu": dict(DEVICE), "gpu": "t4"},
                                "links": [{"between": ["cpu", "gpu"], **LOCAL}]}},
            "links": [{"between": ["desk", "node2"], **CABLE}]}  # fmt: skip


def test_a_file_of_two_hosts_is_one_platform() -> None:
    platform, _, problems = read_platform(two_hosts(), default_name="two")
    assert not problems
    assert platform is not None
    assert {d.name: (d.host, d.real) for d in platform.devices} == {
        "desk/cpu": ("desk", True),
        "node2/cpu": ("node2", False),
        "node2/gpu": ("node2", False),
    }
    assert (platform.name, platform.host) == ("two", "desk/cpu")
    (near,) = platform.route("desk/cpu", "node2/cpu")
    assert (near.latency_s, near.per_message_s, near.bytes_per_s) == (1e-3, 5e-4, 1e8)
    (far,) = platform.route("desk/cpu", "node2/gpu")
    assert far.latency_s == pytest.approx(1e-3 + 1e-6)
    assert far.sources["latency_s"] == "seen; then s"


def test_an_unfolded_file_of_hosts_reads_back_equal_this_machine_too() -> None:
    platform, entry, _ = read_platform(two_hosts(), default_name="two")
    assert entry is not None
    written = unfold(entry, "two")
    assert written["hosts"]["desk"]["devices"] == {"cpu": "here"}
    again, _, problems = read_platform(written)
    assert problems == []
    assert again == platform


def test_a_spec_names_devices_of_hosts_by_both() -> None:
    spec = {
        "algorithm": DQN,
        "platform": two_hosts(),
    }
    system = load({**spec, "limits": {"pin": {"learn": "desk/cpu"}}})
    assert load(system.raw).platform == system.platform
    with pytest.raises(SpecError) as caught:
        load({**spec, "limits": {"pin": {"learn": "cpu"}}})
    (problem,) = caught.value.problems
    assert "no device 'cpu'" in problem
    assert "allowed are desk/cpu, node2/cpu, node2/gpu" in problem


def test_the_platform_of_hosts_in_the_docs_reads() -> None:
    page = (Path(__file__).parents[2] / "docs/cluster.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    platform, _, problems = read_platform(yaml.safe_load(text))
    assert problems == []
    assert platform is not None
    assert [d.name for d in platform.devices] == ["desk/cpu", "node2/cpu", "node2/gpu"]
