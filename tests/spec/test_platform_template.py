"""`pearl init --platform`: a platform written out from the catalogue reads back as it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl.spec.catalogue import catalogue, read_lines
from pearl.spec.platform_entries import count_unsourced
from pearl.spec.platform_files import read_platform
from pearl.spec.platform_template import platform_text
from pearl.spec.yaml_reader import parse
from pearl_devices import Platform


def described(given: str) -> Platform:
    data = parse(platform_text(given).encode(), "mine").data
    platform, _, problems = read_platform(data)
    assert platform is not None, problems
    return platform


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_a_device_is_written_as_it_stands_in_the_catalogue(name: str) -> None:
    lines = "\n".join(read_lines(name)) + "\n"
    assert parse(lines.encode(), name).data == catalogue()[name]


def test_a_workstation_is_written_out_with_the_usual_links() -> None:
    platform = described("cpu=threadripper_7970x,gpu=rtx_4090x2,fpga=alveo_u250")
    assert [d.name for d in platform.devices] == ["cpu", "gpu0", "gpu1", "fpga"]
    assert platform.devices[1] == replace(platform.devices[2], name="gpu0")
    assert count_unsourced(platform) == ""
    shipped = described("cpu=xeon_gold_6326,gpu=rtx_3090,fpga=agilex_agf014")
    for device in ("gpu", "fpga"):
        (mine,) = platform.route("cpu", "gpu1" if device == "gpu" else "fpga")
        (usual,) = shipped.route("cpu", device)
        assert (mine.latency_s, mine.bytes_per_s) == (usual.latency_s, usual.bytes_per_s)


def test_unified_memory_gets_no_link_and_this_machine_is_here() -> None:
    text = platform_text("cpu=jetson_agx_orin_cpu,gpu=jetson_agx_orin_gpu")
    assert "links:" not in text
    assert "\n  cpu: here\n" in platform_text("cpu=here,gpu=l4")
