"""The ways to run a call on a device that a plan may choose from."""

from __future__ import annotations

from collections.abc import Iterable

from pearl.graph.limits import Limits
from pearl_devices import Device, Kernel, offers
from pearl_devices.base import IN_TURN, OPT_IN_VARIANTS, PROCESSES, WIDE
from pearl_estimators import Estimate
from pearl_estimators.host.calibrator import calibrated_here


def ways_of(
    tasks: tuple[str, ...], kernel: Kernel, device: Device, limits: Limits
) -> list[tuple[str, int]]:
    """What a device offers for a call of tasks within the limits: variants and widths.

    Environments in processes of their own are left out unless the user names them or they are known
    to wait: those that compute need cores that a plan gives to others.
    """
    found = _offered(tasks, kernel, device, limits)
    if PROCESSES not in dict(found) or any(t in limits.variants for t in tasks):
        return found
    if calibrated_here(device) and IN_TURN in dict(found):
        from pearl_estimators.host.user_code_timing import WAITS, waits

        if waits(kernel) >= WAITS:
            return found
    return [(v, width) for v, width in found if v != PROCESSES]


def _offered(
    tasks: tuple[str, ...], kernel: Kernel, device: Device, limits: Limits
) -> list[tuple[str, int]]:
    threads = device.width_unit == "cores" and not device.simulated
    found = []
    for variant, width in offers(kernel, device):
        default = () if variant in OPT_IN_VARIANTS else (variant,)
        if any(variant not in limits.variants.get(t, default) for t in tasks):
            continue
        if not threads or width <= (limits.max_lanes or width):
            found.append((variant, width))
    return found


def worth_having(
    ways: Iterable[tuple[str, int, Estimate]],
) -> list[tuple[str, int, Estimate]]:
    """These ways without the wide ones that gain nothing: of several threads of torch those that
    are no faster than a way of no more cores. No plan is better by them."""
    found: list[tuple[str, int, Estimate]] = []
    for variant, width, cost in sorted(ways, key=lambda way: way[1] if way[0] in WIDE else 0):
        gains = all(cost.latency_s < c.latency_s for _, w, c in found if w <= width)
        if variant not in WIDE or gains:
            found.append((variant, width, cost))
    return found
