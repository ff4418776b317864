"""GPUs of a spec, cut into slices: `gpu_slices` asked with the estimates of its tasks.

Everything runs on the GPU: environments are the simulator, forward passes that choose actions the
agent, and all else (replay, gradient steps, copies) the trainer. The unit of time is an iteration.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pearl.errors import SpecError
from pearl.graph.task_graph import Task, TaskGraph
from pearl.planner.gpu_balance import halvings, quickest
from pearl.planner.gpu_slices import (
    ENVIRONMENTS,
    LAYOUTS,
    BestSlices,
    Loop,
    Probe,
    Reduction,
    Role,
    reduction,
    search,
    throughput,
)
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl_devices import Device, offers
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.counting import F32, action_bytes, size

AGENT_SHARED, TRAINER_SHARED = 0.2, 0.3
"""alpha and beta as the paper has them for an A100; for other loops assumed."""
BETWEEN_SLICES = 1 / 2 / 1.16
"""Bandwidth between two slices over that of the GPU's memory: what is sent is read and written, and
16 % slower than within one slice (the paper)."""
CONTEXT_BYTES = 0.5e9
"""Memory of a slice beside its arrays: assumed, what one CUDA process takes."""
NO_SLOWER = 1.05
"""A role needs the least share on which it takes no more than this many times as long."""


@dataclass(frozen=True)
class SlicingResult:
    """How GPUs like that of a spec are best sliced. Predicted.

    device: its name; gpus: how many there are.
    simulator, agent, trainer: at the spec's own number of environments.
    serving_gain, training_gain: throughput colocated over dedicated.
    environments: of one slice, that were tried; refused: why no more were, empty where all were.
    best: slices of one GPU and environments of each; None where not even one has room.
    reduction: of the gradients, with as many slices.
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
        for task in self.graph.tasks:
            tasks[_role(task)].append(task)
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
        """Of all firings of an iteration, on `sms` SMs, each in its fastest allowed variant. gpu:
        in place of the whole one."""
        return sum(
            self.graph.repetition[t.name] * quickest(self.system, t, gpu or self.gpu, sms).latency_s
            for t in self.tasks[role]
        )

    def memory_bytes(self, role: str) -> float:
        """States and scratch that the tasks of a role touch."""
        tasks = self.tasks[role]
        states = {s for task in tasks for s in task.reads + task.writes}
        scratch = max(task.kernel.resident_bytes for task in tasks)
        return scratch + sum(self.graph.states[s] for s in states)

    def role(self, name: str) -> Role:
        """Its time on the whole GPU, and the least share on which it takes hardly longer."""
        whole = self.seconds(name, self.gpu.width)
        enough = next(
            n for n in halvings(self.gpu.width) if self.seconds(name, n) <= NO_SLOWER * whole
        )
        memory = self.memory_bytes(name) / self.gpu.memory_bytes
        return Role(whole, max(enough / self.gpu.width, memory))

    def probe(self, slices: int) -> Probe:
        """One of so many slices, with all roles; the others take as much of the memory's rate."""
        sms = max(1, self.gpu.width // slices)
        crowded = replace(self.gpu, memory_bytes_per_s=self.gpu.memory_bytes_per_s / slices)
        seconds = sum(self.seconds(role, sms, crowded) for role in self.tasks)
        scratch = max(task.kernel.resident_bytes for task in self.graph.tasks)
        memory_bytes = CONTEXT_BYTES + sum(self.graph.states.values()) + scratch
        return Probe(self.graph.env_steps / seconds, memory_bytes)


def _role(task: Task) -> str:
    structure = kind_of(task.kernel).structure
    return {"environment": "simulator", "network": "agent"}.get(structure, "trainer")


def plan_slices(system: System, gpus: int = 1) -> SlicingResult:
    """The slices of `gpus` GPUs like that of a system.

    Raises:
        SpecError: there is no GPU, or several, or it cannot run a task; the text names it.
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
    systems, refused = _costs_by_size(system, gpu)
    sized = tuple(systems)
    best = search(lambda k, n: systems[n].probe(k), gpu.memory_bytes, environments=sized)
    host = system.platform.route(gpu.name, system.platform.host)[0].bytes_per_s
    peer = gpu.figures.get("peer_bytes_per_s", host)
    summed = reduction(gpus, best.slices, loop.model_bytes, host, peer) if best else None
    return SlicingResult(
        gpu.name, gpus, loop.simulator, loop.agent, loop.trainer, gains["serving"],
        gains["training"], sized, refused, best, summed,
    )  # fmt: skip


def _costs_by_size(system: System, gpu: Device) -> tuple[dict[int, SliceCosts], str]:
    """The costs with each number of environments that the spec allows, and why not with more."""
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
