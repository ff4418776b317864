"""From an assignment with its lane orders to a `Plan`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.errors import SpecError
from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.liveness import stored_arrays
from pearl.graph.period import Unit, expand, simulate
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.capacities import Channels, least_capacities
from pearl.planning.draws import Z90, Draws
from pearl.planning.plans import Bottleneck, Channel, Entry, Lane, Placement, Plan, pearl_version
from pearl.planning.schedule import Timetable
from pearl.planning.timing import Assignment, Orders, TimedGraph, build_timed_graph
from pearl.planning.valuation import build_bands, evaluate_samples
from pearl.time_limit import look, watched

SIMULATED, LEAST_SIMULATED, FIRINGS = 400, 40, 400_000
"""Iterations of the simulation with sampled times, of which the first quarter is not counted; least
number of iterations of large graphs; largest number of firings of all iterations together."""

LEAST_DRAWN, DRAWN_ARCS = 40, 400_000
"""Least number of samples for the bands of large graphs; largest number of arcs of all samples
together."""

_SAME = 1e-9


@dataclass(frozen=True)
class Proof:
    """The method that found a plan, and the proof of its quality.

    objective, method, seed: of the search.
    solve_s: wall seconds of the search.
    bound: no plan costs less, in seconds or joules per iteration; for makespan, no first iteration
        is complete earlier, in seconds.
    period_bound_s: no period is smaller; for throughput of any assignment, else of this one.
    timed_out: whether time ran out.
    bound_from: the source of the bound, as in `Plan.bound_from`.
    """

    objective: str
    method: str
    seed: int
    solve_s: float
    bound: float
    period_bound_s: float
    timed_out: bool
    bound_from: str = ""


def build_plan(
    assignment: Assignment,
    orders: Orders,
    proof: Proof,
    *,
    power_w: float | None = None,
    channels: Channels | None = None,
) -> Plan:
    """Build the plan of an assignment with these orders; every figure comes from the estimates.

    Channels get the least capacities found; for makespan they hold everything that an iteration
    puts into them. `channels` gives them others, which may make the period longer.

    Raises:
        SpecError: the period is 0 s, or an iteration costs 0 J for power efficiency.
    """
    single = proof.objective == "makespan"
    timed = build_timed_graph(assignment)
    rings = [*timed.arcs, *timed.ring(orders)]
    natural, critical = howard(len(timed.names), rings)
    channels = channels or least_capacities(timed, rings, natural, whole=single)
    capacities, held = channels.capacity, channels.held
    ratio, cycle = howard(len(timed.names), [*rings, *held])
    if ratio > natural * (1 + _SAME):
        natural, critical = ratio, cycle
    period = assignment.paced_s(natural, power_w)
    spread = _simulate_period(timed, [*rings, *held], period, paced=period > natural)
    samples = DRAWN_ARCS // (1 + len(timed.arcs) + len(held))
    draws = Draws(max(LEAST_DRAWN, min(Draws.number, samples)))
    sampled = evaluate_samples(timed, orders, draws, held=held, power_w=power_w)
    graph = assignment.expansion.graph
    steps, unit = (graph.env_steps, "env steps") if graph.env_steps else (1, "iterations")
    energy = assignment.energy_j(period)
    if period == 0:
        raise SpecError(
            f"the period of graph {graph.name!r} is 0 s by the cost table: no lane, link or cycle "
            "is busy for any time, so no plan has a finite rate; give some mode a time above 0"
        )
    if energy == 0 and proof.objective == "power_efficiency":
        raise SpecError(
            f"an iteration of graph {graph.name!r} costs 0 J by the cost table, so its power "
            "efficiency has no end; give some mode an energy or the host an idle power"
        )
    if proof.objective == "throughput":
        value, bound_value, per = steps / period, _value_bound(steps, proof.bound, period), "s"
    elif not single:
        value, bound_value, per = steps / energy, _value_bound(steps, proof.bound, energy), "J"
    if single:
        value, value_unit = makespan_s(timed, [*rings, *held]), "s"
        bound_value = min(proof.bound, value)
        gap = max(0.0, 1 - bound_value / value) if value > 0 else 0.0
    else:
        value_unit = f"{unit}/{per}"
        gap = max(0.0, 1 - value / bound_value)
    status = "optimal" if gap <= 1e-6 else "time_limit" if proof.timed_out else "feasible"
    return Plan(
        pearl_version=pearl_version(),
        spec_sha256="",
        host="",
        objective=proof.objective,
        status=status,  # type: ignore[arg-type]
        method=proof.method,
        seed=proof.seed,
        solve_s=proof.solve_s,
        value=value,
        value_unit=value_unit,
        bound_value=bound_value,
        gap=gap,
        period_s=period,
        bound_s=min(proof.period_bound_s, period),
        bound_from=proof.bound_from if proof.bound > 0 else "",
        pace_s=period if period > natural else None,
        simulated_period_s=spread,
        rates={
            "env_steps_per_s": graph.env_steps / period,
            "updates_per_s": graph.updates / period,
            "samples_per_s": graph.updates * graph.batch / period,
        },
        energy_per_iteration_j=energy,
        power_w=energy / period,
        env_steps_per_j=graph.env_steps / energy if graph.env_steps and energy > 0 else None,
        bottleneck=_bottleneck(timed, natural, critical),
        lanes=_lanes(timed, orders, period),
        tasks=tuple(_placement(assignment, t.name, period) for t in graph.tasks),
        edges=tuple(_channel(assignment, e, capacities.get(n)) for n, e in enumerate(graph.edges)),
        bands=build_bands(sampled, draws, graph.env_steps, graph.updates, graph.batch),
        simulated=tuple(d.name for d in assignment.costs.platform.devices if d.simulated),
        rollout=stored_arrays(graph),
        timetable=Timetable(timed, (*rings, *held), period, single),
    )


def _value_bound(steps: float, bound: float, cost: float) -> float:
    """The value that no plan exceeds; infinite if nothing is proven."""
    return steps / min(bound, cost) if bound > 0 else math.inf


def makespan_s(timed: TimedGraph, arcs: list[Arc]) -> float:
    """Return when the last firing of the first iteration is complete, self-timed from time 0."""
    firings = len(timed.assignment.expansion.nodes)
    start = simulate(len(timed.names), arcs, 1)[0, :firings]
    return float((start + np.array(timed.latency_s[:firings])).max())


def _simulate_period(timed: TimedGraph, arcs: list[Arc], period: float, *, paced: bool) -> float:
    """Mean period of a self-timed run with times sampled from each mode's 90 % band (lognormal;
    seed 0); `period` itself if no band has a width."""
    a, n = timed.assignment, len(timed.names)
    bands = [(m.estimate.low_s, m.estimate.high_s, m.estimate.latency_s) for m in a.modes]
    if all(low == high for low, high, _ in bands):
        return period
    turns = max(LEAST_SIMULATED, min(SIMULATED, FIRINGS // n))
    draw = np.random.default_rng(0)
    factors: NDArray[np.float64] = np.ones((turns, n))
    for i, (u, _) in enumerate(a.expansion.nodes):
        low, high, latency = bands[u]
        if latency > 0 and high > low:
            if low > 0:
                mean = (math.log(low) + math.log(high)) / 2
                spread = (math.log(high) - math.log(low)) / (2 * Z90)
                seconds = draw.lognormal(mean, spread, turns)
            else:
                seconds = draw.triangular(low, min(latency, high), high, turns)
            total = latency + a.extra_s[u]
            factors[:, i] = np.maximum(seconds + a.extra_s[u], 0) / total if total > 0 else 1
    if paced:
        arcs = [*arcs, (n, n, period, 1), *((n, i, 0.0, 0) for i in range(n))]
        factors = np.hstack([factors, np.ones((turns, 1))])
        n += 1
    start = simulate(n, arcs, turns, factors).max(axis=1)
    skip = turns // 4
    end = turns - 1 - max((abs(m) for _, _, _, m in arcs), default=0) % (turns // 4)
    return float((start[end] - start[skip]) / (end - skip))


def _bottleneck(timed: TimedGraph, period: float, critical: list[int]) -> Bottleneck:
    """A lane or link that is busy all the time, else the critical cycle."""
    links = {link.name for link in timed.assignment.costs.platform.links}
    graph = timed.assignment.expansion.graph

    def tasks(nodes: list[int]) -> tuple[str, ...]:
        names = [_origin(graph, t)[0] for i in nodes for t in timed.names[i][0].split("+")]
        return tuple(dict.fromkeys(names))

    for lane, load in sorted(timed.loads_s.items(), key=lambda item: -item[1]):
        if load >= period * (1 - _SAME):
            kind = "link" if lane in links else "lane"
            return Bottleneck(kind, lane, tasks(list(timed.lanes[lane])))  # type: ignore[arg-type]
    around = tasks(critical)
    return Bottleneck("cycle", " → ".join([*around, *around[:1]]), around)


def _lanes(timed: TimedGraph, orders: Orders, period: float) -> tuple[Lane, ...]:
    a = timed.assignment
    links = {link.name for link in a.costs.platform.links}
    units = {"+".join(u): u for u in a.expansion.units}
    lanes = []
    for lane, ring in orders.items():
        entries = []
        for i, offset in ring:
            for name in _members(a, units.get(timed.names[i][0], (timed.names[i][0],))):
                task, replica = _origin(a.expansion.graph, name)
                entries.append(Entry(task, offset, replica))
        load = timed.loads_s[lane] / period
        if lane in links:
            lanes.append(Lane(lane, lane, 0, "link", tuple(entries), load))
            continue
        modes = [m for u, m in enumerate(a.modes) if a.lane(u) == lane]
        device = a.costs.platform.device(modes[0].device)
        width = max(m.width for m in modes)
        lanes.append(Lane(lane, device.name, width, device.width_unit, tuple(entries), load))
    return tuple(sorted(lanes, key=lambda k: (k.width == 0, k.lane)))


def _origin(graph: TaskGraph, name: str) -> tuple[str, int]:
    """The task, or transfer, of a name in a timed graph, and its replica."""
    task, arrow, to = name.partition(">")
    origin, replica = graph.origin(task)
    return origin + arrow + to, replica


def _members(a: Assignment, unit: Unit) -> list[str]:
    """The firings of a fused call in the order of the sequential program, one name each; for a
    single task or a transfer, its name once per node."""
    if len(unit) == 1:
        return list(unit)
    graph = a.expansion.graph
    inner = expand(graph)
    waits = {n: 0 for (t, _), n in inner.node.items() if t in unit}
    out: dict[int, list[int]] = {n: [] for n in waits}
    for s, d, m, _ in watched(inner.arcs):
        if m == 0 and s in waits and d in waits:
            out[s].append(d)
            waits[d] += 1
    order: list[str] = []
    ready = sorted(n for n, w in waits.items() if w == 0)
    while ready:
        look()
        n = min(ready, key=lambda k: (inner.nodes[k][1], k))  # depth first: firing by firing
        ready.remove(n)
        order.append(inner.units[inner.nodes[n][0]][0])
        for d in out[n]:
            waits[d] -= 1
            if waits[d] == 0:
                ready.append(d)
    return order


def _placement(a: Assignment, task: str, period: float) -> Placement:
    u, graph = a.unit_of[task], a.expansion.graph
    fused_with, mode = tuple(t for t in a.expansion.units[u] if t != task), a.modes[u]
    device = a.costs.platform.device(mode.device)
    firings = graph.repetition[task]
    share = _share_of_call(a, task)
    steps = graph.kernel_of((task, *fused_with)).dims.get("steps", 1)
    occupancy = a.occupancy_s(u) * share
    origin, replica = graph.origin(task)
    part = graph.task(task).part
    shares = part.shares if part else ()
    return Placement(
        task=origin,
        device=mode.device,
        lane=a.lane(u),
        width=mode.width,
        width_unit=device.width_unit,
        variant=mode.variant,
        firings=firings,
        seconds=a.latency_s(u) * share,
        occupancy_s=occupancy,
        low_s=max(0.0, mode.estimate.low_s + a.extra_s[u]) * share,
        high_s=max(0.0, mode.estimate.high_s + a.extra_s[u]) * share,
        share_of_period=firings * occupancy / period,
        rung=mode.estimate.rung,
        bound_by=mode.estimate.bound_by,
        fused_with=fused_with,
        replicas=max(1, len(shares)),
        shares=shares,
        block=steps if isinstance(steps, int) else 1,
        replica=replica,
    )


def _share_of_call(a: Assignment, task: str) -> float:
    """One firing's share of its call; 1 if a task runs alone. If no shares are known, the first
    task has the whole call."""
    unit, mode = a.expansion.units[a.unit_of[task]], a.modes[a.unit_of[task]]
    if len(unit) == 1:
        return 1.0
    graph = a.expansion.graph
    shares = a.costs.shares(mode, graph) or {mode.tasks[0]: 1.0}
    return shares.get(task, 0.0) / graph.repetition[task]


def _channel(a: Assignment, e: Edge, capacity: int | None) -> Channel:
    route = a.route(e)
    graph = a.expansion.graph
    (src, src_replica), (dst, dst_replica) = graph.origin(e.src), graph.origin(e.dst)
    return Channel(
        src=src,
        dst=dst,
        production=e.production,
        consumption=e.consumption,
        tokens=e.tokens,
        tokens_seq=e.tokens_seq,
        slack=e.slack,
        capacity=capacity,
        bytes=e.bytes,
        link="+".join(link.name for link in route) or None,
        src_replica=src_replica,
        dst_replica=dst_replica,
        reach=e.reach,
    )
