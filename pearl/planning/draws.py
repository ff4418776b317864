"""Samples of times from the bands of estimates, with the same error for the same cause everywhere.

The 90 % band of a mode is fitted by a log-normal factor exp(mean + spread · z) on its time. Similar
estimates have similar errors: z is the sum of five standard normal numbers over √5. Their causes
are the kind of the device, its model, the kernel's family and variant on the kind and on the model,
and the kernel itself there with its sizes and width.

Each number is a function of a seed and of its cause's name alone. So two modes, two plans and two
specs that share a kind, a model, a family or a kernel share that part of the error, and the samples
of one mode do not depend on other modes. The factor of a fused call is the mean of its parts'
factors, weighted by their shares of the call.

The seconds of a link have one factor for all its messages, from its band. There z is the sum of
three numbers over √3, one each of the kinds and of the models that it joins, and of its figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.replicas import resize_kernel
from pearl_devices import Device, Kernel, Link, torch_threads
from pearl_devices.kernels import kind_of
from pearl_estimators import power

PARTS = 5
"""Number of parts of z, of equal weight (assumed: on a host taken as unknown, families of kernels
were off their datasheet by factors of 0.3 to 4, and all of them together by 0.54 in the median)."""

NUMBER = 200
"""Default number of samples."""

Z90 = 1.6449
"""Half of a 90 % band in standard deviations."""

Vector = NDArray[np.float64]
"""One number per sample."""


@dataclass(frozen=True)
class Uncertainty:
    """The names of the parts of a mode's error, and the band.

    kind: of the device. device: its model. kind_family, family: kernel family and variant, on the
        kind and on the model. own: the kernel itself there.
    mean, spread: of the logarithm of the factor.
    """

    kind: str
    device: str
    kind_family: str
    family: str
    own: str
    mean: float
    spread: float

    def parts(self) -> tuple[str, ...]:
        """The names of the parts, each with weight 1/√PARTS in z."""
        return self.kind, self.device, self.kind_family, self.family, self.own


@dataclass(frozen=True)
class Draws:
    """Samples of times by a seed.

    number: of samples.
    seed: of the random numbers.
    known: name of a part → its given numbers, shape (number,), which replace those of the seed.
    """

    number: int = NUMBER
    seed: int = 0
    known: Mapping[str, Vector] = field(default_factory=dict)

    def part(self, name: str) -> Vector:
        """Return the numbers of one part, standard normal unless given."""
        given = self.known.get(name)
        return _normal(self.seed, name, self.number) if given is None else given

    def factors(self, mode: Mode, graph: TaskGraph, costs: CostTable) -> Vector:
        """Return the factors on the times of a mode in each sample."""
        total = np.zeros(self.number)
        for doubt, share in uncertainties(mode, graph, costs):
            if doubt is None:
                total += share
                continue
            z = sum(self.part(name) for name in doubt.parts()) / math.sqrt(PARTS)
            total += share * np.exp(doubt.mean + doubt.spread * z)
        return total

    def link_factors(self, costs: CostTable) -> dict[str, Vector]:
        """Return link → factors on its seconds in each sample, without links that have no band.
        Energy per byte is not sampled."""
        factors = {}
        for link in costs.platform.links:
            mean, spread = fit_lognormal(link.band[0], 1.0, link.band[1])
            if spread:
                names = link_parts(link, costs)
                z = sum(self.part(name) for name in names) / math.sqrt(len(names))
                factors[link.name] = np.exp(mean + spread * z)
        return factors

    def watts(self, costs: CostTable) -> dict[str, Vector]:
        """Return device → factors on its watts in each sample, without devices that have no mode of
        modelled energy."""
        modelled = {m.device for m in costs.modes if power.SOURCE in m.estimate.source}
        return {
            d.name: np.exp(power.spread() * self.part(f"watts of {d.kind} {d.model or d.name}"))
            for d in costs.platform.devices
            if d.name in modelled
        }

    def mean_table(self, graph: TaskGraph, costs: CostTable, weight: Vector) -> CostTable:
        """Return the table of weighted means of the sampled times, with the watts of the estimates.
        weight: of each sample, sum 1."""
        factors = [float(self.factors(m, graph, costs) @ weight) for m in costs.modes]
        links = {name: float(row @ weight) for name, row in self.link_factors(costs).items()}
        return scale_costs(costs, factors, links)

    def tables(self, graph: TaskGraph, costs: CostTable) -> list[CostTable]:
        """Return the cost table of every sample. Pair terms scale with the mode whose time they
        change."""
        rows = [self.factors(m, graph, costs) for m in costs.modes]
        links, watts = self.link_factors(costs), self.watts(costs)
        return [
            scale_costs(
                costs,
                [float(row[n]) for row in rows],
                {name: float(row[n]) for name, row in links.items()},
                {name: float(row[n]) for name, row in watts.items()},
            )
            for n in range(self.number)
        ]


def scale_costs(
    costs: CostTable,
    factors: list[float],
    links: Mapping[str, float],
    watts: Mapping[str, float] = MappingProxyType({}),
) -> CostTable:
    """Return the table with times and energy of each mode, seconds of these links and watts of
    these devices (idle, waiting and active) multiplied by their factors."""
    by = {
        (m.tasks[0], m.key): factor
        for m, factor in zip(costs.modes, factors, strict=True)
        if not m.fused and m.share is None
    }
    modes = tuple(
        m.scale(factor, watts.get(m.device, 1.0))
        for m, factor in zip(costs.modes, factors, strict=True)
    )
    pairs = {(a, b): seconds * by.get(a, 1.0) for (a, b), seconds in costs.pair_extra_s.items()}
    platform = costs.platform
    if links or watts:
        slower = tuple(k.slower(links.get(k.name, 1.0)) for k in platform.links)
        drawing = tuple(_scale_power(d, watts.get(d.name, 1.0)) for d in platform.devices)
        platform = replace(platform, links=slower, devices=drawing)
    return replace(costs, platform=platform, modes=modes, pair_extra_s=pairs)


def _scale_power(device: Device, factor: float) -> Device:
    """The device with its watts multiplied by a factor."""
    names = ("idle_power_w", "active_power_w", "context_power_w")
    return replace(device, **{name: getattr(device, name) * factor for name in names})


def uncertainties(
    mode: Mode, graph: TaskGraph, costs: CostTable
) -> list[tuple[Uncertainty | None, float]]:
    """Return the uncertainties of a mode, each with its share of the time; None if it has none.

    A fused call has the uncertainties of its parts, if all parts can run in the same variant on the
    same device with the same estimate level; else it has a single uncertainty.
    """
    if not mode.fused:
        whole = graph.task(mode.tasks[0])
        part = whole.kernel
        if mode.share is not None:  # a copy has another name in the split graph
            part = resize_kernel(part, mode.share, whole.environments)
        return [(_uncertainty(mode, part, costs), 1.0)]
    apart: dict[str, Mode] = {}
    for task in mode.tasks:
        alone = [
            m
            for m in costs.of(task)
            if (m.device, m.variant, m.estimate.rung)
            == (mode.device, mode.variant, mode.estimate.rung)
        ]
        if alone:
            apart[task] = min(alone, key=lambda m: abs(m.width - mode.width))
    shares = costs.shares(mode, graph)
    if shares and len(apart) == len(mode.tasks):
        return [(_uncertainty(m, graph.task(t).kernel, costs), shares[t]) for t, m in apart.items()]
    return [(_uncertainty(mode, graph.kernel_of(mode.tasks), costs), 1.0)]


def link_parts(link: Link, costs: CostTable) -> tuple[str, ...]:
    """Return the names of the parts of a link's error, of equal weight. Links that differ only in
    the names of their ends have the same error, as devices of one model do."""
    ends = [costs.platform.device(name) for name in (link.a, link.b)]
    kinds = " and ".join(sorted(d.kind for d in ends))
    models = " and ".join(sorted(f"{d.kind} {d.model or d.name}" for d in ends))
    own = link.latency_s, link.per_message_s, link.bytes_per_s
    return f"link of {kinds}", f"link of {models}", f"link of {models}, {own}"


def _uncertainty(mode: Mode, kernel: Kernel, costs: CostTable) -> Uncertainty | None:
    e = mode.estimate
    mean, spread = fit_lognormal(e.low_s, e.latency_s, e.high_s)
    if spread == 0:
        return None
    device = costs.platform.device(mode.device)
    model = f"{device.kind} {device.model or device.name}"
    environment = kind_of(kernel).structure == "environment"
    program = f" {kernel.program}" if kernel.program and environment else ""
    variant = torch_threads.base_variant(
        mode.variant
    )  # for any number of threads; `own` contains that number
    kernel_family = f"{kernel.kind.partition('.')[0]}{program} ({variant})"
    family = f"{kernel_family} on {model}"
    own = f"{family}, {mode.width} wide, {sorted(kernel.dims.items())} {kernel.program or ''}"
    return Uncertainty(
        device.kind, model, f"{kernel_family} on any {device.kind}", family, own, mean, spread
    )


def fit_lognormal(low: float, middle: float, high: float) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm of a factor on `middle` whose 90 % band
    is low to high. If low is 0, the lower end is assumed as far off as the upper one."""
    if middle <= 0 or high <= low:
        return 0.0, 0.0
    above = math.log(max(high, middle) / middle)
    below = math.log(middle / low) if low > 0 else above
    return (above - below) / 2, (above + below) / (2 * Z90)


@lru_cache(maxsize=4096)
def _normal(seed: int, name: str, number: int) -> Vector:
    digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
    numbers = np.random.default_rng([seed, digest]).standard_normal(number)
    numbers.setflags(write=False)
    return numbers
