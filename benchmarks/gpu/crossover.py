"""From which batch on work belongs on the GPU: predicted, and measured with the copies it needs.

Gradient steps, draws from the replay and acting, each in its fastest variant on either side. The
batch at which the GPU becomes the faster is interpolated between two that were tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.target import Case, Target, on_device
from pearl_devices import Device, Kernel, Link, discover, kernel, offers
from pearl_devices.base import OPT_IN_VARIANTS
from pearl_devices.buffers import allocate
from pearl_devices.kernels import kind_of
from pearl_estimators import estimate
from pearl_estimators.host.benchmark_kernels import bind_filled as bound_on_cpu
from pearl_estimators.host.timer import time_call

BATCHES, SMALL_BATCHES = tuple(2**i for i in range(5, 15)), (8, 16)
WITHIN = 1.5
RING = {"envs": 8, "obs": 17, "act": 0, "capacity": 100_000, "prioritised": 1, "fanout": 16}
CROSSES = {"gradient": ("batch.",), "sample": ("batch.",), "network": ("env.obs", "act.")}
"""Structure of a kernel → the arrays that cross where its neighbours stay on the CPU."""


def kernels(what: str, batch: int, small: bool) -> Kernel:
    q = (17, 16, 6) if small else (17, 256, 256, 6)
    if what == "update":
        sizes = {"obs": 17, "act": 0, "q": q, "batch": batch, "steps": 1, "double": 1}
        return kernel("update.dqn", sizes, program="pearl.algorithms.dqn:losses")
    if what == "replay":
        ring = {**RING, "capacity": 1024} if small else RING
        return kernel("replay_sample", {**ring, "batch": batch, "steps": 1, "n_step": 1})
    return kernel("inference.dqn", envs=batch, obs=17, act=0, q=q)


def crossing(batches: Sequence[int], cpu_s: Sequence[float], gpu_s: Sequence[float]) -> float:
    """The batch at which the GPU is as fast, between two by the logarithms; infinite if at none."""
    before: tuple[float, float] | None = None
    for batch, cpu, gpu in zip(batches, cpu_s, gpu_s, strict=True):
        lead, at = math.log(cpu / gpu), math.log(batch)
        if lead >= 0:
            if before is None:
                return float(batch)
            share = -before[1] / (lead - before[1])
            return math.exp(before[0] + share * (at - before[0]))
        before = at, lead
    return math.inf


def run(target: Target) -> list[Case]:
    small = target.stand_in
    batches = SMALL_BATCHES if small else BATCHES
    cpu, link = _host(target)
    return [_case(target, what, batches, cpu, link) for what in ("update", "replay", "inference")]


def _host(target: Target) -> tuple[Device, Link]:
    """The CPU, as a data sheet beside the stand-in, and the link between the two."""
    if target.stand_in:
        return Device("cpu", "cpu", width=2), Link("cpu", "gpu", 1e-6, 16e9)
    platform = discover.host()
    return platform.devices[0], platform.route("cpu", target.device.name)[0]


def _case(target: Target, what: str, batches: Sequence[int], cpu: Device, link: Link) -> Case:
    predicted: tuple[list[float], list[float]] = ([], [])
    measured: tuple[list[float], list[float]] = ([], [])
    fired = 0
    for batch in batches:
        of = kernels(what, batch, target.stand_in)
        predicted[0].append(_predicted(of, cpu))
        crossing_bytes = sum(a.nbytes for a in _crossing(of, allocate([of])).values())
        moved_s = 2 * link.latency_s + crossing_bytes / link.bytes_per_s
        predicted[1].append(_predicted(of, target.device) + moved_s)
        found = [_measured(target, of, v) for v in _variants(of, target.device)]
        fired += len(found)
        if not target.stand_in:
            call = bound_on_cpu(of, "native")
            measured[0].append(time_call(call, seconds=0.1).median_s)
            measured[1].append(min(s for s in found if s is not None))
    told = crossing(batches, *predicted)
    counts = {"batches": len(batches), "firings": fired}
    if target.stand_in:
        return Case(what, told > 0 and fired >= len(batches), counts)
    seen = crossing(batches, *measured)
    apart = 1.0 if told == seen else max(told / seen, seen / told)
    figures = {n: v for n, v in (("predicted", told), ("measured", seen)) if math.isfinite(v)}
    figures |= {"ratio": apart} if math.isfinite(apart) else {}
    note = "" if math.isfinite(seen) else f"not faster up to {batches[-1]}"
    return Case(what, apart <= WITHIN, counts, figures, f"within {WITHIN} x", note)


def _variants(of: Kernel, device: Device) -> list[str]:
    return [v for v, _ in offers(of, device) if v not in OPT_IN_VARIANTS]


def _predicted(of: Kernel, device: Device) -> float:
    ways = [(v, w) for v, w in offers(of, device) if v not in OPT_IN_VARIANTS]
    return min(estimate(of, device, variant=v, width=w).latency_s for v, w in ways)


def _crossing(of: Kernel, arrays: Mapping[str, Any]) -> dict[str, Any]:
    names = CROSSES[kind_of(of).structure]
    return {n: a for n, a in arrays.items() if n.startswith(names)}


def _measured(target: Target, of: Kernel, variant: str) -> float | None:
    """Seconds of a firing with what it reads from the host and what the host reads of it."""
    arrays, twins, memory, call = on_device(target, of, variant)
    written = kind_of(of).written(arrays)
    pairs = {n: (arrays[n], twins[n]) for n in _crossing(of, arrays) if n in twins}
    loads = tuple(pair for n, pair in pairs.items() if n not in written)
    stores = tuple(pair for n, pair in pairs.items() if n in written)
    return target.seconds(memory.firing(call, of, loads, stores, "crossover"))
