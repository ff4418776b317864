"""Estimates of CPUs: calibrated on this host, else by roofline; fused kernels from their parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_devices import Device, Kernel, offers
from pearl_devices.buffers import specs
from pearl_devices.kernels import acts, kind_of, repeats
from pearl_devices.kernels.evaluation import evaluation_parts
from pearl_estimators.cpu_datasheet import cpu_datasheet, scale_threads
from pearl_estimators.estimates import Estimate

if TYPE_CHECKING:
    from pearl_estimators.host.run_corrections import KernelShare

UNTIMED = "not timed on this host yet"

TIMED = ("calibrated", "measured")
"""Estimate levels that rest on timings of this host."""

UNTIMED_RUNGS = ("probed", "datasheet")
"""Estimate levels of kernels that were not timed on the device."""


def estimate_cpu(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """Return the best available estimate of a kernel on a CPU.

    Kernels of this host are calibrated: they are timed on first use, which takes about half a
    minute. Kernels that could not be timed, and CPUs known by a data sheet, have the datasheet
    level. Both are corrected by finished runs on this host. A fused kernel is no slower than its
    parts one by one.
    """
    found = estimate_without_feedback(kernel, device, variant, width)
    if not device.real:
        return found
    from pearl_estimators.host.calibrator import calibration
    from pearl_estimators.host.run_corrections import apply_correction

    timed = found.rung in TIMED
    seen = [s for s in calibration(device, [kernel]).learned if s.timed == timed]
    if not seen:
        return found
    return apply_correction(found, seen, parts(kernel, device, variant, width), timed=timed)


def parts(kernel: Kernel, device: Device, variant: str, width: int) -> tuple[KernelShare, ...]:
    """Return the innermost kernels of a call, each with its share of the call's time."""
    from pearl_estimators.host.linear_fit import family
    from pearl_estimators.host.run_corrections import KernelShare

    found: list[KernelShare] = []
    for k, v, w, firings in split_into_leaves(kernel, device, variant, width):
        seconds = firings * estimate_without_feedback(k, device, v, w).latency_s
        moved = k.bytes_in + k.bytes_out
        found.append(KernelShare(f"{family(k)} {v}", k.flops, moved, seconds))
    whole = sum(p.share for p in found)
    return tuple(replace(p, share=p.share / whole) for p in found)


def split_into_leaves(
    kernel: Kernel, device: Device, variant: str, width: int, firings: float = 1.0
) -> Iterator[tuple[Kernel, str, int, float]]:
    """Return the innermost kernels of a call, each with its variant, width and firings."""
    cut = _parts_of(kernel)
    for inner, n in cut:
        yield from split_into_leaves(
            inner, device, *_choose_way(inner, device, variant, width), firings * n
        )
    if not cut:
        yield kernel, variant, width, firings


def _parts_of(kernel: Kernel) -> tuple[tuple[Kernel, int], ...]:
    """The parts of a fused kernel and the firings of each; empty for other kernels."""
    kind = kind_of(kernel)
    if kind.structure == "evaluation":
        return evaluation_parts(kernel)
    return next(iter(kind.cuts(kernel)), ())


