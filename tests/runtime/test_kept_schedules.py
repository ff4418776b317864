"""Schedules of lanes, and the messages between hosts, of plans made by hand: kept line by line.

`pytest --write tests/runtime/test_kept_schedules.py` writes them anew. That runs with such
schedules compute what one lane computes is tested in `test_protocol.py` and `test_islands.py`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl.algorithms import algorithm
from pearl.cluster import batching
from pearl.cluster.lane_groups import LaneGroup, TaskMessages, lane_groups
from pearl.errors import SpecError
from pearl.graph.sequential import program_order
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plans import Channel, Entry, Lane, Placement
from pearl.planning.replicas import ReplicaSplit, split_graph
from pearl.runtime.protocol import channels, recovery
from pearl.runtime.protocol.control_block import WorkRange
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule, Firing, Slots
from pearl.spec.reading import load
from pearl.spec.user_code import build_graph
from pearl_devices import buffers
from tests.examples import placement
from tests.lanes import replay_spec
from tests.learners import spec_of

KEPT = Path(__file__).parent / "schedules.txt"


class HandPlan:
    """The parts of a plan that a schedule reads."""

    def __init__(self, tasks: list[Placement], lanes: list[Lane], edges: list[Channel]) -> None:
        self.tasks, self.lanes, self.edges = tasks, lanes, edges


def made(
    graph: TaskGraph,
    where: Mapping[str, int],
    slack: Mapping[tuple[str, str], int] | None = None,
    ahead: Mapping[str, int] | None = None,
    late: tuple[str, ...] = (),
    fused: tuple[str, ...] = (),
) -> ExecutionSchedule:
    """The schedule of a graph with its tasks on lanes by number, each lane in the program's order.

    slack: of edges. ahead: iterations that firings of a task run ahead. late: asynchronous tasks.
    """
    tasks = [
        placement(
            t.name, "cpu", f"cpu.{where[t.name]}", 1e-4 if t.name not in late else 2e-4,
            occupancy_s=1e-4, fused_with=tuple(n for n in fused if n != t.name and t.name in fused),
        )
        for t in graph.tasks
    ]  # fmt: skip
    edges = []
    for e in graph.edges:
        more = (slack or {}).get((e.src, e.dst), 0)
        capacity = e.tokens_seq + more + 2 * e.production if e.bytes else None
        edges.append(
            Channel(e.src, e.dst, e.production, e.consumption, e.tokens, e.tokens_seq, more,
                    capacity, e.bytes, None)
        )  # fmt: skip
    order = program_order(graph)
    lanes = [
        Lane(f"cpu.{n}", "cpu", 1, "cores",
             tuple(Entry(t, (ahead or {}).get(t, 0)) for t in order if where[t] == n), 0.5)
        for n in sorted(set(where.values()))
    ]  # fmt: skip
    return ExecutionSchedule(
        HandPlan(tasks, [*lanes, Lane("link", "x", 0, "", (), 0.1)], edges), graph
    )  # type: ignore[arg-type]


def graph_of(spec: Mapping[str, Any]) -> TaskGraph:
    system = load(spec)
    return algorithm(system.algorithm.name).graph(system)


PRIORITISED = {"capacity": 100, "kind": "prioritised", "fanout": 8}
PREFETCH = {("sample", "learn"): 1, ("sync", "act"): 2}
APART = {
    "act": 1, "step": 1, "store": 2, "sample": 2, "learn": 0,
    "priorities": 2, "sync": 0,
}  # fmt: skip


def prioritised() -> ExecutionSchedule:
    graph = graph_of(replay_spec("dqn", replay=PRIORITISED, num_envs=4, replay_ratio="1/2"))
    slack = {**PREFETCH, ("learn", "priorities"): 1, ("step", "store"): 1}
    return made(graph, APART, slack, {"act": 1, "step": 1})


def split() -> ExecutionSchedule:
    whole = graph_of(replay_spec("dqn", num_envs=8))
    graph = split_graph(whole, ReplicaSplit(("act", "step"), (5, 3)))
    where = {t.name: int(t.name.partition("#")[2] or -1) + 1 for t in graph.tasks}
    return made(graph, where, {("sync", f"act#{i}"): 1 for i in (0, 1)})


def groups() -> ExecutionSchedule:
    graph = graph_of(replay_spec("dqn", {"env_groups": 4, "policy_lag": 3}))
    return made(graph, dict.fromkeys(graph.repetition, 0), late=("act",))


def rollout() -> ExecutionSchedule:
    options = {"rollout_steps": 4, "minibatches": 2, "epochs": 2, "hidden": [8], "num_envs": 4}
    spec = replay_spec("dqn") | {"algorithm": {"name": "ppo", "env": "CartPole-v1", **options}}
    graph = graph_of(spec)
    acting = ("act", "step", "store")
    return made(graph, {t: int(t in acting) for t in graph.repetition})


def learners() -> ExecutionSchedule:
    system = load(spec_of("dqn"))
    given: dict[str, Any] = {"learners": 2, "reduction": "shards"}
    raw = {**system.raw, "limits": {**system.raw["limits"], **given}}
    graph = build_graph(replace(system, raw=raw, limits=replace(system.limits, **given)))
    return made(graph, {t: int(t.endswith("_1")) for t in graph.repetition})


def roomy() -> ExecutionSchedule:
    graph = graph_of(replay_spec("dqn", num_envs=4, replay_ratio="2"))
    slack = {("sync", "act"): 6, ("step", "store"): 5}
    acting = ("act", "step")
    return made(graph, {t: int(t in acting) for t in graph.repetition}, slack)


def fused() -> ExecutionSchedule:
    graph = graph_of(replay_spec("dqn", replay_ratio="1/2", num_envs=4))
    unit = max((f.tasks for f in graph.fusions if "step" not in f.tasks), key=len)
    return made(graph, {t: int(t not in unit) for t in graph.repetition}, fused=unit)


CASES = {f.__name__: f for f in (prioritised, split, groups, rollout, learners, roomy, fused)}


@functools.cache
def schedule(case: str) -> ExecutionSchedule:
    return CASES[case]()


def slot(s: Slots) -> str:
    return f"({s.first}+{s.step}n)%{s.count}"


def firing(f: Firing) -> str:
    waits = " ".join(f"{w.task}≥{w.base}+{w.step}n" for w in f.waits)
    parts = {
        "waits": waits,
        "done": " ".join(f"{t}={n}" for t, n in f.done.items()),
        "slots": " ".join(f"{t}:{slot(s)}" for t, s in f.slots.items()),
        "due": " ".join(f"{t}:{slot(s)}" for t, s in f.versions_due.items()),
        "group": slot(f.group) if f.group.count > 1 else "",
    }
    said = "; ".join(f"{name} {text}" for name, text in parts.items() if text)
    about = f"+{f.offset} #{f.index}/{f.per_round} delay {f.delay}" + " later" * f.asynchronous
    work = [f.work_iteration(n) for n in (-1, 0, 1, 5)]
    return f"  {'+'.join(f.tasks)} {about} work {work}; {said}"


def of_lanes(p: ExecutionSchedule) -> Iterator[str]:
    yield f"home {p.home}, drain {p.drain}, single {p.is_single_lane}"
    for name in ("slots", "sent", "groups", "unit", "delay"):
        found = {k: v for k, v in getattr(p, name).items() if v not in (0, (k,))}
        yield f"{name} {found}"
    yield f"asynchronous {sorted(p.asynchronous)}"
    for number, lane in enumerate(p.lanes):
        yield f"{lane.name} {', '.join(lane.tasks)}: {recovery.restart_obstacle(p, number)}"
        yield from map(firing, lane.firings)


def place(array: Any, arrays: Mapping[str, Any]) -> str:
    """The name of the array in whose memory this one lies, and its first row and number of rows."""
    at = array.ctypes.data
    for name, whole in arrays.items():
        if array is whole:
            return name
        if whole.ctypes.data <= at < whole.ctypes.data + whole.nbytes:
            return f"{name}[{(at - whole.ctypes.data) // array.strides[0]}:+{len(array)}]"
    raise AssertionError


def run_arrays(p: ExecutionSchedule) -> tuple[channels.Layout, dict[str, Any]]:
    """The arrays of a run, and which of them one lane would not have."""
    split = any(t.part for t in p.graph.tasks)
    whole = graph_of(replay_spec("dqn", num_envs=8)) if split else p.graph
    arrays = buffers.allocate([t.kernel for t in whole.tasks])
    extra = channels.extra_arrays(p, whole, arrays)
    return extra, arrays | {n: np.zeros(shape, dtype) for n, shape, dtype in extra}


def of_arrays(p: ExecutionSchedule) -> Iterator[str]:
    extra, arrays = run_arrays(p)
    sizes: dict[str, list[str]] = {}
    for name, shape, dtype in extra:
        sizes.setdefault(f"{'x'.join(map(str, shape))} {dtype}", []).append(name)
    yield from (f"{size}: {' '.join(names)}" for size, names in sizes.items())
    last = {sender: p.slots[sender] - 1 for sender in p.sent}
    for task in p.graph.tasks:
        group = p.groups.get(task.name, 1) - 1
        views = channels.task_view(p, arrays, task.kernel, task.name, last, group)
        seen = {n: place(a, arrays) for n, a in views.items() if a is not arrays.get(n)}
        yield f"  {task.name} sees {' '.join(f'{n}={at}' for n, at in seen.items() if n != at)}"


def remote_groups(p: ExecutionSchedule) -> tuple[LaneGroup, ...]:
    """The groups of the lanes that do not update, on one other host."""
    device = {k.name: f"d{n}" for n, k in enumerate(p.lanes)}
    p.plan.lanes = [replace(k, device=device.get(k.lane, "link")) for k in p.plan.lanes]  # type: ignore[misc]
    hosts = {f"d{n}": "home" if n == p.home else "far" for n in range(len(p.lanes))}
    return lane_groups(p, hosts | {"link": "home"})


def of_hosts(p: ExecutionSchedule) -> Iterator[str]:
    _, arrays = run_arrays(p)
    found = remote_groups(p)
    for g in found:
        yield f"group {g.number} on {g.host}: lanes {g.lanes}, {', '.join(g.tasks)}"
        yield f"  in {g.inbound_tasks(p)}, out {g.outbound_tasks(p)}"
        yield from of_messages(p, g, arrays)
        held = {n: arrays[n] for n in g.arrays(p, arrays)}
        yield f"  holds {' '.join(held)}"
        yield f"  writes {' '.join(place(a, held) for a in g.state(p, held))}"
    if found:
        for flows in batching.plan_flows(p, found):
            both = [[(f.tasks, f.per_iteration, f.every) for f in side] for side in
                    (flows.inbound, flows.outbound)]  # fmt: skip
            yield f"  flows in {both[0]} out {both[1]}, {flows.iterations} iterations"


def of_messages(p: ExecutionSchedule, g: LaneGroup, arrays: Mapping[str, Any]) -> Iterator[str]:
    others = [t for t in p.graph.repetition if t not in g.tasks]
    for tasks, readers in ((g.outbound_tasks(p), others), (g.inbound_tasks(p), g.tasks)):
        for task in tasks:
            sender = TaskMessages(p, task, readers)
            sent = [" ".join(place(a, arrays) for a in sender.views(dict(arrays), n, n + 1))
                    for n in (3, 4)]  # fmt: skip
            versions = channels.version_array_name(task)
            if versions in arrays:
                arrays[versions][:] = 0
                sender.stamp_versions(dict(arrays), 2, 5, WorkRange(3, 99, 1), True)
                sent.append(f"versions {arrays[versions].tolist()}")
            yield f"  {task} sends {', then '.join(sent)}; needs {sender.required_counts(3)}"


def text(case: str) -> str:
    p = schedule(case)
    return "\n".join((f"\n== {case}", *of_lanes(p), *of_arrays(p), *of_hosts(p), ""))


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_is_the_one_that_is_kept(case: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write"):
        KEPT.write_text("".join(map(text, CASES)), encoding="utf-8")
    assert text(case) in KEPT.read_text(encoding="utf-8")


def test_a_schedule_that_lanes_cannot_run_is_refused() -> None:
    graph = graph_of(replay_spec("dqn", replay=PRIORITISED, num_envs=4))
    unit = next(f.tasks for f in graph.fusions if "sample" in f.tasks)
    one = dict.fromkeys(graph.repetition, 0)
    with pytest.raises(SpecError, match="run as one call, and slack asks some of them to lag"):
        made(graph, one, {("sample", "learn"): 1}, fused=unit)
    with pytest.raises(SpecError, match=r"slack 2 on act → step would be empty firings"):
        made(graph, one, {("act", "step"): 2})
