"""Slices of GPUs: which roles share one, how many there are, and how gradients are summed.

GMI-DRL (Wang and others, arXiv 2206.08482; USENIX ATC 2025) runs simulators, agents and trainers on
resizable shares of GPUs. This module has its mapping model, its search for the number of slices and
environments, and its choice of a reduction; `plan_slices` applies them to the estimates of a spec.

The whole loop of a spec runs on the GPU. The environments are the simulator, forward passes that
choose actions the agent, and all other tasks (replay, gradient steps, copies) the trainer. The unit
of time is an iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pearl.errors import SpecError
from pearl.graph.task_graph import Task, TaskGraph
from pearl.planner.gpu_balance import fastest_mode, halvings
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl_devices import Device, offers
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import F32, action_bytes, size

Work = Literal["serving", "training"]
Layout = Literal["colocated", "dedicated"]
LAYOUTS: tuple[Layout, ...] = ("colocated", "dedicated")

MOST_SLICES = 10
ENVIRONMENTS = tuple(128 * 2**i for i in range(9))
"""Environments of one slice that a search tries, in this order: 128 to 32,768."""

SATURATED = 0.05
"""Relative change of throughput over that of memory below which a search tries no more environments
(assumed: from 0 to 0.05 the searches of the tests stay within 2 % of the best)."""

AGENT_SHARED, TRAINER_SHARED = 0.2, 0.3
"""The paper's alpha and beta for an A100; assumed for other loops."""

BETWEEN_SLICES = 1 / 2 / 1.16
"""Bandwidth between two slices over that of the GPU's memory: a message is written and read, 16 %
slower than within one slice (the paper)."""

CONTEXT_BYTES = 0.5e9
"""Memory of a slice without its arrays (assumed: one CUDA process)."""

NO_SLOWER = 1.05
"""The share of a role is the least on which its time grows by at most this factor."""


@dataclass(frozen=True)
class Role:
    """The simulator, the agent or the trainer.

    seconds: time of its work between two trainings, alone.
    share: fraction of a GPU that the role needs for that time: of SMs or of memory, the larger one.
    """

    seconds: float
    share: float


@dataclass(frozen=True)
class Loop:
    """A training loop whose roles live on slices.

    agent_shared, trainer_shared: the paper's alpha and beta, the fraction of its share that an
        agent or trainer takes per simulator if several simulators use it.
    steps: vector steps between two trainings.
    state_bytes, action_bytes, reward_bytes: bytes of one vector step.
    model_bytes: bytes of the gradients, or of the parameters.
    slices: number of slices in all.
    bytes_per_s: bandwidth between two slices.
    """

    simulator: Role
    agent: Role
    trainer: Role
    agent_shared: float
    trainer_shared: float
    steps: int
    state_bytes: float
    action_bytes: float
    reward_bytes: float
    model_bytes: float
    slices: int
    bytes_per_s: float


def throughput(loop: Loop, work: Work, layout: Layout) -> float:
    """Return the trainings per second (serving: rounds of acting) of a whole GPU.

    The paper's R_all / R · 1 / (ΣT + COM / BW). Colocated: every slice holds all roles, so its size
    is the largest share of a role, and only gradients leave the slice. Dedicated: each role has its
    own slices, shares are weighted with times, and states, actions, rewards and parameters are
    sent.
    """
    s, a, t = loop.simulator, loop.agent, loop.trainer
    training = work == "training"
    roles = (s, a, t) if training else (s, a)
    busy_s = sum(role.seconds for role in roles)
    summed = 2 * (loop.slices - 1) * loop.model_bytes / loop.slices if training else 0.0
    if layout == "colocated":
        share, moved = max(role.share for role in roles), summed
    else:
        factors = (1.0, loop.agent_shared, loop.trainer_shared)
        weighed = (r.seconds * k * r.share for r, k in zip(roles, factors, strict=False))
        share = sum(weighed) / busy_s
        step = loop.state_bytes + loop.action_bytes + loop.reward_bytes
        moved = loop.steps * (step if training else step + loop.state_bytes)
        moved += summed + loop.model_bytes if training else 0.0
    return 1 / (share * (busy_s + moved / loop.bytes_per_s))


@dataclass(frozen=True)
class Probe:
    """One slice, measured or estimated.

    env_steps_per_s: rate of this slice.
    memory_bytes: memory that the slice takes.
    """

    env_steps_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class BestSlices:
    """The best result of a search.

    slices: number of slices of one GPU.
    environments: environments of each slice.
    env_steps_per_s: rate of all slices together.
    memory_bytes: memory of one slice.
    probes: number of probes that the search took.
    """

    slices: int
    environments: int
    env_steps_per_s: float
    memory_bytes: float
    probes: int


