"""`estimate`: cost of a kernel on a device, by the estimator that the device kind names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pearl_devices import Device, FigureError, Kernel, backend, estimator, kind_failure, offers
from pearl_devices.base import KernelKindError
from pearl_devices.validation import check_type, quote
from pearl_estimators import power
from pearl_estimators.estimates import Estimate
from pearl_estimators.sealed_files import CalibrationError


def estimate(
    kernel: Kernel,
    device: Device,
    *,
    variant: str | None = None,
    width: int = 1,
    host: Device | None = None,
) -> Estimate:
    """Estimate time and energy of one firing of `kernel` on `width` units of `device`.

    The estimate has the best level that the device kind offers: calibrated on a CPU of this host
    (measured on first use, which takes about half a minute; a kernel that cannot be timed has the
    next level, with a CalibrationWarning) and on a GPU whose model was timed (`pearl
    calibrate-gpu`), closed form on an FPGA, the given times of a null device, else the datasheet
    roofline.

    Args:
        kernel: the work of one firing.
        device: the device, which need not be present.
        variant: None for the first that the backend offers.
        width: units of the device, from 1 to `device.width`.
        host: the CPU that starts the kernels of another device; its speed determines how fast a
            GPU's operators start.

    Returns:
        The estimate. energy_j is modelled from the device's power, unless the kind gives it.

    Examples:
        >>> system = pearl.load("dqn_cartpole", set={"platform": "cpu_gpu"})
        >>> step = pearl_devices.kernel("env_step", program="CartPole-v1", envs=8, obs=4, act=0)
        >>> pearl.estimate(step, system.platform.device("cpu")).rung
        'datasheet'

    Raises:
        ValueError: the device does not offer the kernel or the variant, the width is outside
            1 … device.width, or the device lacks a figure; the text says what is allowed.
        DeviceKindError: the kind's file is incomplete, or its estimate fails or is invalid.
        CalibrationError: a stored calibration is damaged.
    """
    problems = check_type("estimate: kernel", kernel, Kernel, "a Kernel, as `kernel` makes it,")
    problems += check_type("estimate: device", device, Device, "a Device of a platform")
    if problems:
        raise ValueError("; ".join(problems))
    offered = offers(kernel, device)
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
    try:
        cost = estimator(device.kind)(kernel, _with_host_clock(device, host), variant, width)
    except (FigureError, KernelKindError, CalibrationError):
        raise
    except Exception as error:  # a device kind's code may raise anything
        raise kind_failure("ESTIMATE", kernel, device, error) from error
    if isinstance(cost, Estimate):
        return _add_energy(cost, kernel, device, width, variant)
    found = _wrap(cost, kernel, device)
    return found if "energy_j" in cost else _add_energy(found, kernel, device, width, variant)


def _with_host_clock(device: Device, host: Device | None) -> Device:
    """A device whose kernels its host launches, with the clock of that host."""
    launched = getattr(backend(device.kind), "LAUNCHED_BY_HOST", False)
    if host is None or not launched or "clock_hz" not in host.figures:
        return device
    return replace(device, figures={"host_clock_hz": host.figures["clock_hz"], **device.figures})


def _add_energy(
    found: Estimate, kernel: Kernel, device: Device, width: int, variant: str
) -> Estimate:
    return replace(
        found,
        energy_j=power.firing_energy_j(kernel, device, width, found.occupancy_s, variant),
        source=f"{found.source}; {power.formula(device)}",
    )


def _wrap(cost: Any, kernel: Kernel, device: Device) -> Estimate:
    """The checked Estimate of a `FiringCost`."""
    if not isinstance(cost, Mapping) or "latency_s" not in cost:
        why = f"it returns {quote(cost)}; it must be a mapping with latency_s, in seconds"
        raise kind_failure("ESTIMATE", kernel, device, why)
    plain = {"rung": "closed_form", "source": f"own estimate of kind {device.kind}", **cost}
    try:
        found = Estimate(**plain)
    except (TypeError, ValueError) as error:
        raise kind_failure("ESTIMATE", kernel, device, error) from error
    if not (found.latency_s > 0 or found.rung == "given"):
        raise kind_failure("ESTIMATE", kernel, device, "latency_s is 0; it must be above 0")
    if not found.low_s <= found.latency_s <= found.high_s:
        why = f"latency_s {found.latency_s} is outside its band {found.low_s} to {found.high_s}"
        raise kind_failure("ESTIMATE", kernel, device, why)
    return found
