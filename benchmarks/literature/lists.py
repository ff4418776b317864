"""NumS's LSHS (Elibol et al. 2022, arXiv 2206.14276) and linear clustering (Das and Rauchwerger
2023, arXiv 2308.11192): list schedulers on the graphs that their papers are about."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks.bars import Bar, Part, at_least, at_most
from benchmarks.literature import COLUMNS, command
from benchmarks.solver.instances import blocks, branches
from pearl import solve
from pearl.graph.limits import Limits
from pearl.graph.task_graph import TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.solvers.methods import lshs
from pearl.solvers.model.dag_instance import DagInstance, build_instance, makespan_spaces
from pearl.solvers.model.list_schedule import Schedule

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
    plan = solve(*case, objective="makespan", method="linear_clustering")
    faster = len(case[0].tasks) / plan.value
    here = f"4 branches of 40 tasks, 4 lanes: {faster:.2f}× of one lane"
    rows.append(["Ramiel", "up to 1.9× of serial execution", here, "modelled", command("lists")])
    bars.append(at_least("linear clustering over one lane", faster, 1.9))
    return Part("literature: list schedulers", COLUMNS, rows, bars)
