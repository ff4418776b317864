"""`EstimatorContract`: tests of the estimates of a device kind."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import pytest

from pearl_devices import Device, Kernel, offers, trust_kind
from pearl_devices.base import OPT_IN_VARIANTS
from pearl_devices.kernels import kernel
from pearl_estimators import Estimate, estimate, power


class EstimatorContract:
    """Inherit it in a class `Test…` and set:

    device: a device of the kind.
    kernels: at least one that the device can run.
    rung: `Estimate.rung` of its estimates; "" if any is allowed.
    grows: sizes of a kernel whose doubling means more work.
    """

    device: ClassVar[Device]
    kernels: ClassVar[tuple[Kernel, ...]]
    rung: ClassVar[str] = ""
    grows: ClassVar[tuple[str, ...]] = ("envs", "batch", "steps", "params")

    def __init_subclass__(cls) -> None:
        """Allow the import of the kind, because its author names it."""
        super().__init_subclass__()
        if device := getattr(cls, "device", None):
            trust_kind(device.kind)

    def each(self) -> list[tuple[Kernel, str, int, Estimate]]:
        """Return every kernel in every offered way, with its estimate."""
        found = [
            (k, v, w, estimate(k, self.device, variant=v, width=w))
            for k in self.kernels
            for v, w in offers(k, self.device)
            if v != "envpool"  # timed only if requested
        ]
        assert found
        return found

    def test_every_kernel_is_offered(self) -> None:
        for k in self.kernels:
            assert offers(k, self.device), k.kind

    def test_numbers_are_finite_and_latency_is_positive(self) -> None:
        for k, v, w, e in self.each():
            values = (e.latency_s, e.occupancy_s, e.low_s, e.high_s, e.energy_j)
            assert all(math.isfinite(x) and x >= 0 for x in values), (k.kind, v, w)
            assert e.latency_s > 0, (k.kind, v, w)

    def test_the_band_holds_the_latency_and_occupancy_does_not_exceed_it(self) -> None:
        for k, v, w, e in self.each():
            assert e.low_s <= e.latency_s <= e.high_s, (k.kind, v, w)
            assert 0 < e.occupancy_s <= e.latency_s, (k.kind, v, w)

    def test_rung_bound_and_source_are_named(self) -> None:
        for k, v, w, e in self.each():
            rounded = v in OPT_IN_VARIANTS and not self.device.simulated  # datasheet only
            needed = "datasheet" if rounded else self.rung or e.rung
            assert e.rung == needed != "", (k.kind, v, w)
            assert e.bound_by in ("compute", "memory", "overhead", "given")
            assert e.source, (k.kind, v, w)

    def test_more_work_is_never_faster(self) -> None:
        compared = 0
        for k, v, w, e in self.each():
            for name in self.grows:
                if name not in k.dims:
                    continue
                if name == "envs" and k.dim("envs") == 1:
                    continue  # products of one row have a separate routine
                dims = {**k.dims, name: 2 * k.dim(name)}
                more = kernel(k.kind, dims, program=k.program, args=k.args)
                slower = estimate(more, self.device, variant=v, width=w)
                assert slower.latency_s >= e.latency_s * (1 - 1e-12), (k.kind, v, w, name)
                compared += 1
        assert compared

    def test_wider_is_never_slower(self) -> None:
        for k, v, w, e in self.each():
            if w < self.device.width:
                wider = estimate(k, self.device, variant=v, width=self.device.width)
                assert wider.latency_s <= e.latency_s * (1 + 1e-12), (k.kind, v, w)

    def test_modelled_energy_is_that_of_the_width_or_of_the_work(self) -> None:
        hungry = replace(self.device, idle_power_w=10.0, active_power_w=110.0)
        for k, v, w, e in self.each():
            found = estimate(k, hungry, variant=v, width=w)
            if power.BY_WORK in found.source:
                assert found.energy_j <= 100.0 * e.occupancy_s * (1 + 1e-12)
            elif power.SOURCE in found.source:  # else the kind gives its own energy
                share = w / self.device.width
                assert found.energy_j == pytest.approx(100.0 * share * e.occupancy_s)

    def test_a_variant_not_offered_is_refused_with_those_that_are(self) -> None:
        for k in self.kernels:
            offered = dict(offers(k, self.device))
            with pytest.raises(ValueError, match="no variant 'quantum'") as error:
                estimate(k, self.device, variant="quantum")
            assert all(v in str(error.value) for v in offered)

    @pytest.mark.parametrize("width", [0, -1, 10**9])
    def test_a_width_outside_the_device_is_refused(self, width: int) -> None:
        with pytest.raises(ValueError, match=rf"width {width} .*allowed are 1 to"):
            estimate(self.kernels[0], self.device, width=width)
