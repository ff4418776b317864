"""Slices of GPUs: who shares one, how many there are, and how gradients are summed over them.

GMI-DRL (Wang and others, arXiv 2206.08482; USENIX ATC 2025) runs simulators, agents and trainers on
resizable shares of GPUs. Here are its mapping model, its search for the number of slices and
environments, and its choice of a reduction. Nothing here knows a device; `sliced_gpu` asks these
functions about a spec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Work = Literal["serving", "training"]
Layout = Literal["colocated", "dedicated"]
LAYOUTS: tuple[Layout, ...] = ("colocated", "dedicated")


@dataclass(frozen=True)
class Role:
    """The simulator, the agent or the trainer.

    seconds: time of its work between two trainings, alone.
    share: part of a GPU that it needs meanwhile, of SMs or of memory, whichever is larger.
    """

    seconds: float
    share: float


@dataclass(frozen=True)
class Loop:
    """A training loop whose roles live on slices.

    agent_shared, trainer_shared: the paper's alpha and beta, what of its share an agent or trainer
        takes for each simulator where several of these have it in common.
    steps: vector steps between two trainings.
    state_bytes, action_bytes, reward_bytes: of one vector step.
    model_bytes: of the gradients, or of the parameters.
    slices: how many there are in all.
    bytes_per_s: between two slices.
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
    """Trainings a second (serving: as many rounds of acting) that a whole GPU gives.

    The paper's R_all / R · 1 / (ΣT + COM / BW). Colocated: every slice holds all roles, so it is as
    large as the largest asks, and only gradients leave it. Dedicated: roles have slices of their
    own, shares are weighted with times, and states, actions, rewards and parameters are sent.
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


MOST_SLICES = 10
ENVIRONMENTS = tuple(128 * 2**i for i in range(9))
"""Of one slice, rising: 128 to 32,768."""
SATURATED = 0.05
"""Relative change of throughput over that of memory below which more environments are not tried:
assumed; from 0 to 0.05 the tests' searches stay within 2 % of the best."""


@dataclass(frozen=True)
class Probe:
    """One slice, measured or estimated. env_steps_per_s: of this slice; memory_bytes: it takes."""

    env_steps_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class BestSlices:
    """The best of a search. environments: of each slice. env_steps_per_s: of all slices together.
    memory_bytes: of one slice. probes: how many were asked for."""

    slices: int
    environments: int
    env_steps_per_s: float
    memory_bytes: float
    probes: int


def search(
    probe: Callable[[int, int], Probe],
    memory_bytes: float,
    *,
    most_slices: int = MOST_SLICES,
    environments: Sequence[int] = ENVIRONMENTS,
    saturated: float = SATURATED,
) -> BestSlices | None:
    """Slices of one GPU and environments of each slice with the most env steps a second.

    probe: (slices, environments) → one slice of so many. memory_bytes: of the whole GPU.
    environments: rising. None where not even the smallest slice has room.

    As in the paper: from many slices to one and from few environments to many, until memory
    overflows or throughput saturates; the memory beyond the first two probes lies on the line
    through them. Added here, for a larger slice saturates no sooner: each number of slices begins
    where the one before ended.
    """
    best: BestSlices | None = None
    line: list[tuple[int, float]] = []
    probes = start = 0
    for slices in range(most_slices, 0, -1):
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
            if before and _saturation(before, measured) < saturated:
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
    """A way to sum gradients over all slices. name: the paper's. on_ring: slices of a GPU whose
    gradients go between GPUs directly; the others' go through the host."""

    name: Literal["multi-process", "multi-ring", "hierarchical"]
    on_ring: int
    seconds: float


def reductions(
    gpus: int, slices: int, model_bytes: float, host_bytes_per_s: float, peer_bytes_per_s: float
) -> list[Reduction]:
    """Every allowed way to sum the gradients of `slices` slices on each of `gpus` GPUs.

    multi-process: all through the host. multi-ring: a ring over the GPUs for each slice, where
    there are no more slices than GPUs. hierarchical: `on_ring` slices of each GPU on the ring, the
    rest and one a ring through the host. peer_bytes_per_s: between two GPUs.
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
    """The quickest of `reductions`; of equals the first."""
    found = reductions(gpus, slices, model_bytes, host_bytes_per_s, peer_bytes_per_s)
    return min(found, key=lambda each: each.seconds)
