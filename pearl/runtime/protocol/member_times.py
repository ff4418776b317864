"""The times of the members of a fused call, each run alone on copies of the arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pearl.graph.sequential import program_order
from pearl.graph.task_graph import TaskGraph
from pearl.runtime.protocol.lane_recorder import medians_s
from pearl.runtime.protocol.residency import Residency
from pearl.runtime.protocol.single_lane import STOP, Job, SingleLaneRunner, bind
from pearl_devices import Buffers, Device, buffers, offers
from pearl_devices.kernels import kind_of


def member_times(
    graph: TaskGraph, fused: Job, arrays: Buffers, rounds: int
) -> dict[str, tuple[float, int]]:
    """Return median seconds and count of each member of a fused call, each run `rounds` times.

    Training results do not change: the members work on copies of all arrays, except the storage of
    transitions, which is too large to copy. Overwritten rows of the storage are restored.
    """
    own = {
        name: array if _stored(name, array) else array.copy()
        for name, array in arrays.items()
        if not name.startswith("batch.")
    }
    if STOP in own:
        own[STOP][:] = 0  # the run may have ended in the middle of a call
    lent = {name: array for name, array in own.items() if _stored(name, array)}
    written = np.empty(0, np.int64)
    for task in fused.tasks:
        if kind_of(graph.task(task).kernel).structure != "insert":
            continue
        firings = (rounds + 1) * graph.repetition[task]
        rows = firings * graph.task(task).kernel.dim("envs")
        head, capacity = int(arrays["replay.cursor"][0]), len(arrays["replay.reward"])
        written = (head + np.arange(rows)) % capacity
    overwritten = {name: array[written] for name, array in lent.items()}
    members, wide = {}, Device(fused.device_kind, fused.device_kind, width=2)
    for t in fused.tasks:
        kernel, variant = graph.task(t).kernel, fused.variant
        if variant not in dict(offers(kernel, wide)):
            variant = variant.removesuffix(
                "-pair"
            )  # the variant that one core of a pair runs alone
        members[t] = Job((t,), kernel, fused.device_kind, variant, fused.number)
    buffers.allocate([job.kernel for job in members.values()], own)
    order = [t for t in program_order(graph) if t in members]
    lane = SingleLaneRunner(bind(order, members, (), own), own, 0, Residency(members, own))
    lane.run(1, 0)
    for n in range(rounds):
        lane.run(n + 2, 0, timed=True)
    for name, array in lent.items():
        array[written] = overwritten[name]
    return medians_s(lane.times_ns)


def _stored(name: str, array: npt.NDArray[np.generic]) -> bool:
    """Whether an array is storage of transitions, too large to copy."""
    return name.startswith("replay.") and array.ndim > 1
