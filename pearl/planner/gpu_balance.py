"""Actor threads that a GPU needs: sweeps of actors, cores and multiprocessors.

Inci and others (arXiv 2012.04210) rate a machine for reinforcement learning by its ratio of CPU
threads to streaming multiprocessors (SM): with too few threads the GPU waits for environments, with
too few SMs the environments wait for the GPU. This module predicts the same ratio for a spec.

Model: a actors share the N environments and run on c cores in ceil(a/c) rounds; the GPU runs every
network task on s SMs; all other tasks (replay) have a dedicated core. The model assumes enough
slack that no task waits, so an iteration takes as long as the busiest of the three. On a platform
without a GPU every actor runs its own inference, and all other tasks share the cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pearl.errors import SpecError
from pearl.graph.task_graph import Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.draws import Draws, Vector
from pearl.planning.plans import plain
from pearl.planning.replicas import resize_kernel
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl_devices import Device, Kernel, offers
from pearl_devices.base import OPT_IN_VARIANTS
from pearl_devices.kernels import kind_of
from pearl_estimators import Estimate, estimate
from pearl_estimators.power import dynamic_energy_j

Busiest = Literal["actors", "gpu", "host"]

ON_CPU = ("environment", "insert", "sample", "prioritise")
"""Structures of kernels that stay on the CPU in this model, even if the GPU could run them."""


def fastest_mode(system: System, task: Task, gpu: Device, sms: int) -> Mode:
    """Return the fastest mode of a task on `sms` SMs that the spec allows.

    Raises:
        SpecError: the GPU offers no variant of the task that the spec allows.
    """
    host = system.platform.device(system.platform.host)
    modes = [
        _mode(task, task.kernel, gpu, variant, min(width, sms), None, host)
        for variant, width in _allowed_offers(system, task, task.kernel, gpu)
    ]
    if not modes:
        raise SpecError(f"balance: no variant of {task.name} runs on {gpu.name} and is allowed")
    return min(modes, key=lambda m: m.estimate.latency_s)


def _allowed_offers(
    system: System, task: Task, kernel: Kernel, device: Device
) -> list[tuple[str, int]]:
    """Return the variants and widths of a kernel on a device that the spec allows."""
    allowed, offered = system.limits.variants.get(task.name), offers(kernel, device)
    return [v for v in offered if (v[0] in allowed if allowed else v[0] not in OPT_IN_VARIANTS)]


def _mode(
    task: Task,
    kernel: Kernel,
    device: Device,
    variant: str,
    width: int,
    share: int | None,
    host: Device | None = None,
) -> Mode:
    cost = estimate(kernel, device, variant=variant, width=width, host=host)
    return Mode((task.name,), device.name, variant, width, cost, share)


@dataclass(frozen=True)
class SweepPoint:
    """The prediction for one machine and one number of actors.

    actors, cores, sms: numbers of each; sms is None without a GPU.
    env_steps_per_s, env_steps_per_j: predicted rates; energy is modelled.
    busiest: the part that bounds the rate.
    actors_s, gpu_s, host_s: seconds that each part is busy in one iteration.
    """

    actors: int
    cores: int
    sms: int | None
    env_steps_per_s: float
    env_steps_per_j: float
    busiest: Busiest
    actors_s: float
    gpu_s: float
    host_s: float


@dataclass(frozen=True)
class BalancePoint:
    """The number of threads at which actors and `sms` SMs take equally long.

    sms: number of SMs.
    closed: threads by the closed form; None if no number is enough, because the fixed part of an
        actor's work alone takes longer than the GPU.
    swept: the least of the swept numbers of threads from which the GPU is busier; None if all are
        too few.
    ratio: closed / sms.
    """

    sms: int
    closed: float | None
    swept: int | None
    ratio: float | None


@dataclass(frozen=True)
class BalanceAnswer:
    """The answer for the whole machine, with 90 % bands from samples of the estimates' bands.

    cpu, cores: model of the CPU, and number of its cores.
    actors: threads in use.
    gpu, sms: model of the GPU, and number of its SMs; None without a GPU.
    used_sms: the largest number of SMs that one kernel uses.
    threads: threads that all SMs need, by the closed form; infinite if no number is enough; None
        without a GPU.
    threads_band: (low, high) of `threads`.
    busiest: the part that bounds the rate.
    share: fraction of the draws in which the same part bounds the rate.
    env_steps_per_s: (predicted, low, high).
    draws: number of draws.
    """

    cpu: str
    cores: int
    actors: int
    gpu: str | None
    sms: int | None
    used_sms: int | None
    threads: float | None
    threads_band: tuple[float, float] | None
    busiest: Busiest
    share: float
    env_steps_per_s: tuple[float, float, float]
    draws: int


@dataclass(frozen=True)
class Balance:
    """The sweeps of one spec.

    spec, platform, verdict: their names, and the answer in figures.
    cores: points with as many actors as cores, and all SMs.
    sms: points with all cores.
    actors: points with all cores and all SMs.
    points: the balance of each number of SMs.
    halved_sms, halved_cores: env steps per second with half of them, as a fraction of all.
    simulated: simulated devices of the platform, which the model leaves out.
    """

    spec: str
    platform: str
    verdict: BalanceAnswer
    cores: tuple[SweepPoint, ...]
    sms: tuple[SweepPoint, ...]
    actors: tuple[SweepPoint, ...]
    points: tuple[BalancePoint, ...]
    halved_sms: float | None
    halved_cores: float | None
    simulated: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        sweeps = {
            name: [vars(p) for p in getattr(self, name)]
            for name in ("cores", "sms", "actors", "points")
        }
        rest = ("spec", "platform", "halved_sms", "halved_cores")
        values = {**{name: getattr(self, name) for name in rest}, **sweeps}
        return {**values, "verdict": plain(vars(self.verdict))}


class Machine:
    """Times of the tasks of a system on any share of its CPU and its GPU."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.graph: TaskGraph = build_graph(system)
        if not self.graph.env_steps:
            raise SpecError("balance: this algorithm has no env_step, so it has no actors")
        real = [d for d in system.platform.devices if not d.simulated]
        cpus = [d for d in real if d.width_unit == "cores"]
        gpus = [d for d in real if d.width_unit == "sm"]
        if len(cpus) != 1 or len(gpus) > 1:
            names = [
                f"{d.name} ({d.kind}{', simulated' if d.simulated else ''})"
                for d in system.platform.devices
            ]
            raise SpecError(
                f"balance: platform {system.platform.name} has {', '.join(names)}; one CPU and at "
                "most one GPU are needed"
            )
        self.cpu, self.gpu = cpus[0], gpus[0] if gpus else None
        self.on_gpu = tuple(
            t
            for t in self.graph.tasks
            if self.gpu and kind_of(t.kernel).structure not in ON_CPU and offers(t.kernel, self.gpu)
        )
        on_cpu = tuple(t for t in self.graph.tasks if t not in self.on_gpu)
        self.acting = tuple(t for t in on_cpu if t.environments)
        self.host = tuple(t for t in on_cpu if not t.environments)
        if not self.acting:
            raise SpecError("balance: no task of an actor runs on the CPU")
        self.environments = max(t.environments for t in self.acting)
        self._acts: dict[int, float] = {}
        self._host_s = self._seconds([self._on_cpu(t.kernel, t, None) for t in self.host])

    def _on_cpu(self, of: Kernel, task: Task, share: int | None) -> Mode:
        """Return the fastest allowed mode on one core. share: environments of an actor's kernel."""
        modes = [
            _mode(task, of, self.cpu, variant, width, share)
            for variant, width in _allowed_offers(self.system, task, of, self.cpu)
            if width == 1
        ]
        if not modes:
            raise SpecError(f"balance: no variant of {task.name} runs on one core and is allowed")
        return min(modes, key=lambda m: m.estimate.latency_s)

    def _seconds(self, modes: Sequence[Mode]) -> float:
        """Return the seconds of all firings of an iteration in these modes."""
        rate = self.graph.repetition
        return math.fsum(rate[m.tasks[0]] * m.estimate.latency_s for m in modes)

    def _acting(self, share: int) -> list[Mode]:
        """Return the modes of the tasks of one actor with `share` environments."""
        return [
            self._on_cpu(resize_kernel(t.kernel, share, t.environments), t, share)
            for t in self.acting
        ]

    def acting_s(self, share: int) -> float:
        """Return the seconds that an iteration of one actor with `share` environments takes on one
        core."""
        if share not in self._acts:
            self._acts[share] = self._seconds(self._acting(share))
        return self._acts[share]

    def gpu_s(self, sms: int) -> float:
        """Return the seconds that the network tasks of one iteration keep `sms` SMs busy."""
        return sum(firings * cost.latency_s for firings, cost in self._on_gpu(sms))

    def gpu_j(self, sms: int) -> float:
        """Return the joules of these firings above the GPU's waiting power."""
        return sum(firings * cost.energy_j for firings, cost in self._on_gpu(sms))

    def _on_gpu(self, sms: int) -> Iterator[tuple[int, Estimate]]:
        """Yield the firings an iteration of each network task, and the cost of one firing."""
        assert self.gpu is not None
        for t in self.on_gpu:
            mode = fastest_mode(self.system, t, self.gpu, sms)
            yield self.graph.repetition[t.name], mode.estimate

    def at(self, actors: int, cores: int, sms: int | None) -> SweepPoint:
        """Return the prediction for `actors` actors on `cores` cores and `sms` SMs."""
        share = math.ceil(self.environments / actors)
        busy_s = actors * self.acting_s(share)
        actors_s = math.ceil(actors / cores) * self.acting_s(share)
        host_s: float = self._host_s
        gpu_s: float = 0.0
        if sms is None:  # the cores do everything
            actors_s = max(actors_s, (busy_s + host_s) / cores)
        else:
            gpu_s = self.gpu_s(sms)
        loads: list[tuple[float, Busiest]]
        loads = [(actors_s, "actors"), (gpu_s, "gpu"), (host_s, "host")]
        period_s, busiest = max(loads)
        joules = self.cpu.waiting_power_w * period_s
        joules += dynamic_energy_j(self.cpu, 1, busy_s + host_s)
        if self.gpu is not None and sms is not None:
            joules += self.gpu.waiting_power_w * period_s + self.gpu_j(sms)
        steps = self.graph.env_steps
        per_j = steps / joules if joules > 0 else 0.0
        rates = steps / period_s, per_j
        return SweepPoint(actors, cores, sms, *rates, busiest, actors_s, gpu_s, host_s)

    def balance_point(self, sms: int, threads: tuple[int, ...]) -> BalancePoint:
        """Return the threads that `sms` SMs need, with one actor per thread.

        Closed form: an iteration of an actor with n environments takes B + n·b; with c threads it
        is B + N·b/c, which equals the GPU's time G at c = N·b/(G − B).
        """
        whole, one = self.acting_s(self.environments), self.acting_s(1)
        each = (whole - one) / max(self.environments - 1, 1)
        fixed = one - each
        spare = self.gpu_s(sms) - fixed
        closed = self.environments * each / spare if spare > 0 else None
        points = [self.at(c, c, sms) for c in threads]
        swept = next((p.cores for p in points if p.actors_s <= p.gpu_s), None)
        return BalancePoint(sms, closed, swept, closed / sms if closed is not None else None)

    def verdict(self, actors: int) -> BalanceAnswer:
        """Return the answer for `actors` actors with a core each, and all SMs.

        In each draw, a part of an iteration takes its predicted time times one factor, that of the
        errors of its kernels. So the fixed part of an actor's time, which does not shrink with
        threads, varies with the rest of its time.
        """
        draws, costs = Draws(), CostTable(self.system.platform, ())

        def factor(modes: Sequence[Mode]) -> Vector:
            whole = self._seconds(modes)
            if whole == 0:
                return np.ones(draws.number)
            each = [self._seconds([m]) * draws.factors(m, self.graph, costs) for m in modes]
            return np.asarray(np.sum(each, axis=0) / whole)

        n, cpu, gpu = self.environments, self.cpu, self.gpu
        width = gpu.width if gpu else None
        point = self.at(actors, actors, width)
        acts = factor(self._acting(math.ceil(n / actors)))
        hosts = factor([self._on_cpu(t.kernel, t, None) for t in self.host])
        there = [fastest_mode(self.system, t, gpu, gpu.width) for t in self.on_gpu if gpu]
        starts = factor(there)
        parts: dict[Busiest, Vector] = {
            "actors": point.actors_s * acts,
            "gpu": point.gpu_s * starts,
            "host": point.host_s * hosts,
        }
        period = np.max(list(parts.values()), axis=0)
        bounds = np.array(list(parts))[np.argmax(list(parts.values()), axis=0)]
        rates = self.graph.env_steps / period
        threads = band = None
        if gpu is not None:
            one = self.acting_s(1)
            each = (self.acting_s(n) - one) / max(n - 1, 1)
            spare = self.gpu_s(gpu.width) * starts - (one - each) * acts
            with np.errstate(divide="ignore", invalid="ignore"):
                needed = np.where(spare > 0, n * each * acts / spare, np.inf)
            closed = self.balance_point(gpu.width, ()).closed
            threads = math.inf if closed is None else closed
            band = _ends(needed)
        return BalanceAnswer(
            cpu=cpu.model or cpu.name,
            cores=cpu.width,
            actors=actors,
            gpu=(gpu.model or gpu.name) if gpu else None,
            sms=width,
            used_sms=max((m.width for m in there), default=None),
            threads=threads,
            threads_band=band,
            busiest=point.busiest,
            share=float(np.mean(bounds == point.busiest)),
            env_steps_per_s=(point.env_steps_per_s, *_ends(rates)),
            draws=draws.number,
        )


