"""Actor threads that a GPU needs: sweeps of actors, cores and multiprocessors.

Inci and others (arXiv 2012.04210) judge a machine for reinforcement learning by its ratio of CPU
threads to streaming multiprocessors (SM): with too few threads the GPU waits for environments, with
too few SMs the environments wait for the GPU. Here the same ratio is predicted for a spec.

Model: a actors share the N environments and run on c cores in ceil(a/c) rounds; the GPU works off
every network task on s SMs; what is left (replay) has a core of its own. Slack is taken to be
enough for nobody to wait for anybody, so an iteration takes as long as the busiest of the three. On
a platform without a GPU every actor runs its own inference and the rest shares the cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pearl.errors import SpecError
from pearl.graph.task_graph import Task, TaskGraph
from pearl.planning.replicas import resized
from pearl.spec.own_code import graph_of
from pearl.spec.system import System
from pearl_devices import Device, Kernel, offers
from pearl_devices.base import ASKED
from pearl_devices.kernels import kind_of
from pearl_estimators import Estimate, estimate
from pearl_estimators.power import dynamic_energy_j

Busiest = Literal["actors", "gpu", "host"]

ON_CPU = ("environment", "insert", "sample", "prioritise")
"""Structures of kernels that stay on the CPU here, also where the GPU could run them."""


def quickest(system: System, task: Task, gpu: Device, sms: int) -> Estimate:
    """Cost of one firing on `sms` SMs, in the fastest variant that the spec allows."""
    allowed, offered = system.limits.variants.get(task.name), offers(task.kernel, gpu)
    plain = [v for v in offered if (v[0] in allowed if allowed else v[0] not in ASKED)]
    if not plain:
        raise SpecError(f"balance: no variant of {task.name} runs on {gpu.name} and is allowed")
    host = system.platform.device(system.platform.host)
    found = [
        estimate(task.kernel, gpu, variant=variant, width=min(width, sms), host=host)
        for variant, width in plain
    ]
    return min(found, key=lambda e: e.latency_s)


@dataclass(frozen=True)
class SweepPoint:
    """One machine and one number of actors. sms: None without a GPU.

    env_steps_per_s, env_steps_per_j: predicted; energy is modelled. busiest: what bounds it.
    actors_s, gpu_s, host_s: how long each is busy in one iteration.
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
    """For `sms` SMs: the threads at which actors and GPU take equally long.

    closed: of the closed form, None where no number of threads is enough (the fixed part of an
    actor's work alone takes longer than the GPU). swept: the least power of two of threads, of
    those swept, from which the GPU is the busier; None where all are too few. ratio: closed / sms.
    """

    sms: int
    closed: float | None
    swept: int | None
    ratio: float | None


@dataclass(frozen=True)
class Balance:
    """The sweeps of one spec. cores: actors = cores, all SMs; sms: all cores; actors: all of both.

    halved_sms, halved_cores: env steps per second with half of them, as a share of all.
    """

    spec: str
    platform: str
    cores: tuple[SweepPoint, ...]
    sms: tuple[SweepPoint, ...]
    actors: tuple[SweepPoint, ...]
    points: tuple[BalancePoint, ...]
    halved_sms: float | None
    halved_cores: float | None

    def to_json(self) -> dict[str, Any]:
        sweeps = {
            name: [vars(p) for p in getattr(self, name)]
            for name in ("cores", "sms", "actors", "points")
        }
        rest = ("spec", "platform", "halved_sms", "halved_cores")
        return {**{name: getattr(self, name) for name in rest}, **sweeps}


