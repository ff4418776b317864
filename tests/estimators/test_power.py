"""Modelled watts against published readings, and what a firing is charged for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl.spec.catalogue import catalogue
from pearl.spec.platform_files import read_platform
from pearl_devices import Device, Kernel, Platform, kernel
from pearl_estimators import estimate, power

READINGS = [
    # device, the larger of arithmetic and memory utilisation, watts, source
    ("h100_sxm", 0.0, 122, "a CUDA context and nothing else: arXiv 2605.23918"),
    ("a100_sxm_40gb", 0.0, 80, "a CUDA context and nothing else, 80 GB: arXiv 2605.23918"),
    ("l40s", 0.0, 102, "a CUDA context and nothing else: arXiv 2605.23918"),
    ("rtx_4090", 0.01, 68, "SAC by sbx, 25 % of the time busy: github.com/araffin/sbx, issue 35"),
    ("v100_sxm_16gb", 0.01, 66, "learning that waits for launches, 66 of 300 W in nvidia-smi"),
    # 138 tokens a second of 4.4 GB of weights, 0.60 of 1008 GB/s
    (
        "rtx_4090",
        0.60,
        246,
        "decoding Qwen3-4B: github.com/noonghunna/club-3090, issue 697",
    ),
    # 54.7 of 82.6 TFLOP/s in float32 without tensor cores (mli/transformers-benchmarks, issue 3)
    ("rtx_4090", 0.66, 380, "gpu-burn: github.com/wilicc/gpu-burn, issue 68"),
]


def gpu(name: str) -> Device:
    platform, _, problems = read_platform({"devices": {"gpu": dict(catalogue()[name])}})
    assert platform is not None, problems
    return platform.devices[0]


@pytest.mark.parametrize(("name", "share", "watts", "source"), READINGS)
def test_published_watts_are_within_the_band(
    name: str, share: float, watts: float, source: str
) -> None:
    found = gpu(name)
    work = Kernel("work", flops=share * found.peak_flops_per_s)  # a second's, at this share
    modelled = found.waiting_power_w + power.firing_energy_j(work, found, found.width, 1.0)
    assert watts / power.BAND <= modelled <= watts * power.BAND, source


def test_a_launch_bound_update_is_charged_for_its_work_and_not_for_its_time() -> None:
    card = gpu("rtx_4090")
    sizes: dict[str, object] = {"obs": 4, "act": 0, "batch": 64, "steps": 1, "double": 1}
    program = "tests.kernel_losses:dqn"
    update = kernel("update.dqn", sizes, program=program, q=(4, 64, 64, 2))  # type: ignore[arg-type]
    e, narrow = (estimate(update, card, variant="eager", width=n) for n in (card.width, 10))
    assert e.bound_by == "overhead"
    busy_w = card.waiting_power_w + e.energy_j / e.occupancy_s
    assert card.waiting_power_w < busy_w < 1.2 * card.waiting_power_w
    assert narrow.energy_j == pytest.approx(e.energy_j)  # idle SMs are not what draws


def test_no_work_draws_more_than_the_board_may() -> None:
    card = gpu("rtx_4090")
    much = Kernel("much", flops=100 * card.peak_flops_per_s)
    spent = power.firing_energy_j(much, card, card.width, 2.0)
    assert spent == pytest.approx(2.0 * (card.active_power_w - card.waiting_power_w))


def test_a_device_in_use_draws_what_its_context_does() -> None:
    cpu = Device("cpu", "null", idle_power_w=10.0, active_power_w=20.0)
    card = Device("g", "null", idle_power_w=20.0, context_power_w=70.0, active_power_w=99.0)
    shared = replace(card, unified_memory=True)  # so that none needs a link
    platform = Platform("p", (cpu, shared, replace(shared, name="off", when_unused="off")))
    assert platform.idle_w() == {"cpu": 10.0, "g": 20.0, "off": 0.0}
    assert platform.idle_w({"g", "off"}) == {"cpu": 10.0, "g": 70.0, "off": 70.0}
    with pytest.raises(ValueError, match="busy cannot draw less than waiting"):
        replace(card, context_power_w=100.0)
