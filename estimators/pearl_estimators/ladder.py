"""`estimate`: the best rung there is for a kernel on a device."""

from __future__ import annotations

from dataclasses import replace

from pearl_devices import Device, Kernel, backend
from pearl_estimators import power
from pearl_estimators.estimate import Estimate
from pearl_estimators.roofline import roofline


def estimate(
    kernel: Kernel, device: Device, *, variant: str | None = None, width: int = 1
) -> Estimate:
    """How long one firing of `kernel` takes on `width` units of `device`, and what it costs.

    The best rung available: calibrated on a CPU of this host (measured on first use, which takes
    about half a minute), simulated on an FPGA, the given times of a null device, else the datasheet
    roofline. variant: None is the first that the backend offers. One that is not offered, and a
    width outside 1 … device.width, are ValueErrors that say what is allowed. energy_j is always
    modelled.
    """
    offered = backend(device.kind).offers(kernel, device)
    variants = list(dict.fromkeys(name for name, _ in offered))
    what = f"kernel {kernel.kind}" + (f" ({kernel.program})" if kernel.program else "")
    if not variants:
        raise ValueError(f"{what}: device {device.name!r} of kind {device.kind} cannot run it")
    if variant is None:
        variant = variants[0]
    if variant not in variants:
        raise ValueError(
            f"{what}: device {device.name!r} offers no variant {variant!r}; it offers {variants}"
        )
    if not 1 <= width <= device.width:
        raise ValueError(
            f"{what}: width {width} on device {device.name!r}; allowed are 1 to {device.width} "
            f"{device.width_unit}"
        )
    found = _time(kernel, device, variant, width)
    return replace(
        found,
        energy_j=power.dynamic_energy_j(device, width, found.occupancy_s),
        source=f"{found.source}; {power.SOURCE}",
    )


def _time(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    if device.kind == "null":
        return _given(kernel, device)
    if device.kind == "fpga":
        from pearl_estimators.fpga import closed_form

        return closed_form(kernel, device, variant, width)
    if device.kind == "cpu" and device.real:
        from pearl_estimators.calibrated import calibration, estimate_from

        known = calibration(device)
        fitted = known.find(kernel, variant)
        if fitted is not None:
            return estimate_from(fitted, known, kernel, variant)
    return roofline(kernel, device, variant, width)


def _given(kernel: Kernel, device: Device) -> Estimate:
    """A null device charges `figures`: `latency_s.KIND` for one kernel kind, else `latency_s`."""
    for name in (f"latency_s.{kernel.kind}", "latency_s"):
        if name in device.figures:
            source = device.sources.get(name, "given by the platform")
            return Estimate(device.figures[name], source=source)
    raise ValueError(
        f"device {device.name!r} of kind null gives no time for kernel {kernel.kind}; give the "
        f"figure latency_s or latency_s.{kernel.kind}, in seconds; it gives "
        f"{sorted(device.figures)}"
    )
