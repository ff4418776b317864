"""A search space as tables for the compiled timing of assignments (`timed_native`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl.solvers.large.load_annealing import LoadProblem, best_mode, packed, shared_width
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import watched

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Functions compiled by numba read these numbers: the digest of machine code covers this file.
LINK, LANE, NOBODY = 0, 1, 2
"""Payer of a copy."""


class LoopTables(NamedTuple):
    """A search space with lanes.

    latency, occupancy: (units, lanes), seconds of a firing in the mode of least occupancy there.
    item: unit → its class. firings: unit → firings per iteration. device: lane → device.
    node_unit: node of the expansion → unit.
    arc_tail, arc_head, arc_tokens, arc_edge: arcs sorted by tail. arc_edge is the number of an
        edge, or -1 for the order of a task's firings and for the arc from a node to itself.
    arc_first: node → its first arc.
    edge_unit, edge_bytes: edge → unit that reads it, and bytes of a message.
    task_unit, task_node, task_messages: producer → unit, node of its first message, messages.
    task_first, task_edges: producer → its edges to other units.
    sent_first, sent_arcs: producer → its arcs to other units.
    host: device. hop, second: (devices, devices), the links of a route, -1 for none.
    up: device → its link to the host, -1 for none.
    wait, byte_wait: (devices, devices), seconds per message and per byte on a route.
    per_message, per_byte, link_wait: link → seconds. paid: link → payer.
    memory: class → bytes. capacity: device → bytes.
    """

    latency: Floats
    occupancy: Floats
    item: Ints
    firings: Ints
    device: Ints
    node_unit: Ints
    arc_tail: Ints
    arc_head: Ints
    arc_tokens: Ints
    arc_edge: Ints
    arc_first: Ints
    edge_unit: Ints
    edge_bytes: Floats
    task_unit: Ints
    task_node: Ints
    task_messages: Ints
    task_first: Ints
    task_edges: Ints
    sent_first: Ints
    sent_arcs: Ints
    host: int
    hop: Ints
    second: Ints
    up: Ints
    wait: Floats
    byte_wait: Floats
    per_message: Floats
    per_byte: Floats
    link_wait: Floats
    paid: Ints
    memory: Floats
    capacity: Floats


class Scratch(NamedTuple):
    """Arrays for the results of evaluations.

    policy: arc of each node, reused by the next evaluation. cycle, length: nodes of the critical
    cycle and their number.
    """

    occupancy: Floats
    load: Floats
    size: Floats
    payer: Ints
    reached: Ints
    sent: Floats
    seconds: Floats
    policy: Ints
    ratio: Floats
    value: Floats
    state: Ints
    path: Ints
    cycle: Ints
    length: Ints


def scratch_of(t: LoopTables) -> Scratch:
    """Return new arrays, without a policy."""
    units, devices, nodes = len(t.item), len(t.up), len(t.node_unit)
    return Scratch(
        np.zeros(units),
        np.zeros(len(t.device) + len(t.paid)),
        np.zeros(devices),
        np.zeros(devices, np.int64),
        np.zeros(devices, np.int64),
        np.zeros((len(t.task_unit), devices)),
        np.zeros(len(t.arc_edge)),
        np.full(nodes, -1, np.int64),
        np.zeros(nodes),
        np.zeros(nodes),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros(1, np.int64),
    )


def producers(space: SearchSpace) -> list[str]:
    """Return the tasks with messages to other units, in the order of `LoopTables.task_unit`."""
    x = space.expansion
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    return list(dict.fromkeys(e.src for e in x.graph.edges if unit[e.src] != unit[e.dst]))


def to_tables(b: LoadProblem) -> LoopTables:
    """Return the tables of a search space."""
    p, x, platform = b.space, b.space.expansion, b.space.costs.platform
    names = [d.name for d in platform.devices]
    unit = {t: u for u, tasks in enumerate(x.units) for t in tasks}
    item = np.zeros(len(x.units), np.int64)
    for c, members in enumerate(p.classes):
        item[list(members)] = c
    shape = len(x.units), len(b.lanes)
    latency, occupancy = np.full(shape, np.inf), np.full(shape, np.inf)
    for u in watched(range(len(x.units))):
        for k, (device, _) in enumerate(b.lanes):
            mode = best_mode(p, u, device, shared_width(p, device))
            if mode:
                latency[u, k] = mode.estimate.latency_s
                occupancy[u, k] = mode.estimate.occupancy_s
    firings = np.array([x.firings(u) for u in range(len(x.units))], np.int64)
    node_unit = np.array([u for u, _ in x.nodes], np.int64)
    rows = [(s, d, m, e) for s, d, m, e in x.arcs]
    nodes_of: list[list[int]] = [[] for _ in x.units]
    for i, (u, _) in enumerate(x.nodes):
        nodes_of[u].append(i)
    for row in nodes_of:
        for k, i in enumerate(row):
            rows.append((i, i, 1, -1))
            if len(row) > 1:
                rows.append((i, row[(k + 1) % len(row)], int(k + 1 == len(row)), -1))
    rows.sort(key=lambda r: r[0])
    arcs = np.array(rows, np.int64).reshape(-1, 4)
    arc_first = np.zeros(len(x.nodes) + 1, np.int64)
    np.cumsum(np.bincount(arcs[:, 0], minlength=len(x.nodes)), out=arc_first[1:])
    senders = producers(p)
    number = {task: k for k, task in enumerate(senders)}
    edges_of: list[list[int]] = [[] for _ in senders]
    edge_bytes = np.zeros(len(x.graph.edges))
    for e, edge in enumerate(x.graph.edges):
        single = len(x.units[unit[edge.src]]) == 1
        edge_bytes[e] = edge.bytes if single else edge.bytes * x.graph.repetition[edge.src]
        if unit[edge.src] != unit[edge.dst]:
            edges_of[number[edge.src]].append(e)
    arcs_of: list[list[int]] = [[] for _ in senders]
    for k, (_, _, _, e) in enumerate(rows):
        if e >= 0 and unit[x.graph.edges[e].src] != unit[x.graph.edges[e].dst]:
            arcs_of[number[x.graph.edges[e].src]].append(k)
    task_first, task_edges = packed(edges_of)
    sent_first, sent_arcs = packed(arcs_of)
    size = len(names), len(names)
    hop, second = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    wait, byte_wait = np.zeros(size), np.zeros(size)
    link_number = {link.name: k for k, link in enumerate(platform.links)}
    used = {device for device, _ in b.lanes} | {platform.host}
    linked = {end for link in platform.links for end in (link.a, link.b)}
    for i, src in enumerate(names):
        for j, dst in enumerate(names):
            if src == dst or not {src, dst} <= used & linked:
                continue
            route = platform.route(src, dst)
            hop[i, j] = link_number[route[0].name]
            second[i, j] = link_number[route[1].name] if len(route) > 1 else -1
            wait[i, j] = sum(link.latency_s for link in route)
            byte_wait[i, j] = sum(1 / link.bytes_per_s for link in route)
    host = names.index(platform.host)
    kinds = {"link": LINK, "lane": LANE, "nobody": NOBODY}
    return LoopTables(
        latency,
        occupancy,
        item,
        firings,
        np.array([names.index(device) for device, _ in b.lanes], np.int64),
        node_unit,
        np.ascontiguousarray(arcs[:, 0]),
        np.ascontiguousarray(arcs[:, 1]),
        np.ascontiguousarray(arcs[:, 2]),
        np.ascontiguousarray(arcs[:, 3]),
        arc_first,
        np.array([unit[e.dst] for e in x.graph.edges], np.int64),
        edge_bytes,
        np.array([unit[t] for t in senders], np.int64),
        np.array([x.node[t, 0] for t in senders], np.int64),
        np.array(
            [x.graph.repetition[t] if len(x.units[unit[t]]) == 1 else 1 for t in senders],
            np.int64,
        ),
        task_first,
        task_edges,
        sent_first,
        sent_arcs,
        host,
        hop,
        second,
        hop[:, host].copy(),
        wait,
        byte_wait,
        np.array([k.per_message_s for k in platform.links], np.float64),
        np.array([1 / k.bytes_per_s for k in platform.links], np.float64),
        np.array([k.latency_s for k in platform.links], np.float64),
        np.array([kinds[k.paid_by] for k in platform.links], np.int64),
        np.array(p.memory_bytes, np.float64),
        b.loads.capacity,
    )
