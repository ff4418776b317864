"""NumS's LSHS (Elibol et al. 2022, arXiv 2206.14276) and linear clustering (Das and Rauchwerger
2023, arXiv 2308.11192): list schedulers on the graphs that their papers are about, and linear
clustering (`examples/linear_clustering.py`) on gradient steps with two critics
(`examples/twin_critics`)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import pearl
from benchmarks.bars import Bar, Part, at_least, at_most
from benchmarks.literature import COLUMNS, command
from benchmarks.solver.instances import blocks, branches
from examples import lshs
from examples.twin_critics import branches as twin_critics
from pearl import solve
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.solvers.makespan.list_schedule import Schedule
from pearl.solvers.model.dag_instance import DagInstance, build_instance, makespan_spaces
from pearl_devices import Link, Platform

CLUSTERING = "examples.linear_clustering"

Case = tuple[TaskGraph, CostTable]
ByteTable = dict[str, dict[str, float]]
"""`kept`, `received` and `sent` → device → bytes."""


def to_instance(case: Case) -> DagInstance:
    (space,) = makespan_spaces(Problem(*case, Limits(), "makespan"))
    return build_instance(space)


def place_on_first_idle(it: DagInstance) -> Schedule:
    """Each firing in the lane that is free first, whatever the firing reads."""
    made = Schedule(it)
    free_s: dict[str, float] = defaultdict(float)
    for v in it.order:
        options = it.space.options[it.unit[v]]
        place = min(made.places(v), key=lambda p: (free_s[options[p[0]].device], p))
        free_s[options[place[0]].device] = made.put(v, place)
    return made


def replay(made: Schedule, graph: TaskGraph) -> ByteTable:
    """Bytes of devices if the tasks of a schedule run one after the other. An array goes to a
    device once, and nothing is freed."""
    loads = {key: dict.fromkeys(made.widths, 0.0) for key in ("kept", "received", "sent")}
    where: dict[str, str] = {}
    for u, unit in enumerate(made.it.space.expansion.units):
        place = made.taken[u]
        assert place is not None
        where |= dict.fromkeys(unit, made.mode(u, place[0]).device)
    size = largest_bytes(graph)
    for task in graph.tasks:
        home = where[task.name]
        loads["kept"][home] += size[task.name]
        for other in {where[e.dst] for e in graph.edges if e.src == task.name} - {home}:
            loads["kept"][other] += size[task.name]
            loads["received"][other] += size[task.name]
            loads["sent"][home] += size[task.name]
    return loads


def largest_bytes(graph: TaskGraph) -> dict[str, float]:
    """Task → bytes of its largest message."""
    size = dict.fromkeys((t.name for t in graph.tasks), 0.0)
    for edge in graph.edges:
        size[edge.src] = max(size[edge.src], edge.bytes)
    return size


def compare(case: Case) -> tuple[float, float]:
    """Bytes of LSHS over those of first-idle placement: sent, and added to the memory."""
    simulated = lshs.simulate(to_instance(case))
    assert simulated is not None
    loads, idle = simulated[1], replay(place_on_first_idle(to_instance(case)), case[0])
    made_bytes = sum(largest_bytes(case[0]).values())
    sent = sum(loads.sent.values()) / sum(idle["sent"].values())
    added = (sum(loads.kept.values()) - made_bytes) / (sum(idle["kept"].values()) - made_bytes)
    return sent, added


UNITS, FEW_UNITS = 128, 16
"""Hidden units in each of two layers, and rows in a batch."""


def compile_steps(module: str, units: int, lanes: int, iterations: int = 3000) -> pearl.Trainer:
    """A trainer of a TD3 or SAC with so many hidden units in each of two layers and rows in a
    batch, on as many lanes as pay; an iteration is one step of the actor."""
    envs = 2 if module.endswith("td3") else 1
    sizes = {"hidden": [units, units], "batch_size": units, "num_envs": envs}
    replay = {"capacity": 10_000, "kind": "uniform"}
    algorithm = {"name": module, "env": "Pendulum-v1", "learning_starts": units, "replay": replay}
    train = {"steps": units + iterations * envs, "evaluate_every": 0, "final_episodes": 0}
    spec = {"algorithm": algorithm | sizes, "limits": {"max_lanes": lanes}, "train": train}
    system = pearl.load(spec)
    return pearl.compile(system, plan=pearl.plan(system, method=CLUSTERING))


def time_iterations(trainer: pearl.Trainer) -> list[float]:
    """Seconds of each iteration of a run, from one step of the actor to the next, without the first
    fifth of them."""
    stamps, bind = list[float](), twin_critics.update

    def bind_stamped(*given: Any) -> Callable[[], None]:
        step = bind(*given)

        def fire() -> None:
            stamps.append(time.perf_counter())
            step()

        return fire

    with patch.object(twin_critics, "update", bind_stamped):
        run = trainer.train()
    if run.status != "done":
        raise RuntimeError(run.message)
    return [b - a for a, b in pairwise(stamps[len(stamps) // 5 :])]


def measure_lanes(one: pearl.Trainer, two: pearl.Trainer, rounds: int) -> tuple[list[float], bool]:
    """Runs of both in turns: the median seconds of an iteration of each, and whether both learnt
    the same bits."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for trainer, found in zip((one, two), times, strict=True):
            found += time_iterations(trainer)
    seconds = [float(np.median(t)) for t in times]
    a, b = (t.session.arrays for t in (one, two))
    return seconds, all(np.array_equal(a[n], b[n]) for n in a if n.startswith("learner."))


