"""The batch size at which a task would move to another device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

from pearl.errors import InfeasibleError, SpecError
from pearl.explanation.resolve import LEAST_S, devices_in
from pearl.planner.planner import build_problem
from pearl.solvers.solver import solve_problem
from pearl.spec.reading import load
from pearl.spec.system import System

MOST = 16_384
"""The largest batch size that is tried (assumed: nobody trains with a larger one)."""


@dataclass(frozen=True)
class Move:
    """From batch size `batch` on, the task is on `dst`; with one sample less it is on `src`."""

    batch: int
    src: str
    dst: str


@dataclass(frozen=True)
class Crossover:
    """The device of a task as the batch grows from `least` to `most`.

    starts_on: device at the least batch size.
    moves: changes of the device.
    batch, device: of the spec.
    proven: every plan behind it is proved to be the best.
    """

    task: str
    batch: int
    device: str
    least: int
    most: int
    starts_on: str
    moves: tuple[Move, ...]
    proven: bool


def crossover(
    system: System,
    task: str = "learn",
    *,
    most: int = MOST,
    method: str | None = None,
    time_limit_s: float = 5.0,
) -> Crossover | None:
    """Plan again for batch sizes that are powers of two, then bisect between two neighbours with
    different devices for the task.

    A move there and back between two neighbours is not found. learning_starts grows with the batch
    if necessary. The range ends with the largest batch that the spec allows, or with the time.

    Return None if the task can run on one device only, the algorithm has no batch size, or no plan
    was found.

    Raises:
        SpecError: there is no such task.
    """

    deadline = time.monotonic() + time_limit_s
    proven = True

    def device_at(batch: int) -> str | None:
        nonlocal proven
        left = deadline - time.monotonic()
        if left < LEAST_S:
            return None
        changed = {"algorithm.batch_size": batch}
        if hasattr(system.algorithm, "learning_starts"):
            changed["algorithm.learning_starts"] = max(batch, system.algorithm.learning_starts)
        try:
            at = load(system.raw, set=changed)
        except SpecError:  # a batch that the replay, or the rules of specs, do not allow
            return None
        try:
            plan = solve_problem(build_problem(at), method=method, time_limit_s=left)
        except InfeasibleError:
            return None
        proven = proven and plan.status == "optimal"
        return devices_in(plan, [task])[0]

    problem = build_problem(system)
    tasks = [t.name for t in problem.graph.tasks]
    if task not in tasks:
        raise SpecError(f"no task {task!r}; there are {tasks}")
    now = getattr(system.algorithm, "batch_size", None)
    if now is None:  # other options determine its batches
        return None
    device_now = device_at(now)
    if device_now is None or len({m.device for m in problem.costs.of(task)}) < 2:
        return None
    powers = [2**k for k in range(most.bit_length()) if 2**k <= most]
    where: dict[int, str] = {now: device_now}
    for outward in ([b for b in powers if b > now], [b for b in reversed(powers) if b < now]):
        for batch in outward:
            device = device_at(batch)
            if device is None:
                break
            where[batch] = device
    moves = []
    between = list(pairwise(sorted(where)))
    while between:
        low, high = between.pop(0)
        if where[low] == where[high]:
            continue
        middle = (low + high) // 2
        device = device_at(middle) if high - low > 1 else None
        if device is None:
            proven = proven and high - low == 1
            moves.append(Move(high, where[low], where[high]))
        else:
            where[middle] = device
            between = [(low, middle), (middle, high), *between]
    first, last = min(where), max(where)
    return Crossover(task, now, device_now, first, last, where[first], tuple(moves), proven)