def _ends(drawn: Vector) -> tuple[float, float]:
    """Return the 90 % band, whose ends are samples: 5 % of all samples lie below, and 5 % above."""
    low, high = np.quantile(drawn, (0.05, 0.95), method="nearest")
    return float(low), float(high)


def halvings(most: int) -> tuple[int, ...]:
    """Return 1, …, a quarter of `most`, half of it, and `most`, in whole numbers."""
    numbers = [most]
    while numbers[-1] > 1:
        numbers.append(numbers[-1] // 2)
    return tuple(reversed(numbers))


def balance(system: System) -> Balance:
    """Return the sweeps of a system on its platform (see the module).

    Raises:
        SpecError: the platform has no CPU, two CPUs or two GPUs, or the spec has no actors.
    """
    machine = Machine(system)
    width = machine.gpu.width if machine.gpu else None
    threads = halvings(min(machine.cpu.width, machine.environments))
    most = threads[-1]
    shares: tuple[int | None, ...] = (None,) if width is None else halvings(width)
    whole = machine.at(most, most, width)

    def relative(point: SweepPoint) -> float:
        return point.env_steps_per_s / whole.env_steps_per_s

    half = max(most // 2, 1)
    return Balance(
        spec=system.name,
        platform=system.platform.name,
        verdict=machine.verdict(most),
        cores=tuple(machine.at(c, c, width) for c in threads),
        sms=tuple(machine.at(most, most, s) for s in shares),
        actors=tuple(machine.at(a, most, width) for a in halvings(machine.environments)),
        points=tuple(machine.balance_point(s, threads) for s in shares if s is not None),
        halved_sms=None if width is None else relative(machine.at(most, most, max(width // 2, 1))),
        halved_cores=None if most == 1 else relative(machine.at(half, half, width)),
        simulated=tuple(d.name for d in system.platform.devices if d.simulated),
    )
