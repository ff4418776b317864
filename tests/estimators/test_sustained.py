"""Cards that sustain less than their peak: slower at large products, and at full power there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl.advice.hardware import catalogue_device
from pearl_devices import kernel
from pearl_estimators import estimate

UPDATE = kernel(
    *("update.dqn",), program="pearl.algorithms.dqn:losses", obs=4, act=0, q=(4, 4096, 4096, 2),
    batch=8192, steps=1, double=1,
)  # fmt: skip


@pytest.mark.parametrize("name", ["t4", "l4"])
def test_a_large_update_takes_as_much_longer_and_draws_all_the_same(name: str) -> None:
    card = catalogue_device(name)
    share = card.figures["sustained_share"]
    whole = replace(card, figures={**card.figures, "sustained_share": 1.0})
    slow, fast = (estimate(UPDATE, d, variant="graph", width=d.width) for d in (card, whole))
    products_s = UPDATE.flops / (share * card.peak_flops_per_s)
    assert products_s < slow.latency_s < 1.25 * products_s
    assert fast.latency_s < slow.latency_s
    assert slow.energy_j / slow.occupancy_s > 0.8 * (card.active_power_w - card.waiting_power_w)
    assert slow.low_s < slow.latency_s < slow.high_s


def test_a_card_without_the_figure_has_its_peak() -> None:
    card = catalogue_device("rtx_4090")
    assert card.sustained_flops_per_s == card.peak_flops_per_s