class Machine:
    """Times of the tasks of a system on its CPU and its GPU, at any share of either."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.graph: TaskGraph = graph_of(system)
        if not self.graph.env_steps:
            raise SpecError("balance: this algorithm has no env_step, so it has no actors")
        real = [d for d in system.platform.devices if not d.simulated]
        cpus = [d for d in real if d.width_unit == "cores"]
        gpus = [d for d in real if d.width_unit == "sm"]
        if len(cpus) != 1 or len(gpus) > 1:
            names = [f"{d.name} ({d.kind})" for d in system.platform.devices]
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
        self._host_s = sum(self._on_cpu(t.kernel, t) for t in self.host)

    def _on_cpu(self, of: Kernel, task: Task) -> float:
        """Seconds of all firings of an iteration on one core, in the fastest allowed variant."""
        allowed = self.system.limits.variants.get(task.name)
        found = [
            estimate(of, self.cpu, variant=variant, width=width).latency_s
            for variant, width in offers(of, self.cpu)
            if width == 1 and (variant in allowed if allowed else variant not in ASKED)
        ]
        if not found:
            raise SpecError(f"balance: no variant of {task.name} runs on one core and is allowed")
        return self.graph.repetition[task.name] * min(found)

    def acting_s(self, share: int) -> float:
        """Seconds an iteration of one actor with `share` environments takes on one core."""
        if share not in self._acts:
            self._acts[share] = sum(
                self._on_cpu(resized(t.kernel, share, t.environments), t) for t in self.acting
            )
        return self._acts[share]

    def gpu_s(self, sms: int) -> float:
        """Seconds that the network tasks of one iteration keep `sms` SMs busy."""
        return sum(firings * cost.latency_s for firings, cost in self._on_gpu(sms))

    def gpu_j(self, sms: int) -> float:
        """Joules above waiting of these firings."""
        return sum(firings * cost.energy_j for firings, cost in self._on_gpu(sms))

    def _on_gpu(self, sms: int) -> Iterator[tuple[int, Estimate]]:
        """Firings and the cost of one of each network task of an iteration."""
        assert self.gpu is not None
        for t in self.on_gpu:
            yield self.graph.repetition[t.name], quickest(self.system, t, self.gpu, sms)

    def at(self, actors: int, cores: int, sms: int | None) -> SweepPoint:
        """The prediction for `actors` actors on `cores` cores and `sms` SMs."""
        share = math.ceil(self.environments / actors)
        busy_s = actors * self.acting_s(share)
        actors_s = math.ceil(actors / cores) * self.acting_s(share)
        host_s: float = self._host_s
        gpu_s: float = 0.0
        if sms is None:  # the cores do everything
            actors_s = max(actors_s, (busy_s + host_s) / cores)
        else:
            gpu_s = self.gpu_s(sms)
        loads: list[tuple[float, Busiest]] = [
            (actors_s, "actors"),
            (gpu_s, "gpu"),
            (host_s, "host"),
        ]
        busiest = max(loads)
        period_s = busiest[0]
        joules = self.cpu.waiting_power_w * period_s
        joules += dynamic_energy_j(self.cpu, 1, busy_s + host_s)
        if self.gpu is not None and sms is not None:
            joules += self.gpu.waiting_power_w * period_s + self.gpu_j(sms)
        steps = self.graph.env_steps
        return SweepPoint(
            actors,
            cores,
            sms,
            steps / period_s,
            steps / joules if joules > 0 else 0.0,
            busiest[1],
            actors_s,
            gpu_s,
            host_s,
        )

    def balance_point(self, sms: int, threads: tuple[int, ...]) -> BalancePoint:
        """Threads that `sms` SMs need, with an actor a thread.

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


def halvings(most: int) -> tuple[int, ...]:
    """`most`, half of it, … down to 1, rising."""
    found = [most]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return tuple(reversed(found))


def balance(system: System) -> Balance:
    """The sweeps of a system on its platform; see the module. A platform without a CPU, or with two
    of a kind, is a SpecError."""
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
        cores=tuple(machine.at(c, c, width) for c in threads),
        sms=tuple(machine.at(most, most, s) for s in shares),
        actors=tuple(machine.at(a, most, width) for a in halvings(machine.environments)),
        points=tuple(machine.balance_point(s, threads) for s in shares if s is not None),
        halved_sms=None if width is None else relative(machine.at(most, most, max(width // 2, 1))),
        halved_cores=None if most == 1 else relative(machine.at(half, half, width)),
    )
