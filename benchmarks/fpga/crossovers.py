"""Where replay and learner belong on CPU, GPU and simulated FPGA, at which doorbell, batch,
network.

PEARL's released composer chooses in two greedy steps; here its first one, on the same estimates:
the pair of devices with the least t_sample + max(t_update + t_insert, t_train), transfers and
acting left out. The worth of its choice is that of the best plan with these two pinned."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pearl
from benchmarks.bars import Bar, Part
from pearl.planning.estimated_costs import build_cost_table
from pearl.spec.user_code import build_graph

DOORBELLS_S = (1e-6, 10e-6, 100e-6, 1e-3)
CASES = (((64, 64), 32), ((64, 64), 512), ((256, 256), 128))
OBJECTIVES = {"throughput": "env steps/s", "power_efficiency": "env steps/J"}
TIME_LIMIT_S = 300.0
"""Of a plan, which takes a few seconds on an idle machine."""
REPLAY = ("store", "sample", "priorities")


def system_of(hidden: tuple[int, ...], batch: int, doorbell_s: float, objective: str) -> Any:
    """The shipped spec with another network, batch and doorbell."""
    system = pearl.load(
        "dqn_cartpole_fpga",
        set={
            "algorithm.hidden": list(hidden),
            "algorithm.batch_size": batch,
            "objective": objective,
        },
    )
    board = replace(system.platform.device("fpga"), overhead_s=doorbell_s)
    others = tuple(d for d in system.platform.devices if d.name != "fpga")
    return replace(system, platform=replace(system.platform, devices=(*others, board)))


def greedy(system: Any) -> tuple[str, str]:
    """The devices of replay and learner by PEARL's first step."""
    costs = build_cost_table(build_graph(system), system.platform, system.limits)
    best: dict[tuple[str, str], float] = {}
    for task in (*REPLAY, "learn"):
        for mode in costs.of(task):
            if mode.tasks == (task,):
                key, cost = (task, mode.device), mode.estimate.latency_s
                best[key] = min(cost, best.get(key, cost))
    names = [d.name for d in system.platform.devices]
    able = [d for d in names if all((t, d) in best for t in REPLAY)]
    learners = [d for d in names if ("learn", d) in best]

    def period(pair: tuple[str, str]) -> float:
        replay, learner = pair
        write = best["priorities", replay] + best["store", replay]
        return best["sample", replay] + max(write, best["learn", learner])

    return min(product(able, learners), key=period)


def run(quick: bool, data: Path | None) -> Part:
    """A row for each objective, network, batch and doorbell."""
    rows, worse = [], 0.0
    objectives = list(OBJECTIVES)[:1] if quick else list(OBJECTIVES)
    for objective, (hidden, batch), doorbell in product(
        objectives, CASES[:1] if quick else CASES, DOORBELLS_S
    ):
        system = system_of(hidden, batch, doorbell, objective)
        plan = pearl.plan(system, time_limit_s=TIME_LIMIT_S)
        on = {t.task: t for t in plan.tasks}
        replay, learner = greedy(system)
        pins = {**dict.fromkeys(REPLAY, replay), "learn": learner}
        pinned = replace(system, limits=replace(system.limits, pin=pins))
        try:
            theirs = pearl.plan(pinned, time_limit_s=TIME_LIMIT_S).value
        except pearl.InfeasibleError:
            theirs = 0.0
        worse = max(worse, theirs / plan.value - 1)
        rows.append(
            [
                OBJECTIVES[objective],
                "-".join(map(str, hidden)),
                str(batch),
                f"{1e6 * doorbell:g} µs",
                on["sample"].device,
                f"{on['learn'].device} {on['learn'].variant}",
                f"{plan.value:,.0f}",
                f"{replay}, {learner}",
                f"{theirs / plan.value:.0%}",
            ]
        )
    bar = Bar("PEARL's rule beside our plan, at best", f"{worse:+.1%}", "not above 0", worse < 1e-6)
    title = (
        "Where replay and learner belong; the FPGA is simulated, clock, doorbell and watts assumed"
    )
    columns = [
        "",
        "hidden",
        "batch",
        "doorbell",
        "replay",
        "learner",
        "plan",
        "PEARL's rule",
        "worth",
    ]
    left_out = ["power efficiency, other networks"] if quick else []
    return Part(title, columns, rows, [bar], left_out)
