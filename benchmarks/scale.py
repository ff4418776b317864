"""Plans at 10, 100 and 1,000 nodes, in virtual time: `python -m benchmarks.scale`.

Acting nodes send rows to learners and get parameters back. An iteration is the rollout of every
node and the updates by its rows. It is a timed graph like any plan's (`docs/theory.md`): the lanes
are a node's cores, the two directions of a learner's link, and the learner; `simulate` runs it
self-timed, with the nodes' times multiplied by draws. In any order a node goes on as soon as its
own rows are learnt from, which no such graph says: there the queues of the same lanes are played.

What is asked of the simulation itself is in `tests/benchmarks/test_scale.py`; `docs/scale.md` reads
the tables. Figures of nodes and links are assumed where no source is named.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import Bar, at_most, finish
from pearl.graph.period import Arc, howard, simulate
from pearl.runtime.clock import VirtualClock

NODES = (1, 10, 100, 1000)
LINKS = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}
"""Name → bytes a second, each way, of a learner's link."""
LATENCY_S = 50e-6
"""Of a message between two nodes (assumed: kernel TCP through one switch)."""
MESSAGE_S = 30e-6
"""A learner's host spends on a message that it takes or sends: one of a row over TCP between two
processes of a machine (`benchmarks.distribution links`, 2 x AMD EPYC, virtual, 2026-11-23)."""
SIGMA = 0.3
"""Standard deviation of the logarithm of a rollout's time (assumed); its mean is 1."""
FAILURES_PER_S = 1 / (3600 * 100)
"""Of a node: one failure an hour a hundred nodes."""
RESTART_S = 10.0
"""From a failure until the node acts again (assumed: an actor of Ray starts in 2 to 6 s, busy)."""
TITLE = "Plans at 10, 100 and 1,000 nodes, in virtual time, thousand env steps/s"
ITERATIONS, WARM = 200, 20
LEARNERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Work:
    """A distributed training loop.

    rows: env steps of a node's rollout, the message that it sends. act_s: seconds of one, mean.
    row_bytes: of an env step. parameter_bytes: of the copy that a node gets each iteration.
    row_s: seconds that the learner spends on storing a row. update_s: on a batch.
    batch: rows of an update; every row is drawn once in the mean.
    """

    name: str
    rows: int
    act_s: float
    row_bytes: float
    parameter_bytes: float
    row_s: float
    update_s: float
    batch: int

    @property
    def learn_s(self) -> float:
        """Seconds of the learner for the rows of one node, without reductions."""
        return self.rows * (self.row_s + self.update_s / self.batch)


WORKS = (
    # 64 environments of 1 ms on 16 cores, 16 steps: 64 ms, and 0.5 ms of inference a step.
    Work("vectors", 1024, 0.072, 200.0, 0.3e6, 50e-9, 0.2e-3, 256),
    # 84 x 84 pixels, one new frame a step; the network of Mnih et al. 2015 in float32.
    Work("pixels", 1024, 0.072, 7056.0, 6.7e6, 2e-6, 10e-3, 512),
)


