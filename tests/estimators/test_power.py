"""Modelled watts against published readings, and what a firing is charged for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.estimators.power import BUSY, READINGS, Reading, modelled
from benchmarks.estimators.published_cards import catalogued
from pearl_devices import Device, Kernel, Platform, kernel
from pearl_estimators import estimate, power


@pytest.mark.parametrize("reading", READINGS, ids=lambda r: f"{r.device} {r.watts:g} W")
def test_published_watts_are_within_the_band(reading: Reading) -> None:
    watts = modelled(reading.device, reading.share)
    assert reading.watts / power.BAND <= watts <= reading.watts * power.BAND, reading.source


def test_readings_that_set_a_figure_and_those_held_out_are_told_apart() -> None:
    held = [r for r in READINGS if r.use == "held out"]
    assert len(READINGS) >= 10
    assert len(held) >= 5
    pages = {(r.device, r.what, r.source) for r in READINGS}
    assert len(pages) == len(READINGS)
    said = {r.watts for r in READINGS if r.use == "context_power"}
    assert said.isdisjoint(r.watts for r in held)


def test_a_gpu_that_computes_nothing_new_draws_less_than_its_gpu_util_would_say() -> None:
    for r in BUSY:
        assert modelled(r.device, 0.0) <= r.watts < modelled(r.device, r.share), r.source


def test_a_launch_bound_update_is_charged_for_its_work_and_not_for_its_time() -> None:
    card = catalogued("rtx_4090", "gpu")
    sizes: dict[str, object] = {"obs": 4, "act": 0, "batch": 64, "steps": 1, "double": 1}
    program = "tests.kernel_losses:dqn"
    update = kernel("update.dqn", sizes, program=program, q=(4, 64, 64, 2))  # type: ignore[arg-type]
    e, narrow = (estimate(update, card, variant="eager", width=n) for n in (card.width, 10))
    assert e.bound_by == "overhead"
    busy_w = card.waiting_power_w + e.energy_j / e.occupancy_s
    assert card.waiting_power_w < busy_w < 1.2 * card.waiting_power_w
    assert narrow.energy_j == pytest.approx(e.energy_j)  # idle SMs are not what draws


def test_no_work_draws_more_than_the_board_may() -> None:
    card = catalogued("rtx_4090", "gpu")
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