def search(
    probe: Callable[[int, int], Probe],
    memory_bytes: float,
    *,
    environments: Sequence[int] = ENVIRONMENTS,
) -> BestSlices | None:
    """Find the slices of one GPU and the environments of each slice with the most env steps per
    second; None if not even the smallest slice fits.

    As in the paper, the search goes from many slices to one and from few environments to many,
    until memory overflows or throughput saturates. The memory beyond the first two probes lies on
    the line through them. Unlike the paper, each number of slices begins at the environments where
    the previous one ended, because a larger slice saturates no sooner.

    Args:
        probe: (slices, environments) → one slice of that size.
        memory_bytes: memory of the whole GPU.
        most_slices: the largest number of slices.
        environments: numbers of environments of a slice, rising.
    """
    best: BestSlices | None = None
    line: list[tuple[int, float]] = []
    probes = start = 0
    for slices in range(MOST_SLICES, 0, -1):
        room, before = memory_bytes / slices, None
        for place, count in enumerate(environments[start:], start):
            if len(line) == 2 and _on_line(line, count) > room:
                break
            measured = probe(slices, count)
            probes += 1
            if len(line) < 2 and count not in dict(line):
                line.append((count, measured.memory_bytes))
            if measured.memory_bytes > room:
                break
            total = slices * measured.env_steps_per_s
            if best is None or total > best.env_steps_per_s:
                best = BestSlices(slices, count, total, measured.memory_bytes, probes)
            if before and _saturation(before, measured) < SATURATED:
                break
            before, start = measured, place
    return replace(best, probes=probes) if best else None


def _on_line(two: Sequence[tuple[int, float]], count: int) -> float:
    (few, first), (many, second) = two
    return second + (second - first) / (many - few) * (count - many)


def _saturation(before: Probe, after: Probe) -> float:
    gained = after.env_steps_per_s / before.env_steps_per_s - 1
    grown = after.memory_bytes / before.memory_bytes - 1
    return gained / grown if grown > 0 else float("inf")


@dataclass(frozen=True)
class Reduction:
    """A way to sum gradients over all slices.

    name: the paper's name.
    on_ring: slices of a GPU whose gradients go between GPUs directly; the others go through the
        host.
    seconds: time of one reduction.
    """

    name: Literal["multi-process", "multi-ring", "hierarchical"]
    on_ring: int
    seconds: float


def reductions(
    gpus: int, slices: int, model_bytes: float, host_bytes_per_s: float, peer_bytes_per_s: float
) -> list[Reduction]:
    """List every allowed way to sum the gradients of `slices` slices on each of `gpus` GPUs.

    multi-process: all through the host. multi-ring: a ring over the GPUs for each slice, allowed if
    there are no more slices than GPUs. hierarchical: `on_ring` slices of each GPU on the ring; the
    others, and one per ring, go through the host. peer_bytes_per_s: bandwidth between two GPUs.
    """
    n, m, size = gpus, slices, model_bytes
    ways = [Reduction("multi-process", 0, 2 * (m * n - 1) * size / (m * n * host_bytes_per_s))]
    if m <= n:
        seconds = 4 * (n - 1) * size / (n * peer_bytes_per_s)
        ways.append(Reduction("multi-ring", m, seconds))
    for k in range(1, m + 1):
        ends = n * (m - k) + k
        seconds = 2 * (n - 1) * size / (n * peer_bytes_per_s)
        seconds += 2 * (ends - 1) * size / (ends * host_bytes_per_s)
        ways.append(Reduction("hierarchical", k, seconds))
    return ways


def reduction(
    gpus: int, slices: int, model_bytes: float, host_bytes_per_s: float, peer_bytes_per_s: float
) -> Reduction:
    """Return the fastest of `reductions`, the first of equal ones."""
    ways = reductions(gpus, slices, model_bytes, host_bytes_per_s, peer_bytes_per_s)
    return min(ways, key=lambda way: way.seconds)


