"""The ways to run a call on a device from which a plan may choose."""

from __future__ import annotations

from collections.abc import Iterable

from pearl.graph.limits import Limits
from pearl_devices import BACKENDS, Device, Kernel, Refused, offers
from pearl_devices.base import IN_TURN, OPT_IN_VARIANTS, PROCESSES, WIDE
from pearl_devices.system import explain_no_processes, host_system
from pearl_estimators import Estimate
from pearl_estimators.host.calibrator import is_calibrated

MARKED_VARIANTS = {"torch": "torch", "bfloat16": "bf16"}
"""Figure of a device that is 0 where variants cannot run → the part of their names."""


def allowed_variants(
    tasks: tuple[str, ...], kernel: Kernel, device: Device, limits: Limits
) -> list[tuple[str, int]]:
    """Return a device's offers for a call of tasks within the limits: variants and widths.

    Environments in separate processes are offered only if the user names them or if they are known
    to wait: computing environments would need cores that a plan gives to other tasks. On another
    host, they are assumed to wait as long as on the local host, where they are timed.
    """
    offered = list_offers(tasks, kernel, device, limits)
    if PROCESSES not in dict(offered) or any(t in limits.variants for t in tasks):
        return offered
    if is_calibrated(device) and IN_TURN in dict(offered):
        from pearl_estimators.host.user_code_timing import gains_by_processes

        if gains_by_processes(kernel):
            return offered
    return [(v, width) for v, width in offered if v != PROCESSES]


def list_offers(
    tasks: tuple[str, ...], kernel: Kernel, device: Device, limits: Limits
) -> list[tuple[str, int]]:
    """Return a device's offers for a call of tasks within the limits, environments in processes
    included."""
    threads = device.width_unit == "cores" and not device.simulated
    allowed = []
    for variant, width in offers(kernel, device):
        default = () if variant in OPT_IN_VARIANTS else (variant,)
        if any(variant not in limits.variants.get(t, default) for t in tasks):
            continue
        if not threads or width <= (limits.max_lanes or width):
            allowed.append((variant, width))
    return allowed


def is_excluded(tasks: tuple[str, ...], device: Device, limits: Limits) -> bool:
    """Return whether a pin or `limits.devices` keeps a call of tasks off a device."""
    return any(
        limits.pin.get(t, device.name) != device.name
        or device.name not in limits.devices.get(t, (device.name,))
        for t in tasks
    )


def exclusion_reason(tasks: tuple[str, ...], kernel: Kernel, device: Device, limits: Limits) -> str:
    """Return why a plan has no way to run a call of tasks on a device: the limits, or the device's
    own reason."""
    if is_excluded(tasks, device, limits):
        return "kept off by the limits"
    ways = ", ".join(dict(offers(kernel, device)))
    named = [v for t in tasks for v in limits.variants.get(t, ())]
    absent = [
        device.sources.get(figure, f"{figure} = 0")
        for figure, part in MARKED_VARIANTS.items()
        if device.figures.get(figure) == 0 and any(part in v for v in named)
    ]
    if not host_system.PROCESSES and PROCESSES in named:
        absent.append(explain_no_processes())
    why = f" ({'; '.join(absent)})" if absent else ""
    return refusal_reason(kernel, device) or f"offers {ways}; the limits leave none{why}"


def refusal_reason(kernel: Kernel, device: Device) -> str:
    """Return why a device cannot run a kernel; empty if it can, and for a kind of device that only
    a caller's cost table has."""
    if not has_backend(device):
        return ""
    offered = offers(kernel, device)
    return offered.why if isinstance(offered, Refused) else ""


def has_backend(device: Device) -> bool:
    """Return whether the kind of a device has a backend; a caller's cost table may have any
    kind."""
    return device.kind in BACKENDS or "." in device.kind


def drop_useless_widths(
    ways: Iterable[tuple[str, int, Estimate]],
) -> list[tuple[str, int, Estimate]]:
    """Return these ways without useless wide ones: ways with several threads of torch that are no
    faster than a way with no more cores. No plan is better with them."""
    useful: list[tuple[str, int, Estimate]] = []
    for variant, width, cost in sorted(ways, key=lambda way: way[1] if way[0] in WIDE else 0):
        gains = all(cost.latency_s < c.latency_s for _, w, c in useful if w <= width)
        if variant not in WIDE or gains:
            useful.append((variant, width, cost))
    return useful