def estimate_without_feedback(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """Return `estimate_cpu` without the corrections from finished runs."""
    kind = kind_of(kernel)
    same = kind.like(kernel) if kind.like else kernel
    if same != kernel:
        alike = estimate_cpu(same, device, variant, width)
        return replace(alike, source=f"as {same.kind}: {alike.source}")
    if kind.structure == "evaluation":  # the policy determines how long its episodes are
        return _estimate_fused(kernel, evaluation_parts(kernel), device, variant, width)
    alone = _estimate_alone(kernel, device, variant, width)
    found = [_estimate_fused(kernel, cut, device, variant, width) for cut in kind.cuts(kernel)]
    if not found:
        return alone
    together = min(found, key=lambda e: e.latency_s)
    # No call is slower than its parts one by one.
    guessed = alone.rung in UNTIMED_RUNGS
    if guessed and acts(kernel):
        alone = _with_environments(alone, kernel, device, variant, width)
    better = guessed and together.rung not in UNTIMED_RUNGS
    if not guessed and together.rung in UNTIMED_RUNGS:
        return alone  # the call was timed, and parts were not
    if better or together.latency_s < alone.latency_s:
        return together
    if not guessed:
        return alone
    by = alone.latency_s / together.latency_s  # the call has the relative band of its parts
    return replace(alone, low_s=by * together.low_s, high_s=by * together.high_s)


def _with_environments(
    guess: Estimate, kernel: Kernel, device: Device, variant: str, width: int
) -> Estimate:
    """The datasheet estimate of a call plus the time of the environments that it steps, which the
    counts of the call omit."""
    steps = [
        (n, estimate_without_feedback(k, device, v, w))
        for k, v, w, n in split_into_leaves(kernel, device, variant, width)
        if kind_of(k).structure == "environment"
    ]
    return replace(
        guess,
        latency_s=guess.latency_s + sum(n * e.latency_s for n, e in steps),
        occupancy_s=guess.occupancy_s + sum(n * e.occupancy_s for n, e in steps),
        low_s=guess.low_s + sum(n * e.low_s for n, e in steps),
        high_s=guess.high_s + sum(n * e.high_s for n, e in steps),
    )


def _estimate_alone(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    if device.real:
        from pearl_estimators.host.benchmark_kernels import timed_variant
        from pearl_estimators.host.calibration import estimate_from
        from pearl_estimators.host.calibrator import MEASURED_BY, calibration, is_untimed

        known, way = calibration(device, [kernel]), timed_variant(variant)
        host = device.host if device.host in MEASURED_BY else ""
        fitted = known.find(kernel, variant)
        if fitted is not None:
            return estimate_from(fitted, known, kernel, variant, host)
        if way != variant and (few := known.find(kernel, way)):
            told = estimate_from(few, known, kernel, way, host)
            return scale_threads(told, kernel, device, way, variant)
        kind = kind_of(kernel)
        if kernel.modules or kind.assumed:
            from pearl_estimators.host.user_code_timing import estimate_network

            return estimate_network(kernel, device, variant, width)
        if is_untimed(known, kernel, variant):
            guess = cpu_datasheet(kernel, device, variant, width)
            return replace(guess, source=f"{guess.source}; {UNTIMED}")
        if kind.structure == "environment":
            return _own_environment(kernel, device, variant)
        if kind.structure in ("own", "sweep", "average", "shared"):
            from pearl_estimators.host.user_code_timing import time_user_kernel

            return time_user_kernel(kernel, variant)
    return cpu_datasheet(kernel, device, variant, width)


def _own_environment(kernel: Kernel, device: Device, variant: str) -> Estimate:
    """An environment outside the calibration: its timing, or the roofline and why it has none."""
    from pearl_estimators.host.user_code_timing import time_user_env
    from pearl_estimators.sealed_files import CalibrationError

    try:
        return time_user_env(kernel, variant)
    except CalibrationError as error:
        guess = cpu_datasheet(kernel, device, variant, 1)
        return replace(guess, source=f"{guess.source}; it could not be timed: {error}")


# Measured by this project, EPYC, 2026: an empty compiled call from Python, and each argument array.
CALL_S, ARRAY_S = 0.06e-6, 0.05e-6
CALL_SHARE = 0.9  # largest share of a part's time that its call from Python takes, assumed


def _estimate_fused(
    kernel: Kernel, cut: tuple[tuple[Kernel, int], ...], device: Device, variant: str, width: int
) -> Estimate:
    """A fused kernel as the sum of its parts, less the calls from Python that it saves.

    One call does the work of all parts. Many whole iterations are one call too, as are the episodes
    of a native evaluation. The band is the sum of the parts' bands.
    """
    found = [(p, n, _part(p, device, variant, width)) for p, n in cut]
    calls = [n * (CALL_S + ARRAY_S * len(specs(p))) for p, n, _ in found]
    saved = sum(calls) - (0.0 if repeats(kernel) else max(calls))
    if kind_of(kernel).structure == "evaluation":
        saved = sum(calls) if variant == "native" else 0.0
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
    return estimate_without_feedback(kernel, device, *_choose_way(kernel, device, variant, width))


def _choose_way(kernel: Kernel, device: Device, variant: str, width: int) -> tuple[str, int]:
    """Variant and width of a part of a fused kernel. A part without a multi-core variant runs on
    one core, and a part that lacks the variant runs in its first one."""
    offered = dict(offers(kernel, device))
    if variant not in offered:
        variant = variant.removesuffix("-pair")
        variant, width = variant if variant in offered else next(iter(offered)), 1
    return variant, width