LATENCY_S, BYTES_PER_S = 1e-4, 1.25e9
"""Of the link between two computers: Ethernet of 10 Gbit/s (assumed)."""


def set_apart(problem: Problem) -> Case:
    """The problem on two such hosts with a link between them, each with one core."""
    (host,) = problem.costs.platform.devices
    pair = tuple(replace(host, name=name, width=1, max_lanes=1) for name in ("here", "there"))
    link = Link("here", "there", LATENCY_S, BYTES_PER_S)
    modes = [replace(m, device=d.name) for m in problem.costs.modes for d in pair if m.width == 1]
    return problem.graph, CostTable(Platform("pair", pair, (link,)), tuple(modes))


def gradient_steps(name: str) -> tuple[list[list[str]], list[Bar], dict[str, Any]]:
    """Rows, bars and values of TD3 or SAC with each critic as a task of its own."""
    module, rows, bars = f"examples.twin_critics.{name}", [], []
    one, two = (compile_steps(module, UNITS, lanes) for lanes in (1, 2))
    seconds, equal = measure_lanes(one, two, 3)
    ratio, predicted = seconds[0] / seconds[1], one.plan.period_s / two.plan.period_s
    here = f"gradient steps of {name}, {UNITS} units and rows, 2 lanes: {ratio:.2f}× of one lane, "
    here += f"{predicted:.2f}× predicted"
    rows.append(["Ramiel", "up to 1.9× of serial execution", here, "measured", command("lists")])
    bars.append(at_least(f"{name}: two lanes over one", ratio, 1.5))
    bars.append(at_least(f"{name}: both learn the same bits", float(equal), 1.0, "{:.0f}"))
    small = compile_steps(module, FEW_UNITS, 1)
    assert small.plan.problem is not None
    plan = solve(*set_apart(small.plan.problem), method=CLUSTERING)
    used = len({t.device for t in plan.tasks})
    here = f"the same with {FEW_UNITS} units and rows, two computers {1e6 * LATENCY_S:.0f} µs apart"
    here += f": {used} used"
    rows.append(["Ramiel", "", here, "modelled", command("lists")])
    bars.append(at_most(f"{name}: computers where messages take longer", used, 1.0, "{:.0f}"))
    return rows, bars, {"predicted": predicted, "equal": equal, "median_s": seconds}


def run(quick: bool, data: Path | None) -> Part:
    rows, bars = list[list[str]](), list[Bar]()
    count = 64 if quick else 192
    for subject, title in (("product", "Xᵀ Y"), ("gradient", "logistic gradient")):
        sent, added = compare(blocks(subject, count, 8))
        here = f"{title}, {count} blocks, 8 devices: {1 / sent:.0f}× and {1 / added:.0f}× less"
        claimed = "half the network load, a quarter of the memory (logistic regression)"
        rows.append(["NumS (LSHS)", claimed, here, "modelled", command("lists")])
        bars.append(at_most(f"{title}: network bytes over first idle", sent, 0.5))
        bars.append(at_most(f"{title}: added memory over first idle", added, 0.25))
    case = branches(4, 40, 4)
    plan = solve(*case, objective="makespan", method=CLUSTERING)
    faster = len(case[0].tasks) / plan.value
    here = f"4 branches of 40 tasks, 4 lanes: {faster:.2f}× of one lane"
    rows.append(["Ramiel", "up to 1.9× of serial execution", here, "modelled", command("lists")])
    bars.append(at_least("linear clustering over one lane", faster, 1.9))
    values, left_out = dict[str, Any](), list[str]()
    for name in ("td3", "sac"):
        if quick:
            left_out.append(f"gradient steps of {name}, measured")
            continue
        more, promised, values[name] = gradient_steps(name)
        rows += more
        bars += promised
    return Part("literature: list schedulers", COLUMNS, rows, bars, left_out, values)
