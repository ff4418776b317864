"""Training loops on the shipped platforms: {best single device, PEARL's greedy rule, HEFT, ours}.

DQN, DDPG, SAC and PPO graphs, small networks as shipped and large ones, each on every platform, in
env steps per second and per joule, by the model: the exact period of each placement. All four are
valued alike, with the best lanes, orders, variants and fused calls that our solver finds for their
placement (HEFT chooses its own). Slack is 0, so all give the sequential program's results, but in
the rows that say otherwise.

- Best single device: everything that a device can run is pinned to it, the rest stays on the host;
  the best of the devices.
- PEARL's greedy rule in two stages, as its released composer has it (HeteroRL, CC0): first the pair
  of devices for replay and learner with the least T = t_sample + max(t_update + t_insert, t_train),
  transfers left out, acting on the host; then the device of the stored transitions by the least sum
  of latency + bytes / bandwidth to learner, actors and replay. Our graphs keep the stored
  transitions with the sum tree, so the first stage's replay device holds both and the second is
  only shown. No rule for PPO, which has no replay.
- HEFT: the method `heft`, by the period of its plan.

Nothing is measured here: `benchmarks.estimators plans` does that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pearl
from benchmarks.bars import Bar, Part
from pearl import solve
from pearl.errors import InfeasibleError
from pearl.explanation.resolve import classes, devices_of, efficiency, throughput
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planner.planner import build_problem
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem

PLATFORMS = ("cpu_gpu", "cpu_h200", "cpu_gpu_fpga", "host")
OBJECTIVES = ("throughput", "power_efficiency")
SPECS = {
    "dqn": "dqn_cartpole", "ddpg": "ddpg_pendulum", "sac": "sac_pendulum", "ppo": "ppo_cartpole",
}  # fmt: skip
TIME_LIMIT_S = 20.0

LARGE: dict[str, object] = {
    "algorithm.hidden": [512, 512],
    "algorithm.batch_size": 1024,
    "algorithm.learning_starts": 1024,
}
SLACK = {"policy_lag": 1, "prefetch": 1, "insertion_lag": 1, "priority_staleness": 1}
SIZES: dict[str, tuple[dict[str, object], dict[str, int]]] = {
    "small": ({}, {}),
    "large": (LARGE, {}),
    "large, slack 1": (LARGE, SLACK),
}
"""Name → what it changes in a shipped spec, and its limits on slack."""

LARGE_ROLLOUT: dict[str, object] = {"algorithm.hidden": [512, 512], "algorithm.num_envs": 64}
"""What `LARGE` is for PPO, which has no batch size."""


@dataclass(frozen=True)
class Case:
    """One row: a graph, its costs and limits."""

    algorithm: str
    size: str
    platform: str
    graph: TaskGraph
    costs: CostTable
    limits: Limits

    @property
    def problem(self) -> Problem:
        return Problem(self.graph, self.costs, self.limits)


def cases(quick: bool) -> Iterator[Case]:
    """All rows; quick: the small networks on two platforms."""
    for platform in ("cpu_gpu", "host") if quick else PLATFORMS:
        for size, (changes, slack) in SIZES.items():
            if (quick and size != "small") or (slack and platform == "host"):
                continue
            # The host has one lane; elsewhere there are as many as the devices have.
            limits: dict[str, object] = {"max_lanes": 1} if platform == "host" else {**slack}
            for name, spec in SPECS.items():
                if name == "ppo" and slack:  # it allows none
                    continue
                large = LARGE_ROLLOUT if name == "ppo" and changes else changes
                system = pearl.load(spec, set={"platform": platform, "limits": limits, **large})
                whole = build_problem(system)
                yield Case(name, size, platform, whole.graph, whole.costs, system.limits)


def solved(case: Case, objective: str, pin: dict[str, str] | None = None) -> Plan | None:
    """The best plan with some tasks pinned; None where there is none."""
    try:
        return solve(
            case.graph, case.costs, objective=objective, limits=replace(case.limits, pin=pin or {}),
            time_limit_s=TIME_LIMIT_S,
        )  # fmt: skip
    except InfeasibleError:
        return None


def single_device(case: Case, objective: str) -> Plan | None:
    """The best of the plans that put all they can on one device."""
    host = case.costs.platform.host
    plans = []
    for device in case.costs.platform.devices:
        pin = {}
        for group in classes(case.problem):
            able = device.name in devices_of(group, case.problem)
            pin.update(dict.fromkeys(group, device.name if able else host))
        plans.append(solved(case, objective, pin))
    return max((p for p in plans if p), key=lambda p: p.value, default=None)


def least_s(case: Case, task: str, device: str) -> float:
    """Seconds of an iteration that a task takes on a device in its quickest mode; 0 without it."""
    if task not in case.graph.repetition:
        return 0.0
    times = [m.estimate.latency_s for m in case.costs.of(task) if m.device == device]
    return case.graph.repetition[task] * min(times)


def greedy_pins(case: Case) -> tuple[dict[str, str], str] | None:
    """Stage 1's pins and stage 2's device; None for a graph without replay."""
    graph, costs = case.graph, case.costs
    if "replay_sample" not in graph.repetition:
        return None
    groups = {t: g for g in classes(case.problem) for t in g}
    host, platform = costs.platform.host, costs.platform

    def period_s(pair: tuple[str, str]) -> float:
        memory, learner = pair
        serial = least_s(case, "replay_update", memory) + least_s(case, "replay_insert", memory)
        train = least_s(case, "update", learner)
        return least_s(case, "replay_sample", memory) + max(serial, train)

    pairs = [
        (memory, learner)
        for memory in devices_of(groups["replay_sample"], case.problem)
        for learner in devices_of(groups["update"], case.problem)
    ]
    memory, learner = min(pairs, key=period_s)
    sent = {e.src: e.bytes for e in graph.edges if e.dst in ("update", "replay_insert")}

    def traffic_s(store: str) -> float:
        ends = [(learner, sent["replay_sample"]), (host, sent.get("env_step", 0.0)), (memory, 0.0)]
        return sum(
            link.latency_s + size / link.bytes_per_s
            for end, size in ends
            for link in platform.route(store, end)
        )

    store = min([d.name for d in platform.devices], key=traffic_s)
    pins = dict.fromkeys(graph.repetition, host)
    pins.update(dict.fromkeys(groups["replay_sample"], memory))
    pins.update(dict.fromkeys(groups["update"], learner))
    return pins, store


def heft(case: Case) -> Plan | None:
    """The plan of method `heft`; None where it finds none."""
    try:
        return solve(
            case.graph, case.costs, method="heft", limits=case.limits, time_limit_s=TIME_LIMIT_S,
        )  # fmt: skip
    except InfeasibleError:
        return None


def plans_of(case: Case) -> tuple[dict[str, dict[str, Plan | None]], str]:
    """Approach → objective → plan, and where the greedy rule would keep the transitions."""
    greedy = greedy_pins(case)
    found: dict[str, dict[str, Plan | None]] = {
        "one device": {o: single_device(case, o) for o in OBJECTIVES},
        "greedy": {o: solved(case, o, greedy[0]) if greedy else None for o in OBJECTIVES},
    }
    found["heft"] = dict.fromkeys(OBJECTIVES, heft(case))
    found["ours"] = {o: solved(case, o) for o in OBJECTIVES}
    store = ""
    if greedy and greedy[1] != greedy[0]["replay_sample"]:
        store = f"stage 2 would keep the transitions on {greedy[1]}"
    return found, store


def figures(plans: dict[str, Plan | None]) -> tuple[float | None, float | None]:
    """Env steps per second and per joule, each of the plan for that objective."""
    fast, thrifty = (plans[o] for o in OBJECTIVES)
    return throughput(fast) if fast else None, efficiency(thrifty) if thrifty else None


def run(quick: bool, data: Path | None) -> Part:
    """The table. Needs no data of others."""
    names = ["one device", "greedy", "heft", "ours"]
    rows: list[list[str]] = []
    results: list[dict[str, Any]] = []
    worst = dict.fromkeys(OBJECTIVES, (1.0, "none below"))
    unproven: list[str] = []
    began = time.monotonic()
    for case in cases(quick):
        found, store = plans_of(case)
        label = f"{case.algorithm} {case.size}, {case.platform}"
        table = {name: figures(found[name]) for name in names}
        for i, objective in enumerate(OBJECTIVES):
            ours = table["ours"][i]
            others = [v[i] for n, v in table.items() if n != "ours" and v[i] is not None]
            plan = found["ours"][objective]
            if plan is None or plan.status != "optimal":
                unproven.append(f"{label}, {objective}")
            for other in others:
                ratio = (ours or 0.0) / (other or 1.0)
                if ratio < worst[objective][0]:
                    worst[objective] = ratio, label
        fast = {n: found[n]["throughput"] for n in names}
        for n in names:
            per_s, per_j = table[n]
            best = table["ours"][0]
            rows.append(
                [
                    label if n == names[0] else "", n, _shown(per_s, "{:,.0f}"),
                    _shown(per_s / best if per_s and best else None, "{:.3f}"),
                    _shown(per_j, "{:,.2f}"), _where(fast[n]),
                ],
            )  # fmt: skip
        results.append(
            {
                "case": label,
                "env_steps_per_s": {n: v[0] for n, v in table.items()},
                "env_steps_per_j": {n: v[1] for n, v in table.items()},
                "devices": {n: {t.task: t.device for t in p.tasks} for n, p in fast.items() if p},
                "greedy_store": store,
            }
        )
    what, total = "ours over the best of the others, worst row", 2 * len(results)
    bars = [
        Bar(f"{what}, {objective}", f"{ratio:.6f} ({label})", "at least 1", ratio >= 1 - 1e-6)
        for objective, (ratio, label) in worst.items()
    ]
    proved = f"{total - len(unproven)} of {total}"
    bars.append(Bar("plans of ours proved optimal", proved, "all", not unproven))
    columns = ["graph, platform", "placed by", "env steps/s", "of ours", "env steps/J"]
    columns.append("tasks off the host")
    left_out = ["large networks, slack, cpu_h200, cpu_gpu_fpga"] if quick else []
    values = {"rows": results, "unproven": unproven, "seconds": time.monotonic() - began}
    return Part("training loops by the model", columns, rows, bars, left_out, values)


def _shown(value: float | None, form: str) -> str:
    return "—" if value is None else form.format(value)


def _where(plan: Plan | None) -> str:
    """How many tasks of a plan each device has besides that of env_step."""
    if plan is None:
        return ""
    home = plan.task("env_step").device
    away = Counter(t.device for t in plan.tasks if t.device != home)
    return ", ".join(f"{n} on {device}" for device, n in away.items()) or "none"
