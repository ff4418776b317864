"""Memory of tasks on their device, with the channels that they read, and the arrays that they keep
in the host's memory instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pearl.graph.period import Expansion
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import Mode
from pearl_devices import arrays_on_host
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.record import size_bytes


def bytes_needed(x: Expansion, members: Sequence[int], owners: Mapping[str, str]) -> float:
    """Return the bytes of the kernels' scratch and of the states of `members`. owners: from
    `owners`."""
    names = {t for u in members for t in x.units[u]}
    scratch = {f.tasks: f.kernel.resident_bytes for f in x.graph.fusions}
    total = 0.0
    for u in members:
        tasks = x.units[u]
        total += (
            scratch[tasks]
            if tasks in scratch and len(tasks) > 1
            else sum(x.graph.task(t).kernel.resident_bytes for t in tasks)
        )
    return total + sum(size for s, size in x.graph.states.items() if owners.get(s) in names)


def bytes_on_host(
    x: Expansion,
    members: Sequence[int],
    options: Sequence[Sequence[Mode]],
    kinds: Mapping[str, str],
) -> float:
    """Return the bytes of the members' states that stay in the host's memory in every mode.

    options: unit → its modes. kinds: device → its kind.
    """
    host_arrays: dict[str, set[str]] = {}
    for u in members:
        for t in x.units[u]:
            kernel = x.graph.task(t).kernel
            ways = {(kinds[m.device], "" if m.fused else m.variant) for m in options[u]}
            each = (arrays_on_host(kernel, kind, v) if v else () for kind, v in ways)
            host_arrays[t] = set.intersection(*map(set, each))
    names = set().union(*host_arrays.values())
    if not names:
        return 0.0
    sizes: dict[str, float] = {}
    for t in host_arrays:
        kernel = x.graph.task(t).kernel
        arrays = kind_of(kernel).arrays(kernel)
        sizes |= {n: size_bytes(spec) for n, spec in arrays.items() if n in names}
        names -= {n for n in arrays if n not in host_arrays[t]}
    states = tuple(f"{s}." for s in x.graph.states)
    return float(sum(size for n, size in sizes.items() if n in names and n.startswith(states)))


def least_channel_bytes(x: Expansion, graph: TaskGraph) -> list[float]:
    """Return, for each unit, the bytes of the channels that it reads, at their least capacities.

    graph: the graph with no more slack than its own. A plan may have that little, so no plan needs
    less memory.
    """
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    read = [0.0] * len(x.units)
    for e in graph.edges:
        if e.is_channel and unit[e.src] != unit[e.dst]:
            read[unit[e.dst]] += e.least_capacity / e.production * e.bytes
    return read


def owners(x: Expansion) -> dict[str, str]:
    """Return the task that stores each state: the first that holds it, else the first user."""
    homes: dict[str, str] = {}
    touched: dict[str, str] = {}
    for t in x.graph.tasks:
        for s in t.home:
            homes.setdefault(s, t.name)
        for s in t.reads + t.writes:
            touched.setdefault(s, t.name)
    return touched | homes


def states_of(x: Expansion, names: set[str]) -> list[str]:
    """Return the states that these tasks store."""
    owner = owners(x)
    return [s for s in x.graph.states if owner.get(s) in names]