@dataclass(frozen=True)
class Setup:
    """A loop on nodes. learners: data-parallel ones, each with its share of the nodes.

    bytes_per_s: of a learner's link, each way. lag: iterations that parameters may be old.
    """

    work: Work
    nodes: int
    bytes_per_s: float
    lag: int = 0
    learners: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.learners <= self.nodes:
            raise ValueError(f"{self.learners} learners for {self.nodes} nodes")

    def message_s(self, size_bytes: float) -> float:
        """Seconds that a message takes its direction of the link."""
        return MESSAGE_S + size_bytes / self.bytes_per_s

    @property
    def in_s(self) -> float:
        return self.message_s(self.work.rows * self.work.row_bytes)

    @property
    def out_s(self) -> float:
        return self.message_s(self.work.parameter_bytes)

    @property
    def share(self) -> int:
        """Nodes of a learner, the most."""
        return -(-self.nodes // self.learners)

    @property
    def reduction_s(self) -> float:
        """Seconds of the all-reduces of an iteration, in a ring of the learners (Patarasuk and Yuan
        2009): one an update."""
        g = self.learners
        if g == 1:
            return 0.0
        updates = math.ceil(self.nodes * self.work.rows / (self.work.batch * g))
        part = self.work.parameter_bytes / g / self.bytes_per_s
        return updates * 2 * (g - 1) * (LATENCY_S + part)

    @property
    def learn_s(self) -> float:
        """Seconds of a learner an iteration."""
        return self.share * self.work.learn_s + self.reduction_s

    def bounds_s(self) -> dict[str, float]:
        """No iteration is shorter, by the lane that is taken: seconds."""
        into, out = self.share * self.in_s, self.share * self.out_s
        acting, learner = self.work.act_s, self.learn_s
        return {"acting": acting, "learner": learner, "rows in": into, "parameters out": out}


def graph(setup: Setup) -> tuple[int, list[Arc]]:
    """Number of nodes of the timed graph and its arcs. Node n acts as number n; then come the
    messages in, the messages out, and the learners, which the reductions keep in step."""
    n, g = setup.nodes, setup.learners
    act, into, out, learn = range(n), range(n, 2 * n), range(2 * n, 3 * n), 3 * n
    arcs: list[Arc] = [(learn, learn, setup.learn_s, 1)]
    for node in range(n):
        arcs += [
            (act[node], act[node], setup.work.act_s, 1),
            (act[node], into[node], setup.work.act_s, 0),
            (into[node], learn, setup.in_s + LATENCY_S, 0),
            (learn, out[node], setup.learn_s, 0),
            (out[node], act[node], setup.out_s + LATENCY_S, 1 + setup.lag),
        ]
    for learner in range(g):
        for lane, seconds in ((into, setup.in_s), (out, setup.out_s)):
            order = lane[learner::g]
            arcs += [(a, b, seconds, 0) for a, b in pairwise(order)]
            arcs.append((order[-1], order[0], seconds, 1))
    return 3 * n + 1, arcs


def period_s(setup: Setup) -> float:
    """Seconds of an iteration without stragglers: the maximum cycle ratio."""
    return howard(*graph(setup))[0]


def factors(nodes: int, iterations: int, sigma: float, seed: int) -> NDArray[np.float64]:
    """Of the times of rollouts, shape (iterations, nodes): log-normal, of mean 1."""
    draws = np.random.default_rng([seed, nodes]).normal(size=(iterations, nodes))
    return np.exp(sigma * draws - sigma * sigma / 2)


def in_order(
    setup: Setup, scale: NDArray[np.float64], failed: tuple[int, int] | None = None
) -> tuple[float, NDArray[np.float64]]:
    """Seconds of an iteration after WARM ones, and the ends of all, in virtual time.

    scale: from `factors`. failed: (iteration, node) in which a rollout takes RESTART_S more.
    """
    (size, arcs), iterations = graph(setup), len(scale)
    every = np.ones((iterations, size))
    every[:, : setup.nodes] = scale
    if failed is not None:
        every[failed] += RESTART_S / setup.work.act_s
    ends = simulate(size, arcs, iterations, every)[:, -1] + setup.learn_s
    return VirtualClock(ends, WARM).stop(iterations) / (iterations - WARM), ends


@dataclass(frozen=True)
class AnyOrder:
    """A run in any order. iteration_s: seconds for as many rollouts as there are nodes.

    age: iterations from the parameters that a rollout began with until its rows are learnt from.
    """

    iteration_s: float
    age_mean: float
    age_99: float


def any_order(setup: Setup, scale: NDArray[np.float64]) -> AnyOrder:
    """A run of one learner in which each node goes on once its own rows were learnt from."""
    assert setup.learners == 1
    work, nodes = setup.work, setup.nodes
    rollouts = [0] * nodes
    version = [0] * nodes  # of the parameters that a node acts with: messages learnt from
    events = [(float(scale[0, n]) * work.act_s, n, n, 0) for n in range(nodes)]
    heapq.heapify(events)
    free = [0.0, 0.0, 0.0]  # the link in, the learner, the link out
    lanes = ((setup.in_s, LATENCY_S), (work.learn_s, 0.0), (setup.out_s, LATENCY_S))
    number, learnt, total = nodes, 0, nodes * len(scale)
    ages, ends = list[float](), list[float]()
    while learnt < total:
        at, _, node, stage = heapq.heappop(events)
        if stage == 2:  # learnt from; the answer has what the learner holds now
            ages.append((learnt - version[node]) / nodes)
            ends.append(at)
            learnt += 1
            version[node] = learnt
        if stage < 3:
            seconds, later_s = lanes[stage]
            free[stage] = max(free[stage], at) + seconds
            event = (free[stage] + later_s, number, node, stage + 1)
        else:
            rollouts[node] += 1
            factor = float(scale[rollouts[node] % len(scale), node])
            event = (at + factor * work.act_s, number, node, 0)
        heapq.heappush(events, event)
        number += 1
    seconds = (ends[-1] - ends[WARM * nodes - 1]) / (len(scale) - WARM)
    late = np.array(ages[WARM * nodes :])
    return AnyOrder(seconds, float(late.mean()), float(np.percentile(late, 99)))


def with_failures(setup: Setup, scale: NDArray[np.float64]) -> float:
    """Seconds of an iteration in order, failures counted: each costs the seconds by which one
    half-way delays the end."""
    seconds, ends = in_order(setup, scale)
    _, late = in_order(setup, scale, (len(scale) // 2, 0))
    return seconds * (1 + float(late[-1] - ends[-1]) * FAILURES_PER_S * setup.nodes)


@dataclass(frozen=True)
class Row:
    """What a plan does. rates are env steps a second.

    fixed: without stragglers and failures. sync: in order, parameters of the last iteration.
    lag: in order, parameters one iteration old. free: in any order.
    bound: the lane that is taken most. ceiling: the rate at which it always is, acting at the mean.
    learners: the number of data-parallel ones that is best in order with lag 1. parallel: its rate.
    """

    work: str
    link: str
    nodes: int
    fixed: float
    sync: float
    lag: float
    free: float
    age_mean: float
    age_99: float
    bound: str
    ceiling: float
    learners: int
    parallel: float


def row(work: Work, link: str, nodes: int, *, iterations: int, seed: int) -> Row:
    """One line of the table."""
    rows = nodes * work.rows
    scale = factors(nodes, iterations, SIGMA, seed)

    def ordered(setup: Setup) -> float:
        return rows / with_failures(setup, scale)

    one, late = (Setup(work, nodes, LINKS[link], lag) for lag in (0, 1))
    free, bounds = any_order(one, scale), one.bounds_s()
    counts = [g for g in LEARNERS if g <= nodes // 2 or g == 1]
    candidates = [Setup(work, nodes, LINKS[link], 1, g) for g in counts]
    best = min(candidates, key=lambda s: (max(s.bounds_s().values()), s.learners))
    share = 1 - RESTART_S * FAILURES_PER_S  # in any order a failure costs one node's rows
    return Row(
        work.name, link, nodes, rows / period_s(one), ordered(one), ordered(late),
        rows / free.iteration_s * share, free.age_mean, free.age_99,
        max(bounds, key=lambda name: bounds[name]), rows / max(bounds.values()), best.learners,
        ordered(best),
    )  # fmt: skip


def saturation(work: Work, link: str) -> float:
    """Nodes from which one learner, not acting, holds the iteration without stragglers."""
    one = Setup(work, 1, LINKS[link])
    return work.act_s / max(one.in_s, one.out_s, work.learn_s)


HOSTS, DEVICES = 64, 8
"""Of the platform that is planned for; a device of each is a CPU of 16 cores, the others GPUs."""
STEP_S = 1e-3
"""Of an environment, on a core."""
WITHIN_S = 60.0
LIMIT_S = 40.0
"""The time limit given to `solve`, which costs and reading come on top of."""


def planned(limit_s: float) -> dict[str, Any]:
    """A plan of DQN with 4,096 environments for HOSTS × DEVICES, one copy of the actors a host at
    most: its rate, its gap, and what it took, from the platform on."""
    from pearl import load, solve
    from pearl.planning.costs import CostTable
    from pearl.planning.estimated_costs import build_cost_table
    from pearl.spec.user_code import build_graph
    from pearl_devices import Link
    from pearl_devices.hosts import join_hosts
    from pearl_estimators import Estimate

    wall, cpu = time.perf_counter(), time.process_time()
    copies = dict.fromkeys(("env_step", "inference"), HOSTS)
    sizes = {"num_envs": 4096, "replay_ratio": "1/512", "batch_size": 512, "learning_starts": 5000}
    given = {"platform": "cpu_gpu", "limits.replicas": copies, "limits.policy_lag": 1}
    system = load("dqn_cartpole", set=given | {f"algorithm.{k}": v for k, v in sizes.items()})
    host, gpu = system.platform.devices
    (link,) = system.platform.links
    gpus = [replace(gpu, name=f"gpu{i}") for i in range(DEVICES - 1)]
    links = tuple(replace(link, b=g.name) for g in gpus)
    devices = (replace(host, max_lanes=1), *gpus)
    machine = replace(system.platform, devices=devices, links=links)
    names = [f"host{i}" for i in range(HOSTS)]
    network = [Link(names[0], n, LATENCY_S, LINKS["10 Gbit/s"], MESSAGE_S) for n in names[1:]]
    platform = join_hosts("hosts", dict.fromkeys(names, machine), network)
    graph = build_graph(system)
    table, modes = build_cost_table(graph, platform, system.limits), []
    envs = graph.task("env_step").environments
    for m in table.modes:  # environments of the user's own: on the cores of a CPU, STEP_S each
        if "env_step" not in m.tasks:
            modes.append(m)
        elif not m.fused and m.device.endswith("/cpu"):
            modes.append(replace(m, estimate=Estimate(STEP_S * (m.share or envs) / m.width)))
    costs = CostTable(platform, tuple(modes))
    plan = solve(graph, costs, limits=system.limits, time_limit_s=limit_s)
    return {
        "env_steps_per_s": plan.rates["env_steps_per_s"], "period_s": plan.period_s,
        "bound_s": plan.bound_s, "gap": plan.gap, "status": plan.status,
        "copies": sum(task.task.startswith("env_step") for task in plan.tasks),
        "hosts": len({task.device.partition("/")[0] for task in plan.tasks}),
        "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
    }  # fmt: skip


COLUMNS = ["loop, Gbit/s", "nodes", "even", "lag 0", "lag 1", "any order", "age"]
COLUMNS += ["held by", "learners", "rate"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="100 nodes at most, 60 iterations")
    parser.add_argument("--planner", action="store_true", help="the planner for 512 devices alone")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.planner:
        return planner(options.json)
    nodes, iterations = (NODES[:3], 60) if options.quick else (NODES, ITERATIONS)
    pairs = [(work, link) for work in WORKS for link in LINKS]
    found = [row(*pair, n, iterations=iterations, seed=0) for pair in pairs for n in nodes]
    table = []
    for r in found:
        rates = (f"{rate / 1e3:,.1f}" for rate in (r.fixed, r.sync, r.lag, r.free))
        head = [f"{r.work} {r.link.split()[0]}", f"{r.nodes:,}", *rates]
        age, best = f"{r.age_mean:.2f}", f"{r.parallel / 1e3:,.1f}"
        table.append([*head, age, r.bound, f"{r.learners}", best])
    knees = {f"{work.name}, {link}": saturation(work, link) for work, link in pairs}
    for name, knee in knees.items():
        print(f"{name}: one learner holds the iteration from {knee:,.0f} nodes on")
    values = {"rows": [asdict(r) for r in found], "saturates_at_nodes": knees}
    left_out = ["1,000 nodes"] if options.quick else []
    return finish(TITLE, COLUMNS, table, bars(found), left_out, options.json, values)


def bars(rows: Sequence[Row]) -> list[Bar]:
    """What must hold whatever the figures: no rate above that of its lanes, and stragglers cost."""
    order = max(max(r.sync, r.lag) / r.ceiling for r in rows)
    free, what = max(r.free / r.ceiling for r in rows), "over those of the lane taken most"
    return [
        at_most(f"rates in order {what}", order, 1.01, "{:.3f}"),
        at_most(f"rates in any order {what}", free, 1.01, "{:.3f}"),
    ]


def planner(json_path: str | None) -> int:
    """The part about the planner."""
    title, plan = f"A plan for {HOSTS} hosts x {DEVICES} devices", planned(LIMIT_S)
    bars = [
        at_most(title, plan["wall_s"], WITHIN_S, "{:.1f} s"),
        Bar(f"{title}: gap", f"{plan['gap']:.1%}", "below 100 %", plan["gap"] < 1),
    ]
    rows = [[name, str(value)] for name, value in plan.items()]
    return finish(title, ["of the plan", ""], rows, bars, [], json_path, {"planned": plan})


if __name__ == "__main__":
    sys.exit(main())
