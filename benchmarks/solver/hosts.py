"""A plan for 64 hosts of eight devices: a part of `python -m benchmarks.solver`.

DQN with 4,096 environments for a platform that nobody has, one copy of the actors a host at most.
Figures of the network are assumed where no source is named.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Part, at_most
from pearl import load, solve
from pearl.planning.costs import CostTable
from pearl.planning.estimated_costs import build_cost_table
from pearl.spec.user_code import build_graph
from pearl_devices import Link
from pearl_devices.hosts import join_hosts
from pearl_estimators import Estimate

HOSTS, DEVICES = 64, 8
"""Of the platform; a device of each host is a CPU of 16 cores, the others GPUs."""
QUICK_HOSTS = 8
LATENCY_S, BYTES_PER_S = 50e-6, 1.25e9
"""Of the network: kernel TCP through one switch (assumed), and 10 Gbit/s."""
MESSAGE_S = 30e-6
"""A host spends on a message: one over TCP between two processes of a machine
(`benchmarks.distribution links`, 2 x AMD EPYC, virtual, 2026-11-23)."""
STEP_S = 1e-3
"""Of an environment, on a core."""
WITHIN_S = 60.0
LIMIT_S = 40.0
"""The time limit given to `solve`, which costs and reading come on top of."""


def planned(hosts: int, limit_s: float) -> dict[str, Any]:
    """The plan's rate, its gap, and what it took, from the platform on."""
    wall, cpu = time.perf_counter(), time.process_time()
    copies = dict.fromkeys(("step", "act"), hosts)
    sizes = {"num_envs": 4096, "replay_ratio": "1/512", "batch_size": 512, "learning_starts": 5000}
    given = {"platform": "cpu_gpu", "limits.replicas": copies, "limits.policy_lag": 1}
    system = load("dqn_cartpole", set=given | {f"algorithm.{k}": v for k, v in sizes.items()})
    host, gpu = system.platform.devices
    (link,) = system.platform.links
    gpus = [replace(gpu, name=f"gpu{i}") for i in range(DEVICES - 1)]
    links = tuple(replace(link, b=g.name) for g in gpus)
    devices = (replace(host, max_lanes=1), *gpus)
    machine = replace(system.platform, devices=devices, links=links)
    names = [f"host{i}" for i in range(hosts)]
    network = [Link(names[0], n, LATENCY_S, BYTES_PER_S, MESSAGE_S) for n in names[1:]]
    platform = join_hosts("hosts", dict.fromkeys(names, machine), network)
    graph = build_graph(system)
    table, modes = build_cost_table(graph, platform, system.limits), []
    envs = graph.task("step").environments
    for m in table.modes:  # environments of the user's own: on the cores of a CPU, STEP_S each
        if "step" not in m.tasks:
            modes.append(m)
        elif not m.fused and m.device.endswith("/cpu"):
            modes.append(replace(m, estimate=Estimate(STEP_S * (m.share or envs) / m.width)))
    costs = CostTable(platform, tuple(modes))
    plan = solve(graph, costs, limits=system.limits, time_limit_s=limit_s)
    return {
        "env_steps_per_s": plan.rates["env_steps_per_s"], "period_s": plan.period_s,
        "bound_s": plan.bound_s, "gap": plan.gap, "status": plan.status,
        "copies": sum(task.task.startswith("step") for task in plan.tasks),
        "hosts": len({task.device.partition("/")[0] for task in plan.tasks}),
        "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
    }  # fmt: skip


def run(quick: bool, data: Path | None) -> Part:
    """The plan and its bars. Needs no data of others."""
    hosts = QUICK_HOSTS if quick else HOSTS
    title, plan = f"A plan for {hosts} hosts x {DEVICES} devices", planned(hosts, LIMIT_S)
    bars = [
        at_most(title, plan["wall_s"], WITHIN_S, "{:.1f} s"),
        Bar(f"{title}: gap", f"{plan['gap']:.1%}", "below 100 %", plan["gap"] < 1),
    ]
    rows = [[name, str(value)] for name, value in plan.items()]
    left_out = [f"{HOSTS - hosts} of {HOSTS} hosts"] if quick else []
    return Part(title, ["of the plan", ""], rows, bars, left_out, {"planned": plan})