@dataclass(frozen=True)
class SlicingResult:
    """The predicted best slicing of GPUs like that of a spec.

    device: name of the GPU in the platform.
    gpus: number of GPUs.
    simulator, agent, trainer: the roles at the spec's own number of environments.
    serving_gain, training_gain: throughput colocated over dedicated.
    environments: environments of one slice that were tried.
    refused: the reason why no more were tried; empty if all were.
    best: slices of one GPU and environments of each; None if not even one slice fits.
    reduction: reduction of the gradients with as many slices; None without `best`.
    """

    device: str
    gpus: int
    simulator: Role
    agent: Role
    trainer: Role
    serving_gain: float
    training_gain: float
    environments: tuple[int, ...]
    refused: str
    best: BestSlices | None
    reduction: Reduction | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class SliceCosts:
    """Times and memory of a system on shares of its GPU."""

    def __init__(self, system: System, gpu: Device) -> None:
        self.system, self.gpu = system, gpu
        self.graph: TaskGraph = build_graph(system)
        tasks: dict[str, list[Task]] = {"simulator": [], "agent": [], "trainer": []}
        roles = {"environment": "simulator", "network": "agent"}
        for task in self.graph.tasks:
            tasks[roles.get(kind_of(task.kernel).structure, "trainer")].append(task)
            if not offers(task.kernel, gpu):
                raise SpecError(
                    f"slices: {gpu.name} cannot run task {task.name} (kernel {task.kernel.kind}"
                    + (f", {task.kernel.program}" if task.kernel.program else "")
                    + "); slices hold the whole loop, so every task must run on the GPU"
                )
        empty = [role for role, members in tasks.items() if not members]
        if empty:
            raise SpecError(f"slices: algorithm {system.algorithm.name} has no {empty[0]} of tasks")
        self.tasks = tasks

    def seconds(self, role: str, sms: int, gpu: Device | None = None) -> float:
        """Return the seconds of a role's firings per iteration on `sms` SMs, each in its fastest
        allowed variant. gpu: a device instead of the whole GPU."""
        return sum(
            self.graph.repetition[t.name]
            * fastest_mode(self.system, t, gpu or self.gpu, sms).estimate.latency_s
            for t in self.tasks[role]
        )

    def memory_bytes(self, role: str) -> float:
        """Return the bytes of the states and the scratch that the tasks of a role touch."""
        tasks = self.tasks[role]
        states = {s for task in tasks for s in task.reads + task.writes}
        scratch = max(task.kernel.resident_bytes for task in tasks)
        return scratch + sum(self.graph.states[s] for s in states)

    def role(self, name: str) -> Role:
        """Return a role with its time on the whole GPU and the least share on which it is hardly
        slower (`NO_SLOWER`)."""
        whole = self.seconds(name, self.gpu.width)
        enough = next(
            n for n in halvings(self.gpu.width) if self.seconds(name, n) <= NO_SLOWER * whole
        )
        memory = self.memory_bytes(name) / self.gpu.memory_bytes
        return Role(whole, max(enough / self.gpu.width, memory))

    def probe(self, slices: int) -> Probe:
        """Return one of `slices` slices that hold all roles and share the memory's bandwidth."""
        sms = max(1, self.gpu.width // slices)
        crowded = replace(self.gpu, memory_bytes_per_s=self.gpu.memory_bytes_per_s / slices)
        seconds = sum(self.seconds(role, sms, crowded) for role in self.tasks)
        scratch = max(task.kernel.resident_bytes for task in self.graph.tasks)
        memory_bytes = CONTEXT_BYTES + sum(self.graph.states.values()) + scratch
        return Probe(self.graph.env_steps / seconds, memory_bytes)


def plan_slices(system: System, gpus: int = 1) -> SlicingResult:
    """Find the slices of `gpus` GPUs like that of a system.

    Raises:
        SpecError: the platform has no GPU or several, or the GPU cannot run a task.
    """
    gpu_devices = [d for d in system.platform.devices if d.width_unit == "sm" and not d.simulated]
    if len(gpu_devices) != 1:
        names = [f"{d.name} ({d.kind})" for d in system.platform.devices]
        raise SpecError(
            f"slices: platform {system.platform.name} has {', '.join(names)}; exactly one GPU is "
            "needed, which --gpus multiplies"
        )
    gpu = gpu_devices[0]
    costs = SliceCosts(system, gpu)
    loop = _loop(system, costs, gpus)
    gains = {
        work: throughput(loop, work, LAYOUTS[0]) / throughput(loop, work, LAYOUTS[1])
        for work in ("serving", "training")
    }
    sized, refused = _costs_by_size(system, gpu)
    best = search(lambda k, n: sized[n].probe(k), gpu.memory_bytes, environments=tuple(sized))
    host = system.platform.route(gpu.name, system.platform.host)[0].bytes_per_s
    peer = gpu.figures.get("peer_bytes_per_s", host)
    summed = reduction(gpus, best.slices, loop.model_bytes, host, peer) if best else None
    return SlicingResult(
        gpu.name, gpus, loop.simulator, loop.agent, loop.trainer, gains["serving"],
        gains["training"], tuple(sized), refused, best, summed,
    )  # fmt: skip


def _costs_by_size(system: System, gpu: Device) -> tuple[dict[int, SliceCosts], str]:
    """Return the costs for each number of environments that the spec allows, and why more are not
    allowed."""
    costs: dict[int, SliceCosts] = {}
    for count in ENVIRONMENTS:
        try:
            costs[count] = SliceCosts(load(system.raw, set={"algorithm.num_envs": count}), gpu)
        except SpecError as error:
            if not costs:
                raise
            return costs, str(error)
    return costs, ""


def _loop(system: System, costs: SliceCosts, gpus: int) -> Loop:
    (simulator,) = costs.tasks["simulator"][:1]
    learners = [t.kernel for t in costs.graph.tasks if kind_of(t.kernel).structure == "gradient"]
    envs = simulator.environments
    return Loop(
        costs.role("simulator"),
        costs.role("agent"),
        costs.role("trainer"),
        AGENT_SHARED,
        TRAINER_SHARED,
        steps=costs.graph.repetition[simulator.name],
        state_bytes=float(F32 * system.env.obs * envs),
        action_bytes=float(action_bytes(simulator.kernel) * envs),
        reward_bytes=float(F32 * envs),
        model_bytes=float(F32 * sum(size(k, name) for k in learners for name in k.networks)),
        slices=gpus,
        bytes_per_s=costs.gpu.memory_bytes_per_s * BETWEEN_SLICES,
    )
