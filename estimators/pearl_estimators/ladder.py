"""`estimate`: the best rung there is for a kernel on a device."""

from __future__ import annotations

from dataclasses import replace

from pearl_devices import Device, Kernel, backend
from pearl_devices.buffers import specs
from pearl_devices.work import cuts
from pearl_estimators import power
from pearl_estimators.estimates import Estimate
from pearl_estimators.roofline import roofline


def estimate(
    kernel: Kernel, device: Device, *, variant: str | None = None, width: int = 1
) -> Estimate:
    """How long one firing of `kernel` takes on `width` units of `device`, and what it costs.

    The best rung available: calibrated on a CPU of this host (measured on first use, which takes
    about half a minute; what cannot be timed in time is left to the next rung, with a
    CalibrationWarning) and on a GPU whose model was timed (`pearl calibrate-gpu`), the closed form
    on an FPGA, the given times of a null device, else the datasheet roofline. variant: None is the
    first that the backend offers. One that is not offered, and a width outside 1 … device.width,
    are ValueErrors that say what is allowed. energy_j is always modelled.
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
    if device.kind == "gpu":
        from pearl_estimators.gpu.calibration import estimate_gpu, stored_gpu

        timed = stored_gpu(device.model) if device.model else None
        if timed is not None:
            return estimate_gpu(timed, kernel, device, variant, width)
    if device.kind != "cpu":
        return roofline(kernel, device, variant, width)
    alone = _of_cpu(kernel, device, variant, width)
    found = [_together(kernel, cut, device, variant, width) for cut in cuts(kernel)]
    if not found:
        return alone
    together = min(found, key=lambda e: e.latency_s)
    # There is no roofline of whole iterations, and no call is slower than its parts one by one.
    unknown = alone.rung == "datasheet" and kernel.kind.startswith(("iteration.", "rollout."))
    better = alone.rung == "datasheet" and together.rung != "datasheet"
    return together if unknown or better or together.latency_s < alone.latency_s else alone


def _of_cpu(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    if device.real:
        from pearl_estimators.host.calibration import estimate_from
        from pearl_estimators.host.on_demand import calibration, untimed

        known = calibration(device, [kernel])
        fitted = known.find(kernel, variant)
        if fitted is not None:
            return estimate_from(fitted, known, kernel, variant)
        if untimed(known, kernel, variant):
            guess = roofline(kernel, device, variant, width)
            return replace(guess, source=f"{guess.source}; {UNTIMED}")
        if kernel.kind == "env_step":
            return _of_own_env(kernel, device, variant)
    return roofline(kernel, device, variant, width)


UNTIMED = "not timed on this host yet"


def _of_own_env(kernel: Kernel, device: Device, variant: str) -> Estimate:
    """An environment that no calibration knows: timed, or as unknown as it is, with the reason."""
    from pearl_estimators.host.calibration import CalibrationError
    from pearl_estimators.host.env_timing import measured

    try:
        return measured(kernel, variant)
    except CalibrationError as error:
        guess = roofline(kernel, device, variant, 1)
        return replace(guess, source=f"{guess.source}; it could not be timed: {error}")


# Measured by this project, EPYC, 2026: an empty compiled call from Python, and each array it takes.
CALL_S, ARRAY_S = 0.06e-6, 0.05e-6
CALL_SHARE = 0.9  # most that calling from Python may be of a part's time, assumed


def _together(
    kernel: Kernel,
    cut: tuple[tuple[Kernel, int], ...],
    device: Device,
    variant: str,
    width: int,
) -> Estimate:
    """A fused kernel as the sum of its parts, less what calling them from Python costs: it does
    what they do, in one call, and many whole iterations are one call too. The band is the sum of
    theirs."""
    found = [(p, n, _part(p, device, variant, width)) for p, n in cut]
    calls = [n * (CALL_S + ARRAY_S * len(specs(p))) for p, n, _ in found]
    saved = sum(calls) - (0.0 if kernel.kind.startswith("iteration.") else max(calls))
    whole = sum(n * e.latency_s for _, n, e in found)
    left = 1 - min(saved / whole, CALL_SHARE)
    longest = max(found, key=lambda each: each[1] * each[2].latency_s)[2]
    return replace(
        longest,
        latency_s=left * whole,
        occupancy_s=left * whole,
        low_s=left * sum(n * e.low_s for _, n, e in found),
        high_s=left * sum(n * e.high_s for _, n, e in found),
        source=f"sum of its {len(found)} parts in one call; the longest: {longest.source}",
    )


def _part(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """A part of a fused kernel: on one core where it has no variant for several."""
    if variant.endswith("-pair") and variant not in dict(
        backend(device.kind).offers(kernel, device)
    ):
        return _time(kernel, device, variant.removesuffix("-pair"), 1)
    return _time(kernel, device, variant, width)


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
